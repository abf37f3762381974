# frozen_string_literal: true

module Chronocast
  # Gives controllers and views what they need, after turbo-rails has, whose
  # turbo_stream_from ours calls.
  class Railtie < ::Rails::Railtie
    initializer "chronocast.helpers", after: "turbo.helpers" do
      ActiveSupport.on_load(:action_controller_base) do
        include Chronocast::RequestPositions
        helper Chronocast::Helper
      end
    end
  end
end
