package hub

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// shard holds the streams that hash to it, and the queue of those that have a
// turn coming. A worker serves it, and the queues of others when its own is
// empty.
type shard struct {
	hub *Hub

	mu      sync.RWMutex // guards streams, and pins and idleSince of each
	streams map[string]*stream

	messages, bytes atomic.Int64 // charged for hints that wait

	busy    atomic.Bool // its worker is not asleep
	wake    chan struct{}
	queueMu sync.Mutex // guards what follows, and ready and resting of each stream; a leaf
	fresh   fifo       // streams with a first turn coming
	begun   fifo       // streams that have had a turn of the pass under way
}

// fifo is a queue of streams. Its memory is used again when it has run empty.
type fifo struct {
	streams []*stream
	next    int
}

func (q *fifo) push(s *stream) { q.streams = append(q.streams, s) }

func (q *fifo) pop() *stream {
	if len(q.streams) == 0 {
		return nil
	}
	s := q.streams[q.next]
	q.streams[q.next] = nil
	if q.next++; q.next == len(q.streams) {
		q.streams, q.next = q.streams[:0], 0
	} else if q.next >= 1024 && 2*q.next >= len(q.streams) {
		n := copy(q.streams, q.streams[q.next:])
		clear(q.streams[n:])
		q.streams, q.next = q.streams[:n], 0
	}
	return s
}

func newShard(h *Hub) *shard {
	return &shard{hub: h, streams: make(map[string]*stream), wake: make(chan struct{}, 1)}
}

func (sh *shard) lookup(name string) *stream {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.streams[name]
}

// pin returns the stream, registered now if need be, and keeps it in memory
// until unpin.
func (sh *shard) pin(name string) *stream {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.streams[name]
	if s == nil {
		s = &stream{hub: sh.hub, sh: sh, name: name}
		sh.streams[name] = s
		sh.hub.n.streams.Add(1)
	}
	s.pins++
	return s
}

// unpin lets go of what pin returned. A stream whose head was never learned is
// dropped at once: its hints would wait in vain.
func (sh *shard) unpin(s *stream) {
	sh.mu.Lock()
	s.pins--
	gone := false
	if s.pins == 0 {
		s.idleSince = time.Now()
		s.mu.Lock()
		gone = !s.started
		s.mu.Unlock()
		if gone {
			delete(sh.streams, s.name)
		}
	}
	sh.mu.Unlock()
	if gone {
		sh.hub.n.streams.Add(-1)
		s.leave()
	}
}

// charge counts hints that wait; false when there are too many.
func (sh *shard) charge(l load) bool {
	messages, bytes := sh.messages.Add(int64(l.messages)), sh.bytes.Add(int64(l.bytes))
	if messages > int64(sh.hub.opts.InboxMessages) || bytes > int64(sh.hub.opts.InboxBytes) {
		sh.discharge(l)
		return false
	}
	return true
}

func (sh *shard) discharge(l load) {
	sh.messages.Add(int64(-l.messages))
	sh.bytes.Add(int64(-l.bytes))
}

// enqueue gives the stream a turn, unless it has one coming.
func (sh *shard) enqueue(s *stream) { sh.queue(s, &sh.fresh) }

// requeue gives a stream that has had a turn the next one.
func (sh *shard) requeue(s *stream) { sh.queue(s, &sh.begun) }

func (sh *shard) queue(s *stream, q *fifo) {
	sh.queueMu.Lock()
	if s.ready || s.resting {
		sh.queueMu.Unlock()
		return
	}
	s.ready = true
	q.push(s)
	sh.queueMu.Unlock()
	signal(sh.wake)
	if sh.busy.Load() {
		sh.hub.wakeIdle(sh)
	}
}

// wakeIdle has a worker that sleeps take over from one that is busy.
func (h *Hub) wakeIdle(busy *shard) {
	for _, sh := range h.shards {
		if sh != busy && !sh.busy.Load() {
			signal(sh.wake)
			return
		}
	}
}

// dequeue returns the stream whose turn it is. Streams that begin go before
// those whose pass is under way, unless it is time for one of these.
func (sh *shard) dequeue(begun bool) *stream {
	sh.queueMu.Lock()
	defer sh.queueMu.Unlock()
	first, second := &sh.fresh, &sh.begun
	if begun {
		first, second = second, first
	}
	s := first.pop()
	if s == nil {
		s = second.pop()
	}
	if s != nil {
		s.ready = false
	}
	return s
}

// rest gives the stream its next turn after d: a stream under load is written
// in larger batches and leaves the machine to others.
func (sh *shard) rest(s *stream, d time.Duration) {
	sh.queueMu.Lock()
	s.resting = true
	sh.queueMu.Unlock()
	sh.hub.later.after(d, func() {
		sh.queueMu.Lock()
		s.resting = false
		sh.queueMu.Unlock()
		sh.enqueue(s)
	})
}

// work serves the shard's streams until ctx ends.
func (w *worker) work(ctx context.Context) {
	sh := w.shard
	for ctx.Err() == nil {
		sh.busy.Store(true)
		s := w.take()
		if s == nil {
			sh.busy.Store(false)
			s = w.take() // whoever queued one saw a busy worker, or this sees the stream
		}
		if s != nil {
			sh.busy.Store(true)
			w.turn(s)
			continue
		}
		select {
		case <-sh.wake:
		case <-ctx.Done():
		}
	}
}

// take returns the next stream to serve: of the worker's own shard, or else of
// another.
func (w *worker) take() *stream {
	begun := w.served >= w.hub.opts.TurnSize
	if s := w.shard.dequeue(begun); s != nil {
		return s
	}
	n := len(w.hub.shards)
	for i := 1; i < n; i++ {
		if s := w.hub.shards[(w.index+i)%n].dequeue(begun); s != nil {
			return s
		}
	}
	return nil
}
