# frozen_string_literal: true

require "active_support"
require "active_support/notifications"

module Chronocast
  # Report tells the application what became of its broadcasts: as events of
  # ActiveSupport::Notifications, in the log, and to the error reporter of Rails
  # 7 and later. Never a payload, and never the key.
  #
  #   deliver.chronocast  count:, bytes:, attempts:, status:     a POST was answered for good
  #   retry.chronocast    count:, bytes:, attempts:, error:      one was not, and will be repeated
  #   drop.chronocast     count:, bytes:, attempts:, error:, streams:   these broadcasts are lost
  class Report
    def initialize(logger)
      @logger = logger
      @troubled = false
    end

    def delivered(batch, answer)
      notify("deliver", batch, status: answer.status)
      return unless @troubled

      @troubled = false
      @logger&.info("chronocast: the server takes broadcasts again")
    end

    # failed logs the first failure of an outage; the others are events only.
    def failed(batch, error)
      notify("retry", batch, error: error)
      return if @troubled

      @troubled = true
      @logger&.warn("#{error.message}; trying again")
    end

    def dropped(batch, error)
      streams = batch.items.map(&:stream).compact.uniq
      notify("drop", batch, error: error, streams: streams)
      @logger&.error("chronocast: #{batch.items.size} broadcasts are lost (#{streams.first(5).join(", ")}): #{error.message}")
      ::Rails.error.report(error, handled: true, context: { streams: streams }) if defined?(::Rails) && ::Rails.respond_to?(:error) && ::Rails.error
    end

    private

    # notify lets no subscriber stop the writer.
    def notify(name, batch, more)
      fields = { count: batch.items.size, bytes: batch.items.sum(&:size), attempts: batch.attempts }
      ActiveSupport::Notifications.instrument("#{name}.chronocast", fields.merge(more))
    rescue StandardError => e
      @logger&.error("chronocast: a subscriber of #{name}.chronocast raised #{e.class}: #{e.message}")
    end
  end
end
