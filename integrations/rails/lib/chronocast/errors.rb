# frozen_string_literal: true

module Chronocast
  # Whatever goes wrong here is a Chronocast::Error.
  class Error < StandardError; end

  # A setting is missing or out of its bounds; the message names both.
  class ConfigError < Error; end

  # This stream name or payload cannot be broadcast by anybody.
  class InvalidBroadcast < Error; end

  # The queue stayed full for longer than `timeout`: the server is away or too
  # slow, and what is broadcast now would have to be forgotten.
  class QueueFull < Error; end

  # The server did not answer, or answered that it cannot just now.
  class Unavailable < Error; end

  # The server has answered with a 4xx: to repeat it is of no use.
  class Refused < Error
    attr_reader :status

    def initialize(message, status)
      super(message)
      @status = status
    end
  end

  # Channel classes of this Rails process are not served: browsers talk to
  # Chronocast itself.
  class NotServedHere < Error; end
end
