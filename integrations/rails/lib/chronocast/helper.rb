# frozen_string_literal: true

require "securerandom"
require_relative "stream_names"

module Chronocast
  # Where a stream stood when this request first asked. Controllers and views
  # share it through the request.
  module RequestPositions
    # stream_position reads where a stream stands, once per request, and has
    # turbo_stream_from put that into the page. Call it before the data is read,
    # so that nothing falls between the data and the position:
    #
    #   before_action -> { stream_position(:messages) }, only: :index
    def stream_position(*streamables)
      name = StreamNames.of(*streamables)
      known = chronocast_page[:positions]
      known.key?(name) ? known[name] : (known[name] = Chronocast.position(name))
    end

    private

    # chronocast_page is what this render knows: positions, and the token by which
    # the server tells this page from another with the same stream.
    def chronocast_page
      env = respond_to?(:request) && request ? request.env : (@chronocast_env ||= {})
      env["chronocast.page"] ||= { token: SecureRandom.urlsafe_base64(12), positions: {} }
    end
  end

  # The view helpers.
  module Helper
    include RequestPositions

    # turbo_stream_from is that of turbo-rails, with the stream's position added
    # as data-epoch, data-offset and data-page. The position is the one which the
    # controller has read by stream_position, else it is read now: put the tag
    # above the queries of its data then. When the server does not answer in time
    # the tag is the ordinary one.
    def turbo_stream_from(*streamables, **attributes)
      attributes[:data] = chronocast_data(streamables).merge(attributes[:data] || {})
      return super if defined?(super)

      raise ArgumentError, "streamables can't be blank" unless streamables.any?(&:present?)

      content_tag("turbo-cable-stream-source", nil,
                  { channel: "Turbo::StreamsChannel", "signed-stream-name": StreamNames.signed(*streamables) }.merge(attributes))
    end

    # chronocast_stream_from is the same with the element of chronocast/turbo,
    # which also resumes where it was after a cut. Without a key the name is not
    # signed: a server in open mode, which serves one machine, checks nothing.
    def chronocast_stream_from(*streamables, **attributes)
      raise ArgumentError, "streamables can't be blank" unless streamables.any?(&:present?)

      name = if Chronocast.config.key
               { channel: "Turbo::StreamsChannel", "signed-stream-name": StreamNames.signed(*streamables) }
             else
               { stream: StreamNames.of(*streamables) }
             end
      at = stream_position(*streamables)
      content_tag("chronocast-stream-source", nil, name.merge(at ? { epoch: at.epoch, offset: at.offset } : {}, attributes))
    end

    private

    def chronocast_data(streamables)
      at = stream_position(*streamables) or return {}
      { epoch: at.epoch, offset: at.offset, page: chronocast_page[:token] }
    end
  end
end
