# frozen_string_literal: true

require "openssl"
require "uri"
require_relative "errors"

module Chronocast
  # The settings of config/cable.yml. Times are in seconds, sizes in bytes.
  class Config
    # field => [default, least, most]
    NUMBERS = {
      queue: [10_000, 1, 1_000_000],                # broadcasts waiting for the server, all threads of a process together
      queue_bytes: [64 << 20, 1 << 20, 4 << 30],    # and their size
      batch: [1_000, 1, 1_000],                     # broadcasts in one POST; the server takes 1,000
      batch_bytes: [4 << 20, 1 << 10, 8 << 20],     # and its size; the server takes 8 MiB
      max_payload: [1 << 20, 1, 8 << 20],           # larger ones are refused by `broadcast` itself
      timeout: [5, 0, 300],                         # how long `broadcast` waits while the queue is full
      open_timeout: [2, 0.01, 60],
      read_timeout: [10, 0.01, 300],
      give_up: [1_800, 1, 3_000],                   # how long a batch is repeated; keys are forgotten by the server after 3,600
      flush: [5, 0, 300],                           # how long the end of a process waits for what is queued
      position_timeout: [0.25, 0.01, 10]            # how long a page waits for the position of a stream
    }.freeze

    attr_reader :url, :key, :transactional, *NUMBERS.keys

    # settings: a hash with string or symbol keys; what it does not know it leaves
    # alone, for cable.yml may hold more. Without `url`, `key` and `secret` the
    # environment is asked: CHRONOCAST_URL, CHRONOCAST_KEY, CHRONOCAST_SECRET.
    def initialize(settings = {}, env: ENV)
      given = settings.to_h.transform_keys(&:to_sym)
      @url = parse(given[:url] || env["CHRONOCAST_URL"] || "http://127.0.0.1:8080")
      @key = given[:key] || env["CHRONOCAST_KEY"] || derive(given[:secret] || env["CHRONOCAST_SECRET"])
      @transactional = given.fetch(:transactional, false) == true
      NUMBERS.each { |field, bounds| instance_variable_set("@#{field}", number(field, given[field], *bounds)) }
    end

    # headers that every request carries.
    def headers
      key ? { "Authorization" => "Bearer #{key}" } : {}
    end

    # The key is nobody's business, logs included.
    def inspect
      "#<Chronocast::Config #{url}>"
    end

    private

    # derive computes the publish key as the server derives it from its --secret.
    def derive(secret)
      OpenSSL::HMAC.hexdigest("SHA256", secret, "broadcast-cable") if secret && !secret.empty?
    end

    def parse(url)
      uri = URI.parse(url.to_s.chomp("/"))
      return uri if uri.is_a?(URI::HTTP) && uri.host

      raise ConfigError, "chronocast: url must be http://HOST:PORT or https://HOST:PORT"
    rescue URI::InvalidURIError
      raise ConfigError, "chronocast: url must be http://HOST:PORT or https://HOST:PORT"
    end

    def number(field, value, default, least, most)
      return default if value.nil?

      n = Float(value, exception: false)
      raise ConfigError, "chronocast: #{field} must be a number from #{least} to #{most}, not #{value.inspect}" unless n && n >= least && n <= most

      default.is_a?(Integer) && n == n.to_i ? n.to_i : n
    end
  end
end
