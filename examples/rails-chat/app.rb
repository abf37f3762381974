# frozen_string_literal: true

# A chat in one file: Rails 6.1 or newer, Turbo, Chronocast.
require "active_record/railtie"
require "action_controller/railtie"
require "action_view/railtie"
require "action_cable/engine"
$LOAD_PATH.unshift File.expand_path("../../integrations/rails/lib", __dir__) # or: gem "chronocast-rails"
require "chronocast"

class Chat < Rails::Application
  config.root = __dir__
  config.paths["app/views"] = "views"
  config.load_defaults 6.1
  config.eager_load = true
  config.consider_all_requests_local = true
  config.secret_key_base = ENV.fetch("SECRET_KEY_BASE") { "0" * 128 } # a real one in real life
  config.logger = Logger.new($stderr)
  config.log_level = ENV.fetch("LOG_LEVEL", "info")
  config.hosts.clear

  # Browsers connect to Chronocast, nobody to this process.
  config.action_cable.url = ENV.fetch("CABLE_URL", "ws://127.0.0.1:8080/cable")
  config.action_cable.mount_path = nil
end

Chat.initialize!

Chat.routes.draw do
  root "rooms#index"
  resources(:rooms, only: %i[index show]) { resources :messages, only: :create }
  turbo = ENV.fetch("TURBO_JS") { "#{__dir__}/node_modules/@hotwired/turbo/dist/turbo.es2017-esm.js" }
  get "turbo.js", to: ->(_) { [200, { "content-type" => "text/javascript" }, [File.read(turbo)]] }, format: false
end

class Room < ActiveRecord::Base
  has_many :messages

  # The lock makes the order of ids the order of commits, which is that of the stream.
  def say(author, body)
    with_lock { messages.create!(author: author, body: body) }
  end
end

class Message < ActiveRecord::Base
  belongs_to :room
  validates :author, length: { in: 1..40 }
  validates :body, length: { in: 1..2_000 }

  # Still inside the transaction: it is delivered if and only if that commits.
  # With turbo-rails this is: broadcast_append_to :room, room, target: "messages"
  after_create do
    html = ApplicationController.render(partial: "messages/message", locals: { message: self })
    ActionCable.server.broadcast Chronocast::StreamNames.of(:room, room),
                                 %(<turbo-stream action="append" target="messages"><template>#{html}</template></turbo-stream>)
  end
end

class ApplicationController < ActionController::Base; end

class RoomsController < ApplicationController
  SHOWN = Integer(ENV.fetch("SHOWN", 200))

  # Where the stream stands, read before the data: nothing falls in between.
  before_action -> { stream_position(:room, @room = Room.find(params[:id])) }, only: :show

  def index
    @rooms = Room.order(:id)
  end

  def show
    @messages = @room.messages.last(SHOWN)
  end
end

class MessagesController < ApplicationController
  def create
    @room = Room.find(params[:room_id])
    session[:author] = params.require(:message)[:author]
    @message = @room.say(session[:author], params[:message][:body])
    @message = nil
  rescue ActiveRecord::RecordInvalid => e
    @message = e.record
  ensure
    form = render_to_string(partial: "messages/form", formats: :html)
    render body: %(<turbo-stream action="replace" target="new_message"><template>#{form}</template></turbo-stream>),
           content_type: "text/vnd.turbo-stream.html"
  end
end

unless Room.table_exists?
  ActiveRecord::Schema.verbose = false
  ActiveRecord::Schema.define do
    create_table(:rooms) { |t| t.string :name, null: false }
    create_table(:messages) do |t|
      t.references :room, null: false
      t.string :author, null: false
      t.text :body, null: false
      t.timestamps
    end
  end
  %w[Harbour Lighthouse].each { |name| Room.create!(name: name) }
end
