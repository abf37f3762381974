# frozen_string_literal: true

module Chronocast
  VERSION = "0.1.0"
end
