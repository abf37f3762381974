# frozen_string_literal: true

require "active_support"
require "active_support/json"
require_relative "chronocast/version"
require_relative "chronocast/errors"
require_relative "chronocast/config"
require_relative "chronocast/publisher"
require_relative "chronocast/positions"
require_relative "chronocast/stream_names"
require_relative "chronocast/sql"
require_relative "chronocast/helper"
require_relative "chronocast/railtie" if defined?(::Rails::Railtie)

# Chronocast for Rails. config/cable.yml names the server; see README.md.
module Chronocast
  class << self
    # config holds the settings of cable.yml, or of the environment.
    def config
      @config ||= Config.new(defined?(::ActionCable) ? ::ActionCable.server.config.cable || {} : {})
    end

    # config= replaces the settings, for programs without a cable.yml.
    def config=(config)
      @positions = nil
      @config = config
    end

    # broadcast makes a message part of the open Active Record transaction on
    # PostgreSQL: it is stored, and delivered, if and only if that commits, and
    # its place is its place among commits. Without a transaction it is stored at
    # once. streamables name the stream as in turbo_stream_from. The message is
    # encoded as ActionCable.server.broadcast does it; json: takes JSON text as it
    # is. key: makes a repeated call store once. Returns the Position, which is a
    # promise only once the transaction has committed.
    #
    #   Message.transaction do
    #     message = room.messages.create!(body: "First!")
    #     Chronocast.broadcast(room, { id: message.id })
    #   end
    #
    # Raises InvalidBroadcast, Error on another database, and what Active Record
    # raises: docs/sql.md lists the reasons, and the traps of locks and order.
    def broadcast(*streamables, message, json: nil, key: nil)
      if json
        streamables << message
      else
        json = ActiveSupport::JSON.encode(message)
      end
      stream = Publisher.stream!(StreamNames.of(*streamables))
      SQL.broadcast(SQL.connection, stream, Publisher.text!(json, config.max_payload), key)
    end

    # position asks where a stream stands; nil when the server does not say so in time.
    def position(*streamables)
      (@positions ||= Positions.new(config, logger)).of(StreamNames.of(*streamables))
    end

    private

    def logger
      ::Rails.logger if defined?(::Rails) && ::Rails.respond_to?(:logger)
    end
  end
end
