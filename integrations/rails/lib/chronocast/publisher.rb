# frozen_string_literal: true

require "json"
require_relative "config"
require_relative "outbox"
require_relative "report"
require_relative "writer"

module Chronocast
  # Publisher takes broadcasts from any thread and has them sent by one writer
  # thread per process. After a fork the child begins with a queue, a thread and
  # a connection of its own; what was queued before is the parent's to send.
  class Publisher
    REFUSAL_HOLDS = 1.0 # seconds for which `broadcast` raises after the server has refused the key

    attr_reader :config

    def initialize(config, logger = nil)
      @config = config
      @logger = logger
      @starting = Mutex.new
      Publisher.open(self)
    end

    # broadcast queues one message; text is its JSON text and is stored as the
    # bytes it is. Calls of one thread are stored in their order. Raises
    # InvalidBroadcast for what no server would take, QueueFull when the queue
    # has been full for `timeout` seconds (at once in an outage that has lasted
    # longer), and Refused while the server refuses our key.
    def broadcast(stream, text)
      stream = Publisher.stream!(stream)
      text = Publisher.text!(text, config.max_payload)
      push(Outbox::Item.new(stream, %({"stream":#{JSON.generate(stream)},"data":#{JSON.generate(text)}})))
    end

    # disconnect has the server close every connection of a user, after what was
    # broadcast before by this process.
    def disconnect(sub, reconnect: true)
      push(Outbox::Item.new(nil, JSON.generate("sub" => sub, "reconnect" => reconnect), "/disconnect"))
    end

    # flush waits until everything queued so far in this process has its final
    # answer; false when that takes longer than seconds.
    def flush(seconds = config.flush)
      started? ? @outbox.drain(seconds) : true
    end

    # close flushes and ends the writer. A later broadcast starts another.
    def close(seconds = config.flush)
      return unless started?

      left_behind unless flush(seconds)
      @starting.synchronize do
        @thread&.kill
        @thread&.join
        @pid = nil
      end
    end

    # finish is close for the end of the process.
    def finish
      left_behind unless flush
    end

    class << self
      # stream! returns the name as UTF-8, or raises InvalidBroadcast.
      def stream!(name)
        text = utf8(name)
        return text if text && !text.empty? && text.bytesize <= 255 && !text.match?(/[\u0000-\u001f\u007f-\u009f]/)

        raise InvalidBroadcast, "chronocast: a stream's name is 1 to 255 bytes of UTF-8 without control characters"
      end

      # text! returns a payload as UTF-8, or raises InvalidBroadcast.
      def text!(payload, most)
        text = utf8(payload) or raise InvalidBroadcast, "chronocast: the payload is not valid UTF-8"
        return text if text.bytesize <= most

        raise InvalidBroadcast, "chronocast: the payload has #{text.bytesize} bytes, at most #{most} are taken"
      end

      # open remembers a publisher until the process ends.
      def open(publisher)
        @open ||= ObjectSpace::WeakMap.new.tap { at_exit { @open.keys.each(&:finish) } }
        @open[publisher] = true
      end

      private

      # utf8 takes bytes of unknown encoding for what they must be.
      def utf8(value)
        text = value.to_s
        text = text.encoding == Encoding::ASCII_8BIT ? text.dup.force_encoding(Encoding::UTF_8) : text.encode(Encoding::UTF_8)
        text if text.valid_encoding?
      rescue EncodingError
        nil
      end
    end

    private

    def push(item)
      start unless started? && @thread&.alive? # another thread may be starting it
      at, refusal = @writer.refusal
      raise refusal, refusal.message if refusal && Outbox.now - at < REFUSAL_HOLDS

      began = Outbox.now
      return if @outbox.push(item) { (@writer.failing_since || began) + config.timeout }

      raise QueueFull, "chronocast: #{@outbox.size} broadcasts are waiting for #{config.url.host}:#{config.url.port}, which is #{@writer.failing_since ? "not answering" : "too slow"}"
    end

    def started?
      @pid == Process.pid
    end

    def start
      @starting.synchronize do
        unless started?
          @outbox = Outbox.new(config.queue, config.queue_bytes)
          @writer = Writer.new(config, @outbox, Report.new(@logger))
          @thread = nil
          @pid = Process.pid
        end
        next if @thread&.alive?

        writer = @writer
        @thread = Thread.new { writer.run }
        @thread.name = "chronocast"
      end
    end

    def left_behind
      @logger&.error("chronocast: #{@outbox.size} broadcasts had no answer at the end of the process and may be lost")
    end
  end
end
