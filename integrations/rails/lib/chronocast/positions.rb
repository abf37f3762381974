# frozen_string_literal: true

require "erb"
require "json"
require_relative "connection"
require_relative "outbox"

module Chronocast
  # Where a stream stands: epoch is a string of digits, offset an integer.
  Position = Struct.new(:epoch, :offset) do
    def to_s
      "#{epoch}:#{offset}"
    end
  end

  # Positions asks the server where streams stand, for pages that are being
  # rendered. It is safe to use from many threads and after a fork.
  class Positions
    REST = 1.0 # seconds for which nobody asks after the server has not answered

    def initialize(config, logger = nil)
      @config = config
      @logger = logger
      @lock = Mutex.new
      @idle = []
      @rest_until = 0
    end

    # of returns the position of a stream's newest message, or nil when the server
    # does not say so within `position_timeout`: a page without a position works,
    # as a page of plain Action Cable does.
    def of(stream)
      return nil if Outbox.now < @rest_until

      answer = ask("/streams/#{ERB::Util.url_encode(stream)}")
      return position(answer.body) if answer.status == 200

      rest("the server answered #{answer.status}")
    rescue Unavailable, JSON::ParserError, KeyError, TypeError => e
      rest(e.message)
    end

    private

    def ask(path)
      connection = checkout
      answer = connection.get(path)
      @lock.synchronize { @idle << connection } if @pid == Process.pid
      answer
    end

    def checkout
      @lock.synchronize do
        unless @pid == Process.pid # the sockets are the parent's
          @pid = Process.pid
          @idle = []
        end
        @idle.pop
      end || Connection.new(@config, open_timeout: @config.position_timeout, read_timeout: @config.position_timeout)
    end

    def position(body)
      span = JSON.parse(body)
      Position.new(span.fetch("epoch").to_s, Integer(span.fetch("last")))
    end

    def rest(why)
      @rest_until = Outbox.now + REST
      @logger&.warn("chronocast: this page carries no position: #{why}")
      nil
    end
  end
end
