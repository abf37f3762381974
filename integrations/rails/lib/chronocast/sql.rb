# frozen_string_literal: true

require_relative "positions"
require_relative "publisher"

module Chronocast
  # Broadcasts that are part of an Active Record transaction on PostgreSQL.
  module SQL
    STATEMENT = 'SELECT epoch, "offset" FROM chronocast.broadcast($1::text, $2::bytea, $3::text)'

    class << self
      # broadcast stores a message by the connection of this thread, inside its
      # transaction when one is open, and returns its Position. text is JSON text.
      def broadcast(connection, stream, text, key = nil)
        unless connection.adapter_name.match?(/postg/i)
          raise Error, "chronocast: a broadcast can be part of a transaction on PostgreSQL only, this is #{connection.adapter_name}"
        end

        row = connection.exec_query(STATEMENT, "Chronocast Broadcast", [
          bind("stream", stream, ActiveRecord::Type::String.new),
          bind("data", text.b, ActiveRecord::Type::Binary.new), # binary: sent as the bytes it is, and logged by its size
          bind("key", key, ActiveRecord::Type::String.new)
        ]).first
        Position.new(row.fetch("epoch").to_s, row.fetch("offset").to_i)
      end

      # open returns this thread's connection when it is PostgreSQL's and inside a
      # transaction, else nil. It never takes a connection from the pool.
      def open
        return unless defined?(::ActiveRecord::Base)

        connection = ::ActiveRecord::Base.connection_pool.active_connection?
        connection if connection && connection.adapter_name.match?(/postg/i) && connection.transaction_open?
      rescue ::ActiveRecord::ConnectionNotEstablished
        nil
      end

      # connection is the one that Active Record's models use in this thread.
      def connection
        base = ::ActiveRecord::Base
        base.respond_to?(:lease_connection) ? base.lease_connection : base.connection
      end

      private

      def bind(name, value, type)
        ::ActiveRecord::Relation::QueryAttribute.new(name, value, type)
      end
    end
  end
end
