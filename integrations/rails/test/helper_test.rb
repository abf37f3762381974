# frozen_string_literal: true

require_relative "test_helper"
require "action_view"
require "action_dispatch"

class HelperTest < Minitest::Test
  # key derives Turbo's key from a secret_key_base of 128 zeros: by SHA-256 as Rails 7 and newer do by default, or by SHA-1.
  def self.key(digest)
    OpenSSL::PKCS5.pbkdf2_hmac("0" * 128, "turbo/signed_stream_verifier_key", 1000, 64, digest)
  end

  Record = Struct.new(:id) do
    def to_gid_param
      "Z2lkOi8vZHVtbXkvTWVzc2FnZS8#{id}"
    end
  end

  def setup
    Chronocast::StreamNames.verifier_key = HelperTest.key("SHA256")
  end

  def teardown
    Chronocast.config = nil
    Chronocast::StreamNames.verifier_key = nil
    super
  end

  # A view of one request.
  def view(env = {})
    ActionView::Base.empty.tap do |view|
      view.extend(Chronocast::Helper)
      request = ActionDispatch::Request.new(env)
      view.define_singleton_method(:request) { request }
    end
  end

  def use(url, **more)
    Chronocast.config = Chronocast::Config.new({ url: url }.merge(more), env: {})
  end

  # The names and signatures of turbo-rails.
  def test_names_are_signed_as_turbo_rails_signs_them
    assert_equal "Im1lc3NhZ2VzIg==--fb308ec9d90c369e4e349458a6a024901bfb977f5639c6f31986c1cf353bba01", Chronocast::StreamNames.signed(:messages)
    assert_equal "IloybGtPaTh2WkhWdGJYa3ZUV1Z6YzJGblpTOHg6ZW50cmllcyI=--735e1c84dc044007be5c38a63c5fdb074a340be0b3b9eb68d1511a4e10d582e5",
                 Chronocast::StreamNames.signed(Record.new("x"), :entries)
    Chronocast::StreamNames.verifier_key = HelperTest.key("SHA1")
    assert_equal "Im1lc3NhZ2VzIg==--981b56126cb0033cc08882e6c5f5eece859c096c987e37b3b813c86d365b5bfe", Chronocast::StreamNames.signed(:messages)
    assert_equal "a:b:c", Chronocast::StreamNames.of("a", [:b, "c"])
  end

  # The ordinary tag, with where the stream stood.
  def test_the_tag_carries_the_position
    chronocast = server
    cable({ url: chronocast.url }).tap { |app| 3.times { |n| app.broadcast("messages", n) } }.pubsub.flush(10)
    use(chronocast.url)
    html = view.turbo_stream_from(:messages, id: "x", data: { more: 1 })
    assert_match(/\A<turbo-cable-stream-source channel="Turbo::StreamsChannel" signed-stream-name="Im1lc3NhZ2VzIg==--fb30\h+" /, html)
    assert_match(/data-epoch="\d{16}" data-offset="3" data-page="[\w-]{16}" data-more="1"/, html)
    assert_match(/ id="x"/, html)
    assert_match(/\A<chronocast-stream-source stream="messages" epoch="\d{16}" offset="3">/, view.chronocast_stream_from(:messages))
    use(chronocast.url, key: "k")
    assert_match(/\A<chronocast-stream-source channel="Turbo::StreamsChannel" signed-stream-name="Im1lc3NhZ2VzIg==--\h+"/, view.chronocast_stream_from(:messages))
  end

  # A position read in the controller, before the data, is the one in the page.
  def test_the_position_is_the_one_read_before_the_data
    chronocast = server
    app = cable({ url: chronocast.url })
    use(chronocast.url)
    env = {}
    first = view(env)
    first.stream_position(:messages)
    app.broadcast("messages", 1)
    assert app.pubsub.flush(10)
    assert_match(/data-offset="0"/, first.turbo_stream_from(:messages))
    second = view({})
    assert_match(/data-offset="1"/, second.turbo_stream_from(:messages))
    tokens = [first, second, first].map { |v| v.turbo_stream_from(:messages)[/data-page="([^"]+)"/, 1] }
    assert_equal tokens[0], tokens[2]
    refute_equal tokens[0], tokens[1]
  end

  # A server that is away or stands still costs a page a quarter of a second, and
  # the next ones nothing; the tag is the ordinary one then.
  def test_a_page_does_not_wait_for_a_server_that_is_away
    silent = TCPServer.new("127.0.0.1", 0)
    ["http://127.0.0.1:1", "http://127.0.0.1:#{silent.local_address.ip_port}"].each do |url|
      use(url)
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      20.times { refute_match(/data-/, view.turbo_stream_from(:messages)) }
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 1
    end
  ensure
    silent.close
  end

  # Over the turbo_stream_from of turbo-rails, which is called.
  def test_turbo_rails_own_helper_is_used
    chronocast = server
    use(chronocast.url)
    turbo = Module.new { def turbo_stream_from(*streamables, **attributes) = [streamables, attributes] }
    v = ActionView::Base.empty.extend(turbo).extend(Chronocast::Helper)
    streamables, attributes = v.turbo_stream_from(:messages, class: "c")
    assert_equal [:messages], streamables
    assert_equal %i[class data], attributes.keys.sort
    assert_equal %i[epoch offset page], attributes[:data].keys
  end

  def test_blank_streamables_are_refused
    use("http://127.0.0.1:1")
    assert_raises(ArgumentError) { view.turbo_stream_from("") }
    assert_raises(ArgumentError) { view.chronocast_stream_from(nil) }
  end
end
