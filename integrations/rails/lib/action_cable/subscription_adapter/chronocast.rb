# frozen_string_literal: true

require "chronocast"
require "action_cable/subscription_adapter/base"

module ActionCable
  module SubscriptionAdapter
    # config/cable.yml: `adapter: chronocast`. Hands what is broadcast to a
    # Chronocast server, to which the browsers are connected.
    class Chronocast < Base
      INTERNAL = "action_cable/" # Action Cable's own channels, one for each connection identifier

      def initialize(*)
        super
        @config = ::Chronocast::Config.new(@server.config.cable)
        @publisher = ::Chronocast::Publisher.new(@config, @logger)
      end

      # broadcast queues payload, a JSON text that is stored as it is; see
      # Chronocast::Publisher#broadcast. With `transactional: true` in cable.yml
      # and an Active Record transaction open on PostgreSQL it becomes part of that.
      def broadcast(channel, payload)
        if channel.start_with?(INTERNAL)
          internal(channel, payload)
        elsif @config.transactional && (connection = ::Chronocast::SQL.open)
          ::Chronocast::SQL.broadcast(connection, ::Chronocast::Publisher.stream!(channel),
                                      ::Chronocast::Publisher.text!(payload, @config.max_payload))
        else
          @publisher.broadcast(channel, payload)
        end
      end

      # subscribe is refused: a browser that is connected to this process would
      # wait for broadcasts for ever. Action Cable's internal channel is let pass,
      # disconnects are carried out by the server.
      def subscribe(channel, _message_callback, success_callback = nil)
        if channel.start_with?(INTERNAL)
          success_callback&.call
          return
        end
        raise ::Chronocast::NotServedHere, "chronocast: nobody is served #{channel.inspect} by this process. Point config.action_cable.url " \
          "at the Chronocast server, and set config.action_cable.mount_path = nil so that no browser connects here"
      end

      def unsubscribe(_channel, _message_callback); end

      # flush waits until what was broadcast is stored; false when that takes longer than seconds.
      def flush(seconds = @config.flush)
        @publisher.flush(seconds)
      end

      def shutdown
        @publisher.close
      end

      private

      # internal passes remote disconnects on: the connection identifier of Action
      # Cable is the `sub` of the user's token.
      def internal(channel, payload)
        message = JSON.parse(payload)
        case message["type"]
        when "disconnect"
          @publisher.disconnect(channel.delete_prefix(INTERNAL), reconnect: message.fetch("reconnect", true))
        else
          raise ::Chronocast::Error, "chronocast: #{message["type"].inspect} of remote connections is not supported"
        end
      end
    end
  end
end
