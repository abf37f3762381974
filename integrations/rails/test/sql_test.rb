# frozen_string_literal: true

require_relative "test_helper"
require "active_record"

DATABASE = ENV.fetch("CHRONOCAST_TEST_DATABASE") { abort "CHRONOCAST_TEST_DATABASE must name an empty PostgreSQL database to test with" }

# Broadcasts inside transactions, with a real PostgreSQL and a real server on it.
class SQLTest < Minitest::Test
  class Note < ActiveRecord::Base
    self.table_name = "rails_notes"
  end

  def self.chronocast
    @chronocast ||= ChronocastServer.new(database: DATABASE).tap do |s|
      Minitest.after_run { s.close }
      ActiveRecord::Base.establish_connection(DATABASE)
      ActiveRecord::Base.connection.execute("CREATE TABLE IF NOT EXISTS rails_notes (id bigserial PRIMARY KEY, body text)")
    end
  end

  def setup
    @chronocast = self.class.chronocast
    @stream = "sql #{name}"
  end

  def texts
    @chronocast.log(@stream).map(&:last)
  end

  # B95: what is rolled back was never there, not even as a used offset.
  def test_B95_a_message_exists_if_and_only_if_its_transaction_commits
    Note.transaction do
      Note.create!(body: "kept")
      at = Chronocast.broadcast(@stream, { n: 1 })
      assert_match(/\A\d{16}:1\z/, at.to_s)
      assert_empty texts, "nobody sees it before the commit"
    end
    Note.transaction do
      Note.create!(body: "gone")
      assert_equal 2, Chronocast.broadcast(@stream, { n: 2 }).offset
      raise ActiveRecord::Rollback
    end
    Note.transaction do
      Chronocast.broadcast(@stream, { n: 3 })
      Note.transaction(requires_new: true) do
        Chronocast.broadcast(@stream, { n: 4 })
        raise ActiveRecord::Rollback
      end
    end
    assert_equal [[1, '{"n":1}'], [2, '{"n":3}']], @chronocast.log(@stream)
    assert_equal ["kept"], Note.pluck(:body)
  ensure
    Note.delete_all
  end

  # Two transactions: the order is that of the commits, whoever began first.
  def test_the_order_is_that_of_commits
    turns = Queue.new
    inserted = Queue.new
    slow = Thread.new do
      Note.transaction do
        Note.create!(body: "slow")
        inserted << true
        turns.pop
        Chronocast.broadcast(@stream, "slow")
      end
    end
    inserted.pop
    Note.transaction { Note.create!(body: "fast") && Chronocast.broadcast(@stream, "fast") }
    turns << true
    slow.join
    assert_equal ['"fast"', '"slow"'], texts
  ensure
    Note.delete_all
  end

  # B05: eight processes' worth of writers race on one row; what the newest
  # message says is what the row holds.
  def test_B05_the_newest_message_is_the_newest_state
    note = Note.create!(body: "0")
    8.times.map do
      Thread.new do
        25.times { note.class.find(note.id).with_lock { |*| Note.find(note.id).then { |n| n.update!(body: n.body.to_i + 1) && Chronocast.broadcast(@stream, n.body.to_i) } } }
        ActiveRecord::Base.connection_handler.clear_active_connections!
      end.tap { |t| t.report_on_exception = true }
    end.each_slice(4) { |some| some.each(&:join) }
    assert_equal (1..200).map(&:to_s), texts
    assert_equal "200", note.reload.body
  ensure
    Note.delete_all
  end

  # B91: from a byte to a mebibyte, the text that went in is the text that comes out.
  def test_B91_a_mebibyte_goes_through_postgresql
    sizes = [1, 7_999, 8_000, 8_001, 65_536, (1 << 20) - 2]
    sizes.each { |n| Chronocast.broadcast(@stream, json: "\"#{("ä" * (n / 2)) + ("x" * (n % 2))}\"") }
    got = texts
    assert_equal sizes.map { |n| n + 2 }, got.map(&:bytesize)
    assert_equal sizes.map { |n| "\"#{("ä" * (n / 2)) + ("x" * (n % 2))}\"" }, got
    assert_raises(Chronocast::InvalidBroadcast) { Chronocast.broadcast(@stream, json: "\"#{"x" * ((1 << 20) - 1)}\"") }
    assert_equal sizes.size, texts.size
  end

  def test_payloads_are_the_bytes_that_came_in
    odd = ['{"b" : 1,"a":[1.0,-0,1e3]}', '"\u0000 \\\\ \' \""', "null", '"\ud83d\ude00 😀"', ' { } ', '{"k":1,"k":2}']
    odd.each { |text| Chronocast.broadcast(@stream, json: text) }
    Chronocast.broadcast(@stream, "<b>&</b>")
    assert_equal odd + ['"\u003cb\u003e\u0026\u003c/b\u003e"'], texts
    error = assert_raises(ActiveRecord::StatementInvalid) { Chronocast.broadcast(@stream, json: "{") }
    assert_kind_of PG::Error, error.cause
  end

  def test_a_key_makes_a_repeated_call_store_once
    first = Chronocast.broadcast(@stream, { n: 1 }, key: "k")
    assert_equal first, Chronocast.broadcast(@stream, { n: 1 }, key: "k")
    assert_raises(ActiveRecord::RecordNotUnique) { Chronocast.broadcast(@stream, { n: 2 }, key: "k") }
    assert_equal ['{"n":1}'], texts
  end

  # `transactional: true`: what Action Cable broadcasts inside a transaction is part of it.
  def test_the_adapter_joins_an_open_transaction
    app = cable({ url: @chronocast.url, transactional: true })
    Note.transaction do
      app.broadcast(@stream, "inside, rolled back")
      raise ActiveRecord::Rollback
    end
    Note.transaction { app.broadcast(@stream, "inside") }
    assert_equal ['"inside"'], texts
    app.broadcast(@stream, "outside")
    assert app.pubsub.flush(10)
    assert_equal ['"inside"', '"outside"'], texts
    plain = cable({ url: @chronocast.url })
    Note.transaction do
      plain.broadcast(@stream, "at once")
      assert plain.pubsub.flush(10)
      assert_equal '"at once"', texts.last
      raise ActiveRecord::Rollback
    end
  end

  # The payload is not in the log of SQL statements.
  def test_payloads_stay_out_of_the_log
    log = StringIO.new
    before, ActiveRecord::Base.logger = ActiveRecord::Base.logger, Logger.new(log)
    Chronocast.broadcast(@stream, "a confidential word")
    assert_match(/chronocast.broadcast/, log.string)
    refute_match(/confidential/, log.string)
  ensure
    ActiveRecord::Base.logger = before
  end
end
