# frozen_string_literal: true

require "json"
require "securerandom"
require_relative "connection"
require_relative "outbox"

module Chronocast
  # Writer sends what is in an outbox, in its order: one batch at a time, and the
  # next only when the server has answered this one for good. A batch keeps its
  # idempotency key and its bytes over all attempts, so that one whose answer was
  # lost is stored once.
  class Writer
    FIRST_PAUSE = 0.05
    LONGEST_PAUSE = 2.0

    Batch = Struct.new(:items, :key, :attempts, :since) do
      def self.of(items)
        new(items, SecureRandom.uuid, 0, Outbox.now)
      end

      def path
        items.first.path || "/broadcast"
      end

      def body
        items.first.path ? items.first.body : "[#{items.map(&:body).join(",")}]"
      end

      def halves
        items.each_slice((items.size + 1) / 2).map { |half| Batch.of(half) }
      end
    end

    # failing_since is the time of the monotonic clock since which the server has
    # not taken a batch, or nil. refusal is the newest [time, Refused] that was no
    # fault of one broadcast, such as a wrong key.
    attr_reader :failing_since, :refusal

    # report is told of what happens: report.delivered(batch, answer),
    # report.failed(batch, error), report.dropped(batch, error).
    def initialize(config, outbox, report)
      @config = config
      @outbox = outbox
      @report = report
      @connection = Connection.new(config)
      @work = [] # batches that were taken and have no final answer, oldest first
    end

    # run sends for ever. It may be started anew in another thread when its thread
    # was killed: it goes on with the batch that was under way.
    def run
      loop do
        @work << Batch.of(@outbox.take(@config.batch, @config.batch_bytes)) if @work.empty?
        step(@work.first)
      end
    ensure
      @connection.close
    end

    private

    def step(batch)
      batch.attempts += 1
      answer = @connection.post(batch.path, batch.body, "Idempotency-Key" => batch.key)
      case answer.status
      when 200..299 then delivered(batch, answer)
      when 408, 425, 429, 500..599 then failed(batch, Unavailable.new("chronocast: #{told(answer)}"), answer.retry_after)
      else refused(batch, answer)
      end
    rescue Unavailable => e
      failed(batch, e, nil)
    end

    def delivered(batch, answer)
      @failing_since = @refusal = nil
      finish(batch)
      @report.delivered(batch, answer)
    end

    # failed waits before the batch is tried again, or gives it up.
    def failed(batch, error, retry_after)
      @failing_since ||= Outbox.now
      @outbox.wake
      return drop(batch, error) if Outbox.now - batch.since > @config.give_up

      @report.failed(batch, error)
      pause = [FIRST_PAUSE * 2**[batch.attempts - 1, 10].min, LONGEST_PAUSE].min
      sleep([pause * (0.75 + rand / 2), [retry_after || 0, LONGEST_PAUSE].min].max)
    end

    # refused looks for the one item that made the server refuse them all.
    def refused(batch, answer)
      @failing_since = nil
      error = Refused.new("chronocast: #{told(answer)}", answer.status)
      if [400, 409, 413, 422].include?(answer.status)
        return @work.replace(batch.halves + @work.drop(1)) if batch.items.size > 1
      else
        @refusal = [Outbox.now, error]
      end
      drop(batch, error)
    end

    def drop(batch, error)
      finish(batch)
      @report.dropped(batch, error)
    end

    def finish(batch)
      @work.shift
      @outbox.done(batch.items)
    end

    # told puts the server's own words into a message.
    def told(answer)
      said = JSON.parse(answer.body) rescue nil
      words = said.is_a?(Hash) ? [said["error"], said["message"]].compact.join(": ") : ""
      words.empty? ? "the server answered #{answer.status}" : "the server answered #{answer.status}, #{words}"
    end
  end
end
