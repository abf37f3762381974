# frozen_string_literal: true

# The example's rooms on a page as a Rails team has it today: turbo_stream_from,
# and the unmodified client and element of turbo-rails.
require_relative "../../examples/rails-chat/app"

class StockController < ApplicationController
  layout false
  before_action -> { stream_position(:room, @room = Room.find(params[:id])) }

  def show
    @messages = @room.messages.order(:id)
    render inline: <<~ERB
      <!doctype html><link rel="icon" href="data:,"><title>Stock</title>
      <%= action_cable_meta_tag %>
      <script type="module" src="/turbo-rails.js"></script>
      <%= turbo_stream_from :room, @room %>
      <ol id="messages"><%= render partial: "messages/message", collection: @messages %></ol>
    ERB
  end
end

client = File.read(File.expand_path("../node_modules/@hotwired/turbo-rails/app/assets/javascripts/turbo.js", __dir__))
Rails.application.routes.disable_clear_and_finalize = true
Rails.application.routes.draw do
  get "stock/:id", to: "stock#show"
  get "turbo-rails.js", to: ->(_) { [200, { "content-type" => "text/javascript" }, [client]] }, format: false
end
Rails.application.routes.finalize!

run Rails.application
