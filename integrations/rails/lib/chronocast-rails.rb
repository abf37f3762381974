# frozen_string_literal: true

require "chronocast"
