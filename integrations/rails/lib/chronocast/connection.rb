# frozen_string_literal: true

require "net/http"
require_relative "errors"

module Chronocast
  # One keep-alive connection to the server. It belongs to one thread at a time.
  class Connection
    Answer = Struct.new(:status, :body, :retry_after)

    # Ends of a request that say nothing about whether it was carried out.
    FAILURES = [SystemCallError, IOError, SocketError, Timeout::Error, OpenSSL::SSL::SSLError, Net::HTTPBadResponse,
                Net::HTTPHeaderSyntaxError, Net::ProtocolError].freeze

    def initialize(config, open_timeout: config.open_timeout, read_timeout: config.read_timeout)
      @config = config
      # nil: no proxy of the environment, the server is a neighbour.
      @http = Net::HTTP.new(config.url.host, config.url.port, nil)
      @http.use_ssl = config.url.scheme == "https"
      @http.open_timeout = open_timeout
      @http.read_timeout = read_timeout
      @http.write_timeout = read_timeout
      @http.keep_alive_timeout = 60
      @http.max_retries = 0 # repeating is the caller's decision
    end

    # post sends a JSON body. Raises Unavailable when there is no answer.
    def post(path, body, headers = {})
      request = Net::HTTP::Post.new(@config.url.path + path, @config.headers.merge("Content-Type" => "application/json").merge(headers))
      request.body = body
      answer(request)
    end

    # get asks. Raises Unavailable when there is no answer.
    def get(path)
      answer(Net::HTTP::Get.new(@config.url.path + path, @config.headers))
    end

    def close
      @http.finish if @http.started?
    rescue *FAILURES
      nil
    end

    private

    def answer(request)
      @http.start unless @http.started?
      response = @http.request(request)
      Answer.new(response.code.to_i, response.body.to_s, response["Retry-After"]&.to_f)
    rescue *FAILURES => e
      close
      raise Unavailable, "chronocast: no answer from #{@config.url.host}:#{@config.url.port}: #{e.class}: #{e.message}"
    end
  end
end
