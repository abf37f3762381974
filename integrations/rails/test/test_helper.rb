# frozen_string_literal: true

# Against the real server: CHRONOCAST_BINARY names it.
$LOAD_PATH.unshift File.expand_path("../lib", __dir__)
require "logger"
require "minitest/autorun"
require "net/http"
require "socket"
require "stringio"
require "tmpdir"
require "timeout"
require "active_support"
require "active_support/core_ext"
require "active_support/inflector"
require "action_cable"
require "action_cable/subscription_adapter/chronocast"

BINARY = ENV.fetch("CHRONOCAST_BINARY") { abort "CHRONOCAST_BINARY must name the server to test with: go build -o bin/chronocast ./cmd/chronocast" }

# ChronocastServer is a process of the real server with a database and a port of its own.
class ChronocastServer
  attr_reader :port, :url

  def initialize(database: nil, flags: [])
    @dir = Dir.mktmpdir("chronocast-rails-")
    @port = Addrinfo.tcp("127.0.0.1", 0).bind { |s| s.local_address.ip_port }
    @url = "http://127.0.0.1:#{@port}"
    @database = database
    @flags = flags
    start
  end

  def start
    env = @database ? { "CHRONOCAST_DATABASE" => @database } : {}
    from = @database ? ["--life-file", "#{@dir}/life.json"] : ["--database", "sqlite:#{@dir}/chronocast.db"]
    @pid = Process.spawn(env, BINARY, "serve", "--addr", "127.0.0.1:#{@port}", *from, *@flags, chdir: @dir, out: "#{@dir}/log", err: "#{@dir}/log")
    wait_until("the server is ready") { Net::HTTP.get_response(URI("#{@url}/readyz")).code == "200" rescue false }
  end

  def stop(signal = :KILL)
    Process.kill(signal, @pid)
    Process.wait(@pid)
    @pid = nil
  end

  def close
    stop if @pid
    FileUtils.remove_entry(@dir)
  end

  # log is everything a stream has kept, as [offset, text] of the answer's own bytes.
  def log(stream)
    path = "#{@url}/streams/#{ERB::Util.url_encode(stream)}/messages"
    after = nil
    all = []
    loop do
      body = Net::HTTP.get(URI("#{path}?limit=10000#{"&after=#{after}" if after}"))
      page = JSON.parse(body, max_nesting: false)
      texts = body.force_encoding("UTF-8").scan(/\{"offset":(\d+),"data":(.*?),"at":\d+\}/m)
      all.concat(texts.map { |offset, text| [offset.to_i, text] })
      return all unless page["more"]

      after = "#{page["epoch"]}:#{all.last[0]}"
    end
  end
end

# Proxy stands between the adapter and the server: it counts POSTs, and the block
# decides what becomes of each, by its number from 1: :pass, :swallow (carried
# out, but the answer is lost), :refuse (cut before it is carried out), or a
# [status, body] to answer with. Without a server it answers 201.
class Proxy
  attr_reader :url, :posts

  def initialize(server = nil, &decide)
    @server = server
    @decide = decide || proc { :pass }
    @posts = []
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "http://127.0.0.1:#{@listener.local_address.ip_port}"
    @lock = Mutex.new
    @thread = Thread.new { loop { Thread.new(@listener.accept) { |s| serve(s) } } }
  end

  def close
    @thread.kill
    @listener.close
  end

  private

  def serve(client)
    while (line = client.gets)
      headers = {}
      while (header = client.gets.chomp) != ""
        name, value = header.split(": ", 2)
        headers[name.downcase] = value
      end
      body = client.read(headers["content-length"].to_i)
      request = { path: line.split[1], body: body, key: headers["idempotency-key"], authorization: headers["authorization"] }
      number = @lock.synchronize { (@posts << request).size }
      case verdict = @decide.call(number, request)
      when :refuse then break
      when Array then answer(client, *verdict)
      else
        status, text = forward(request, headers)
        break if verdict == :swallow

        answer(client, status, text)
      end
    end
  rescue SystemCallError, IOError
    nil
  ensure
    client.close
  end

  def forward(request, headers)
    return [201, "[]"] unless @server

    uri = URI(@server.url + request[:path])
    post = Net::HTTP::Post.new(uri, headers.slice("idempotency-key", "content-type", "authorization"))
    post.body = request[:body]
    response = Net::HTTP.start(uri.host, uri.port, nil) { |http| http.request(post) }
    [response.code.to_i, response.body]
  end

  def answer(client, status, text)
    client.write("HTTP/1.1 #{status} X\r\nContent-Length: #{text.bytesize}\r\nContent-Type: application/json\r\n\r\n#{text}")
  end
end

module Helpers
  # cable returns an Action Cable server whose cable.yml says this.
  def cable(settings, log: StringIO.new)
    config = ActionCable::Server::Configuration.new
    config.cable = { "adapter" => "chronocast" }.merge(settings.transform_keys(&:to_s))
    config.logger = Logger.new(log, level: :info)
    server = ActionCable::Server::Base.new(config: config)
    (@cables ||= []) << server
    server
  end

  def server(**options)
    (@servers ||= []).push(ChronocastServer.new(**options)).last
  end

  def proxy(to = nil, &decide)
    (@proxies ||= []).push(Proxy.new(to, &decide)).last
  end

  # events collects what happens under a name of ActiveSupport::Notifications.
  def events(name)
    seen = []
    (@subscribers ||= []) << ActiveSupport::Notifications.subscribe("#{name}.chronocast") { |*, fields| seen << fields }
    seen
  end

  def teardown
    @cables&.each { |c| c.pubsub.send(:instance_variable_get, :@publisher).close(0.1) }
    @proxies&.each(&:close)
    @servers&.each(&:close)
    @subscribers&.each { |s| ActiveSupport::Notifications.unsubscribe(s) }
    super
  end

  def numbers(server, stream)
    server.log(stream).map { |_, text| Integer(text) }
  end
end

Minitest::Test.include(Helpers)

def wait_until(what, seconds = 20)
  deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
  until yield
    raise "not within #{seconds} s: #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

    Thread.pass
    IO.select(nil, nil, nil, 0.01)
  end
end

# outage returns how long it took until the block raised this error.
def raises_within(test, error, seconds)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  raised = test.assert_raises(error) { yield }
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  test.assert_operator took, :<, seconds
  [raised, took]
end
