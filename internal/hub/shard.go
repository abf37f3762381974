package hub

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

const (
	turnSize     = 256       // subscriptions served before other streams have their turn
	yieldEvery   = 64        // and before the scheduler may run something else
	passMessages = 512       // most messages of one pass
	passBytes    = 256 << 10 // and most bytes, but at least one message
	restOver     = 100 * time.Microsecond
	restMax      = 25 * time.Millisecond
)

// shard fans out the streams that hash to it, from one goroutine.
type shard struct {
	hub *Hub

	mu      sync.RWMutex // guards streams, and pins and idleSince of each
	streams map[string]*stream

	messages, bytes atomic.Int64 // charged for hints that wait

	queueMu sync.Mutex // guards queue, and ready and resting of each stream; a leaf
	queue   []*stream
	wake    chan struct{}
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
func (sh *shard) enqueue(s *stream) {
	sh.queueMu.Lock()
	defer sh.queueMu.Unlock()
	if s.ready || s.resting {
		return
	}
	s.ready = true
	sh.queue = append(sh.queue, s)
	signal(sh.wake)
}

func (sh *shard) dequeue() *stream {
	sh.queueMu.Lock()
	defer sh.queueMu.Unlock()
	if len(sh.queue) == 0 {
		return nil
	}
	s := sh.queue[0]
	sh.queue[0] = nil
	if sh.queue = sh.queue[1:]; len(sh.queue) == 0 {
		sh.queue = nil
	}
	s.ready = false
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

func (sh *shard) run(ctx context.Context) {
	for ctx.Err() == nil {
		if s := sh.dequeue(); s != nil {
			s.turn()
			continue
		}
		select {
		case <-sh.wake:
		case <-ctx.Done():
		}
	}
}

// pass is one batch of a stream on its way to the subscribers.
type pass struct {
	life      uint64
	epoch     protocol.Epoch
	after, to uint64
	msgs      []protocol.Message
	members   []*Subscription // nil between passes
	next      int             // index of the first not yet served
	took      time.Duration
	cut       bool // more was pending than one pass takes

	group   *group // whose frames these are
	frames  [][]byte
	partial map[uint64][][]byte // for subscriptions that joined inside the batch, by their cursor
}

// turn serves the next subscribers of the pass under way, or begins a pass.
func (s *stream) turn() {
	p := &s.pass
	if p.members == nil && !s.beginPass() {
		return
	}
	began := time.Now()
	var lagging []*Subscription
	end := min(p.next+turnSize, len(p.members))
	for i := p.next; i < end; i++ {
		if c := p.members[i]; s.deliver(c) {
			lagging = append(lagging, c)
		}
		if i%yieldEvery == yieldEvery-1 {
			runtime.Gosched()
		}
	}
	p.next = end
	p.took += time.Since(began)
	for _, c := range lagging {
		s.hub.n.lagged.Add(1)
		c.sink.Room(c.wake)
	}
	if p.next < len(p.members) {
		s.sh.enqueue(s)
		return
	}
	took, cut := p.took, p.cut
	*p = pass{}
	if took > restOver && !cut {
		s.sh.rest(s, min(took, restMax))
		return
	}
	s.sh.enqueue(s)
}

// beginPass takes what is pending; false when there is nothing.
func (s *stream) beginPass() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return false
	}
	s.absorbLocked()
	if len(s.pending) == 0 {
		s.release()
		return false
	}
	n, size := 0, 0
	for n < len(s.pending) && n < passMessages {
		if size += len(s.pending[n].Data); n > 0 && size > passBytes {
			break
		}
		n++
	}
	msgs := s.pending[:n:n]
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.pending = nil
		s.release()
	}
	s.pass = pass{
		life: s.life, epoch: s.tail.Head().Epoch,
		after: s.fanned, to: msgs[n-1].Offset, msgs: msgs,
		members: s.membersLocked(),
		cut:     s.pending != nil,
	}
	s.fanned = s.pass.to
	return true
}

// deliver pushes the batch to one live subscription; lagging when its sink
// had no room.
func (s *stream) deliver(c *Subscription) (lagging bool) {
	p := &s.pass
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != live || c.life != p.life || c.cursor.Offset >= p.to {
		return false
	}
	if c.cursor.Offset < p.after || !c.sink.Push(s.framesFor(c.group, c.cursor.Offset)) {
		c.state = catching
		return true
	}
	s.hub.n.delivered.Add(p.to - c.cursor.Offset)
	c.cursor.Offset = p.to
	c.sent = c.cursor
	return false
}

// framesFor encodes the part of the batch after the cursor, once per group. A
// live subscription stands at p.after, or inside the batch when it joined
// while these messages were pending.
func (s *stream) framesFor(g *group, cursor uint64) [][]byte {
	p := &s.pass
	if p.group != g {
		p.group, p.frames, p.partial = g, nil, nil
	}
	if cursor == p.after {
		if p.frames == nil {
			p.frames = s.encode(g, p.epoch, p.msgs, false)
		}
		return p.frames
	}
	frames := p.partial[cursor]
	if frames == nil {
		if frames = s.encode(g, p.epoch, p.msgs[cursor-p.after:], false); p.partial == nil {
			p.partial = make(map[uint64][][]byte)
		}
		p.partial[cursor] = frames
	}
	return frames
}

func (s *stream) encode(g *group, epoch protocol.Epoch, msgs []protocol.Message, replay bool) [][]byte {
	s.hub.n.encodes.Add(1)
	return g.codec.Frames(nil, g.addr, epoch, msgs, replay)
}
