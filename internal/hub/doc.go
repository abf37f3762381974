// Package hub delivers committed messages to this node's subscribers, in order
// and encoded once.
//
// Hints of committed messages come in through [Hub.Publish]; each stream that
// has subscribers passes them through a [history.Tail]. What passes is fanned
// out in passes: one worker per shard, no goroutine per subscription. A worker
// whose shard has nothing to do serves parts of the passes of others. A subscription that cannot take more, or that replays, is
// served by a bounded pool of catch-up workers from the window in memory and
// from the log, until it meets the head again.
//
// # State of a subscription
//
//	Subscribe → holding ── Live ──→ live ←─────────────┐
//	               │                 │ Push said no,   │ met the head
//	               │                 ↓ or Replay       │
//	               └─── Replay ──→ catching ───────────┘
//	Close, or Cut of a plain client: closed
//
// # Locks
//
// In the order they may be taken, each held for memory operations only:
//
//	shard.mu        registry of the shard's streams
//	stream.mu       gate, window, members of one stream, who serves which of them
//	Subscription.mu cursor and state; the only lock held across Sink.Push
//	leaves          pass.mu, stream.inMu, shard.queueMu, the queues, the caches, the flights
//
// No lock is held across a read of the log, Sink.Room or Sink.Cut. Codecs are
// called under a lock: they only encode.
//
// # Goroutines
//
// All of them run inside [Hub.Run]: one per shard, the catch-up and fill
// workers, one that compares heads with the log, one that keeps memory within
// bounds and one for delays. A read of the log that callers share has a
// goroutine of its own, which Run waits for.
package hub
