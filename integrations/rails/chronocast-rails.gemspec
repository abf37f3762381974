# frozen_string_literal: true

require_relative "lib/chronocast/version"

Gem::Specification.new do |s|
  s.name = "chronocast-rails"
  s.version = Chronocast::VERSION
  s.summary = "Action Cable and Turbo Streams through Chronocast: every broadcast once, in order, recoverable"
  s.description = "An Action Cable subscription adapter that hands broadcasts to a Chronocast server, a turbo_stream_from that " \
    "carries the stream's position, and broadcasts that are part of an Active Record transaction on PostgreSQL."
  s.authors = ["The Chronocast authors"]
  s.required_ruby_version = ">= 2.7"
  s.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "README.md"] }
  s.require_paths = ["lib"]
  s.add_dependency "actioncable", ">= 6.1", "< 8.3"
end
