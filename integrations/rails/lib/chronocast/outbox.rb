# frozen_string_literal: true

require_relative "errors"

module Chronocast
  # The bounded queue between the threads that broadcast and the one that sends.
  # What was taken counts as inside until it is done. (Ruby's SizedQueue bounds
  # neither bytes nor, before 3.2, the time a push may wait.)
  class Outbox
    # body is the JSON of one item of a batch, or with path set of a request of its own.
    Item = Struct.new(:stream, :body, :path) do
      def size
        body.bytesize
      end
    end

    def initialize(items, bytes)
      @most = items
      @most_bytes = bytes
      @queue = []
      @inside = 0
      @bytes = 0
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @added = ConditionVariable.new
    end

    # push adds an item. While there is no room it waits, up to a time of the
    # monotonic clock that the block tells, asked again whenever something
    # changes; past it, false. An item that is larger than the bound passes alone.
    def push(item)
      @lock.synchronize do
        until room?(item)
          left = yield - Outbox.now
          return false if left <= 0

          @changed.wait(@lock, left)
        end
        @queue << item
        @inside += 1
        @bytes += item.size
        @added.signal
      end
      true
    end

    # take waits for items and returns the oldest: up to a number and a size, and
    # at least one. An item with a path comes alone.
    def take(most, bytes)
      @lock.synchronize do
        @added.wait(@lock) while @queue.empty?
        size = 0
        count = @queue.each_with_index.take_while do |item, i|
          size += item.size + 1
          i.zero? || (i < most && size <= bytes && !item.path && !@queue.first.path)
        end.size
        @queue.shift(count)
      end
    end

    # done makes room for as much as was taken.
    def done(items)
      @lock.synchronize do
        @inside -= items.size
        @bytes -= items.sum(&:size)
        @changed.broadcast
      end
    end

    # wake makes those who wait look again at how long they may.
    def wake
      @lock.synchronize { @changed.broadcast }
    end

    # drain waits until nothing is inside; false when that takes longer than seconds.
    def drain(seconds)
      deadline = Outbox.now + seconds
      @lock.synchronize do
        while @inside.positive?
          left = deadline - Outbox.now
          return false if left <= 0

          @changed.wait(@lock, left)
        end
      end
      true
    end

    def size
      @lock.synchronize { @inside }
    end

    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    private

    def room?(item)
      @inside.zero? || (@inside < @most && @bytes + item.size <= @most_bytes)
    end
  end
end
