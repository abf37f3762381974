# frozen_string_literal: true

require_relative "test_helper"

class AdapterTest < Minitest::Test
  # 5,000 broadcasts stay in order, take fewer than 100 POSTs and survive a kill of
  # the server in the middle, with nothing lost and nothing doubled.
  def test_5000_broadcasts_through_a_restart_in_under_100_posts
    chronocast = server
    between = proxy(chronocast)
    app = cable({ url: between.url })
    killed = Thread.new do
      wait_until("some are stored") { between.posts.size >= 3 }
      chronocast.stop
      chronocast.start
    end
    1.upto(5_000) { |n| app.broadcast("burst", n) }
    killed.join
    assert app.pubsub.flush(30), "everything is answered"
    assert_equal (1..5_000).to_a, numbers(chronocast, "burst")
    assert_operator between.posts.size, :<, 100
    puts "rails adapter: 5,000 broadcasts in #{between.posts.size} POSTs through a killed server, 0 lost, 0 doubled"
  end

  # The answer of every third POST is lost after it was carried out, every third
  # never arrives: each is repeated with its key and its bytes, and stored once.
  def test_a_lost_answer_neither_doubles_nor_loses
    chronocast = server
    between = proxy(chronocast) { |n, _| %i[swallow refuse pass][n % 3] }
    app = cable({ url: between.url, batch: 40 })
    1.upto(1_000) { |n| app.broadcast("lost answers", n) }
    assert app.pubsub.flush(30)
    assert_equal (1..1_000).to_a, numbers(chronocast, "lost answers")
    again = between.posts.group_by { |p| p[:key] }.values.select { |same| same.size > 1 }
    assert_operator again.size, :>, 5
    again.each { |same| assert_equal 1, same.map { |p| p[:body] }.uniq.size, "a repeated batch has the same bytes" }
  end

  # The payload is what Action Cable has encoded, byte for byte.
  def test_payloads_pass_through_unchanged
    chronocast = server
    app = cable({ url: chronocast.url })
    odd = ['{"b" : 1,"a":[1.0,-0,1e3]}', '"\u003cturbo-stream\u003e <b>&amp;</b>"', "null", "12345678901234567890", '"\ud83d\ude00 😀 \u2028"',
           "\"\u2028\u2029\"", '"' + "ä" * 100_000 + '"', ' { } ', '{"k":1,"k":2}', '""']
    odd.each { |text| app.broadcast("bytes", text, coder: nil) }
    app.broadcast("bytes", "<turbo-stream action=\"append\">&\u2028</turbo-stream>")
    app.broadcast("bytes", '"bin"'.b, coder: nil)
    assert app.pubsub.flush(10)
    want = odd + ['"\u003cturbo-stream action=\"append\"\u003e\u0026\u2028\u003c/turbo-stream\u003e"', '"bin"']
    assert_equal want, chronocast.log("bytes").map(&:last)
  end

  # Many threads broadcast at once; the order of each is kept.
  def test_each_thread_keeps_its_order
    chronocast = server
    app = cable({ url: chronocast.url, queue: 50 })
    8.times.map { |t| Thread.new { 250.times { |n| app.broadcast("threads", [t, n]) } } }.each(&:join)
    assert app.pubsub.flush(20)
    got = chronocast.log("threads").map { |_, text| JSON.parse(text) }
    assert_equal 2_000, got.size
    got.group_by(&:first).each_value { |mine| assert_equal (0...250).to_a, mine.map(&:last) }
  end

  # A forked process does not send what its parent has queued, and has a thread
  # and a connection of its own. Both flush at their end.
  def test_fork_neither_doubles_nor_loses
    chronocast = server
    held = Queue.new
    between = proxy(chronocast) { |n, _| held.pop if n == 1; :pass }
    app = cable({ url: between.url })
    app.broadcast("parent", 0)
    wait_until("a post is under way") { between.posts.size == 1 }
    1.upto(99) { |n| app.broadcast("parent", n) } # the children inherit a full queue
    children = 3.times.map do |c|
      fork do
        200.times { |n| app.broadcast("child #{c}", n) }
        exit!(app.pubsub.flush(20) ? 0 : 1)
      end
    end
    children.each { |pid| assert_equal 0, Process.wait2(pid)[1].exitstatus }
    held << true
    100.upto(199) { |n| app.broadcast("parent", n) }
    assert app.pubsub.flush(20)
    assert_equal (0..199).to_a, numbers(chronocast, "parent")
    3.times { |c| assert_equal (0..199).to_a, numbers(chronocast, "child #{c}") }
  end

  # With the server away the queue fills, then `broadcast` waits for `timeout` and
  # raises; in an outage that has lasted longer it raises at once. When the server
  # is back everything that was taken is stored.
  def test_a_full_queue_pushes_back_and_then_raises
    chronocast = server
    log = StringIO.new
    app = cable({ url: chronocast.url, queue: 20, timeout: 0.6 }, log: log)
    app.broadcast("full", 0)
    assert app.pubsub.flush(10)
    chronocast.stop
    20.times { |n| app.broadcast("full", n + 1) }
    error, took = raises_within(self, Chronocast::QueueFull, 3) { app.broadcast("full", 21) }
    assert_match(/not answering/, error.message)
    _, second = raises_within(self, Chronocast::QueueFull, 0.3) { app.broadcast("full", 21) }
    assert_operator second, :<, took + 0.3
    refute app.pubsub.flush(0.1)
    chronocast.start
    assert app.pubsub.flush(20)
    app.broadcast("full", 21)
    assert app.pubsub.flush(10)
    assert_equal (0..21).to_a, numbers(chronocast, "full")
    assert_equal 1, log.string.scan("trying again").size, "one line for an outage"
    assert_match(/takes broadcasts again/, log.string)
  end

  # The bound is one of bytes as well.
  def test_the_queue_is_bounded_in_bytes
    chronocast = server
    app = cable({ url: chronocast.url, queue_bytes: 1 << 20, timeout: 0 })
    chronocast.stop
    taken = 0
    assert_raises(Chronocast::QueueFull) { 100.times { app.broadcast("big", "x" * 100_000) && taken += 1; taken += 1 } }
    assert_includes 9..11, taken
  end

  # One broadcast that the server refuses costs the others nothing, and is told.
  def test_one_refused_broadcast_is_dropped_alone
    chronocast = server
    log = StringIO.new
    held = Queue.new
    between = proxy(chronocast) { |n, _| held.pop if n == 1; :pass }
    app = cable({ url: between.url }, log: log)
    drops = events("drop")
    app.broadcast("mixed", 0)
    wait_until("a post is under way") { between.posts.size == 1 }
    1.upto(50) { |n| app.broadcast("mixed", n) }
    app.broadcast("too deep", "[" * 600 + "]" * 600, coder: nil)
    51.upto(99) { |n| app.broadcast("mixed", n) }
    held << true
    assert app.pubsub.flush(20)
    assert_equal (0..99).to_a, numbers(chronocast, "mixed")
    assert_equal [[1, ["too deep"], 422]], drops.map { |d| [d[:count], d[:streams], d[:error].status] }
    assert_match(/1 broadcasts are lost \(too deep\).*422/, log.string)
    refute_match(/\[\[\[/, log.string, "payloads stay out of the log")
  end

  # What nobody could store is refused at once, where it was broadcast.
  def test_the_impossible_raises_in_the_caller
    app = cable({ url: "http://127.0.0.1:1", max_payload: 1_000 })
    ["", "a\nb", "x" * 256, "\xff", "\u0085"].each do |name|
      assert_raises(Chronocast::InvalidBroadcast, name.inspect) { app.broadcast(name, 1) }
    end
    assert_raises(Chronocast::InvalidBroadcast) { app.broadcast("a", "x" * 999) }
    assert_raises(Chronocast::InvalidBroadcast) { app.broadcast("a", "\"\xff\"", coder: nil) }
  end

  # A wrong key: the broadcasts are dropped with a word in the log, and the next
  # ones raise instead of being forgotten in silence.
  def test_a_refused_key_raises
    log = StringIO.new
    stub = proxy { [401, '{"error":"unauthorized","message":"this key may not publish"}'] }
    app = cable({ url: stub.url, key: "secret-key" }, log: log)
    app.broadcast("a", 1)
    assert app.pubsub.flush(10)
    error = assert_raises(Chronocast::Refused) { app.broadcast("a", 2) }
    assert_equal 401, error.status
    assert_match(/unauthorized: this key may not publish/, log.string)
    refute_match(/secret-key/, log.string + app.pubsub.instance_variable_get(:@config).inspect)
    assert_equal "Bearer secret-key", stub.posts.first[:authorization]
  end

  # The key is derived from the secret as the server derives it.
  def test_the_key_is_derived_from_the_secret
    assert_equal OpenSSL::HMAC.hexdigest("SHA256", "s3cr3t", "broadcast-cable"), Chronocast::Config.new({ secret: "s3cr3t" }, env: {}).key
    assert_equal "k", Chronocast::Config.new({ "key" => "k", "secret" => "s" }, env: {}).key
    assert_equal "e", Chronocast::Config.new({}, env: { "CHRONOCAST_KEY" => "e" }).key
    assert_nil Chronocast::Config.new({}, env: {}).key
  end

  def test_settings_are_checked
    { queue: 0, batch: 1_001, timeout: "soon", give_up: 4_000, url: "cable", read_timeout: -1 }.each do |field, value|
      error = assert_raises(Chronocast::ConfigError) { Chronocast::Config.new({ field => value }, env: {}) }
      assert_match(/#{field}/, error.message)
    end
  end

  # 503 and 429 are tried again, after a pause.
  def test_an_overloaded_server_is_asked_again
    chronocast = server
    between = proxy(chronocast) { |n, _| n <= 3 ? [[503, "{}"], [429, "{}"], [507, "{}"]][n - 1] : :pass }
    app = cable({ url: between.url })
    retries = events("retry")
    app.broadcast("busy", 1)
    assert app.pubsub.flush(10)
    assert_equal [1], numbers(chronocast, "busy")
    assert_equal 3, retries.size
  end

  # A batch that nobody takes is given up in time, before its key is forgotten.
  def test_a_batch_is_given_up
    app = cable({ url: "http://127.0.0.1:1", give_up: 1 })
    drops = events("drop")
    app.broadcast("gone", 1)
    assert app.pubsub.flush(10)
    assert_equal [["gone"]], drops.map { |d| d[:streams] }
  end

  # A writer thread that is killed in the middle of a POST is replaced by one that
  # goes on with the same batch and key.
  def test_a_killed_writer_is_replaced
    chronocast = server
    hold = Queue.new
    between = proxy(chronocast) { |n, _| n == 1 ? :swallow.tap { hold.pop } : :pass }
    app = cable({ url: between.url })
    app.broadcast("killed", 1)
    wait_until("a post is under way") { between.posts.size == 1 }
    Thread.list.find { |t| t.name == "chronocast" && t.alive? }.kill.join
    hold << true
    wait_until("the first is stored") { numbers(chronocast, "killed") == [1] }
    app.broadcast("killed", 2)
    assert app.pubsub.flush(10)
    assert_equal [1, 2], numbers(chronocast, "killed")
    assert_equal between.posts[0][:key], between.posts[1][:key]
  end

  # A process that ends flushes, and does not wait for ever for a server that is away.
  def test_the_end_of_a_process_flushes_within_its_deadline
    chronocast = server
    script = <<~RUBY
      require "active_support"; require "active_support/core_ext"; require "active_support/inflector"; require "action_cable"; require "action_cable/subscription_adapter/chronocast"; require "logger"
      config = ActionCable::Server::Configuration.new
      config.cable = { "adapter" => "chronocast", "url" => ARGV[0], "flush" => 1 }
      config.logger = Logger.new($stderr, level: :info)
      app = ActionCable::Server::Base.new(config: config)
      500.times { |n| app.broadcast("exit", n) }
    RUBY
    lib = File.expand_path("../lib", __dir__)
    assert system("ruby", "-I", lib, "-e", script, chronocast.url)
    assert_equal (0..499).to_a, numbers(chronocast, "exit")
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    said, = IO.pipe.tap { |r, w| assert system("ruby", "-I", lib, "-e", script, "http://127.0.0.1:1", err: w); w.close }
    assert_match(/500 broadcasts had no answer/, said.read)
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 10
  end

  # Nobody is served by Rails any more: a subscription says so, and Action Cable's
  # internal channel goes through.
  def test_subscriptions_of_rails_are_refused_with_a_word
    app = cable({ url: "http://127.0.0.1:1" })
    error = assert_raises(Chronocast::NotServedHere) { app.pubsub.subscribe("room", proc {}) }
    assert_match(/config.action_cable.url/, error.message)
    confirmed = false
    app.pubsub.subscribe("action_cable/user", proc {}, -> { confirmed = true })
    assert confirmed
    app.pubsub.unsubscribe("action_cable/user", proc {})
  end

  # remote_connections.where(…).disconnect is passed on, after what was broadcast before.
  def test_remote_disconnects_pass_through_in_their_place
    stub = proxy
    app = cable({ url: stub.url, key: "k" })
    app.config.connection_class = -> { Class.new(ActionCable::Connection::Base) { identified_by :current_user } }
    app.broadcast("a", 1)
    app.remote_connections.where(current_user: "user-7").disconnect
    app.broadcast("a", 2)
    assert app.pubsub.flush(10)
    assert_equal ["/broadcast", "/disconnect", "/broadcast"], stub.posts.map { |p| p[:path] }
    assert_equal({ "sub" => "user-7", "reconnect" => true }, JSON.parse(stub.posts[1][:body]))
  end

  # A server with a secret: the derived key publishes, disconnects and reads
  # positions, another key does none of it.
  def test_the_secret_opens_a_real_server
    secret = "a-secret-of-the-tests-of-thirty-two-bytes"
    chronocast = server(flags: ["--secret", secret])
    delivered = events("deliver")
    app = cable({ url: chronocast.url, secret: secret })
    app.config.connection_class = -> { Class.new(ActionCable::Connection::Base) { identified_by :current_user } }
    app.broadcast("a", 1)
    assert app.pubsub.flush(10)
    app.remote_connections.where(current_user: "user-7").disconnect
    assert app.pubsub.flush(10)
    assert_equal [1, 1], delivered.map { |d| d[:count] }
    at = Chronocast::Positions.new(Chronocast::Config.new({ url: chronocast.url, secret: secret }, env: {})).of("a")
    assert_equal 1, at.offset
    other = Chronocast::Config.new({ url: chronocast.url, secret: "another-secret-of-thirty-two-bytes-or-more" }, env: {})
    assert_nil Chronocast::Positions.new(other).of("a")
    stranger = cable({ url: chronocast.url, key: other.key })
    stranger.broadcast("a", 2)
    assert stranger.pubsub.flush(10)
    assert_raises(Chronocast::Refused) { stranger.broadcast("a", 3) }
  end
end
