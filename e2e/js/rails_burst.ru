# frozen_string_literal: true

# Plain Action Cable, as Rails ships it with the PostgreSQL adapter, beside
# Chronocast: one process broadcasts everything to both, one page reads both by
# the same client.
require "active_record/railtie"
require "action_controller/railtie"
require "action_cable/engine"
$LOAD_PATH.unshift File.expand_path("../../integrations/rails/lib", __dir__)
require "chronocast"

class Burst < Rails::Application
  config.root = __dir__
  config.load_defaults 6.1
  config.eager_load = true
  config.secret_key_base = "0" * 128
  config.logger = Logger.new($stderr)
  config.log_level = :warn
  config.hosts.clear
  config.action_cable.cable = { "adapter" => "postgresql" }
  config.action_cable.disable_request_forgery_protection = true
  config.paths.add "config/database", with: "rails_burst.yml"
end

Burst.initialize!

module ApplicationCable
  class Connection < ActionCable::Connection::Base; end
  class Channel < ActionCable::Channel::Base; end
end

class BurstChannel < ApplicationCable::Channel
  def subscribed
    stream_from "burst"
  end
end

through_chronocast = ActionCable::Server::Configuration.new.then do |config|
  config.cable = { "adapter" => "chronocast" }
  config.logger = Rails.logger
  ActionCable::Server::Base.new(config: config)
end

PAGE = <<~HTML
  <!doctype html><link rel="icon" href="data:,"><title>Burst</title>
  <script type="module">
    import { createConsumer } from "/actioncable.js"
    globalThis.got = { plain: [], chronocast: [] }
    globalThis.ready = {}
    const read = (name, url, params) => createConsumer(url).subscriptions.create(params, {
      connected: () => ready[name] = true, received: data => got[name].push(data.n),
    })
    read("plain", "/cable", "BurstChannel")
    read("chronocast", "#{ENV.fetch("CABLE_URL")}", { channel: "$pubsub", stream_name: "burst" })
  </script>
HTML

client = File.read(File.expand_path("../node_modules/@rails/actioncable/app/assets/javascripts/actioncable.esm.js", __dir__))
Burst.routes.draw do
  get "/", to: ->(_) { [200, { "content-type" => "text/html" }, [PAGE]] }
  get "actioncable.js", to: ->(_) { [200, { "content-type" => "text/javascript" }, [client]] }, format: false
  get "burst", to: lambda { |env|
    1.upto(Rack::Request.new(env).params["n"].to_i) do |n|
      ActionCable.server.broadcast("burst", { n: n, html: "<turbo-stream action=\"append\" target=\"messages\">" * 3 })
      through_chronocast.broadcast("burst", { n: n, html: "<turbo-stream action=\"append\" target=\"messages\">" * 3 })
    end
    [through_chronocast.pubsub.flush(20) ? 200 : 500, {}, []]
  }
end

run Rails.application
