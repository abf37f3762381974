# frozen_string_literal: true

require "json"
require "active_support"
require "active_support/message_verifier"
require "active_support/core_ext/object/to_param"
require "active_support/core_ext/object/try"

module Chronocast
  # The names of streams, and their signatures, as turbo-rails makes them. With
  # turbo-rails loaded its own methods are used.
  module StreamNames
    PURPOSE = "turbo/signed_stream_verifier_key"

    class << self
      # verifier_key: only to be set where there is neither turbo-rails nor a Rails application.
      attr_writer :verifier_key

      # of returns the name of the stream of these streamables: strings, symbols,
      # records, arrays of them.
      def of(*streamables)
        name(streamables.size == 1 ? streamables.first : streamables)
      end

      # signed returns the name in the form that a page may show.
      def signed(*streamables)
        return ::Turbo::StreamsChannel.signed_stream_name(streamables) if turbo?

        verifier.generate(of(*streamables))
      end

      def turbo?
        !!(defined?(::Turbo::StreamsChannel) && ::Turbo::StreamsChannel.respond_to?(:signed_stream_name))
      end

      private

      def name(streamable)
        return streamable.map { |s| name(s) }.join(":") if streamable.is_a?(Array)

        streamable.try(:to_gid_param) || streamable.to_param.to_s
      end

      def verifier
        @verifiers ||= {}
        @verifiers[key] ||= ActiveSupport::MessageVerifier.new(key, digest: "SHA256", serializer: JSON)
      end

      def key
        @verifier_key || (@rails_key ||= ::Rails.application.key_generator.generate_key(PURPOSE))
      end
    end
  end
end
