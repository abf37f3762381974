package hub

import "sync/atomic"

// Stats counts what a hub has done since it was made. Streams, Subscriptions
// and the byte figures are of this moment.
type Stats struct {
	Streams       int64 // in memory, with and without subscribers
	Subscriptions int64
	WindowBytes   int64

	Published  uint64 // messages handed in for streams in memory
	Overflowed uint64 // of those, dropped because too many were waiting
	Passed     uint64 // messages that passed a gate, each once per stream
	Encodes    uint64 // calls of Codec.Frames
	Delivered  uint64 // messages pushed to sinks, live and caught up
	Lagged     uint64 // times a live subscription could not take a push
	Replays    uint64
	Resets     uint64 // subscriptions told that they cannot be continued
	Cuts       uint64 // of those, by ending the connection
	LogReads   uint64
	LogErrors  uint64
	GapsFilled uint64 // gaps closed by reading the log
	Evicted    uint64 // windows dropped to stay within the total
}

type counters struct {
	streams, subscriptions                   atomic.Int64
	published, overflowed, passed, encodes   atomic.Uint64
	delivered, lagged, replays, resets, cuts atomic.Uint64
	logReads, logErrors, gapsFilled, evicted atomic.Uint64
}

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	n := &h.n
	return Stats{
		Streams:       n.streams.Load(),
		Subscriptions: n.subscriptions.Load(),
		WindowBytes:   h.window.Load(),
		Published:     n.published.Load(),
		Overflowed:    n.overflowed.Load(),
		Passed:        n.passed.Load(),
		Encodes:       n.encodes.Load(),
		Delivered:     n.delivered.Load(),
		Lagged:        n.lagged.Load(),
		Replays:       n.replays.Load(),
		Resets:        n.resets.Load(),
		Cuts:          n.cuts.Load(),
		LogReads:      n.logReads.Load(),
		LogErrors:     n.logErrors.Load(),
		GapsFilled:    n.gapsFilled.Load(),
		Evicted:       n.evicted.Load(),
	}
}
