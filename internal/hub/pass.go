package hub

import (
	"runtime"
	"sync"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

const (
	yieldEvery   = 64        // subscriptions served before the scheduler may run something else
	passMessages = 512       // most messages of one pass
	passBytes    = 256 << 10 // and most bytes, but at least one message
	restOver     = 100 * time.Microsecond
	restMax      = 4 * time.Millisecond
)

// pass is one batch of a stream on its way to the subscribers. Several workers
// may serve it at once, each a part of them; the next pass of the stream begins
// when all are done, so that a subscription is pushed to in order.
type pass struct {
	life      *lifetime
	after, to uint64
	msgs      []protocol.Message
	cut       bool // more was pending than one pass takes

	// Of stream.members, those before next are served or in the hands of a
	// worker, those before end are due. Who joined since the pass began stands
	// behind end, and has what the pass brings. Guarded by stream.mu.
	next, end int
	working   int // workers that serve a part
	took      time.Duration

	mu      sync.Mutex // guards what follows, and group.shared of the groups used; a leaf
	used    []*group
	partial map[partialKey][][]byte // for subscriptions that joined inside the batch
}

type partialKey struct {
	group  *group
	cursor uint64
}

var passes = sync.Pool{New: func() any { return new(pass) }}

// release lets go of what a pass held.
func (p *pass) release() {
	for i, g := range p.used {
		clear(g.shared.frames)
		g.shared.of, g.shared.frames = nil, g.shared.frames[:0]
		p.used[i] = nil
	}
	*p = pass{used: p.used[:0]}
	passes.Put(p)
}

// worker fans out, one turn of a stream after another.
type worker struct {
	hub    *Hub
	shard  *shard
	index  int // of shard in hub.shards
	served int // subscriptions since the last turn of a pass under way

	part    []*Subscription // being served
	lagging []*Subscription
	group   *group   // of the last delivery
	frames  [][]byte // of that group
	alone   [][]byte // of a group of one
}

// turn serves the next part of the pass under way, or of one that begins now.
func (w *worker) turn(s *stream) {
	p := w.claim(s)
	if p == nil {
		return
	}
	began := time.Now()
	w.serve(p)
	took := time.Since(began)
	for i, c := range w.lagging {
		c.sink.Room(c.wake)
		w.lagging[i] = nil
	}
	w.lagging = w.lagging[:0]

	took, cut, over, again := s.finish(p, took)
	if !over {
		return
	}
	switch {
	case took > restOver && !cut:
		s.sh.rest(s, min(took, restMax))
	case again:
		s.sh.enqueue(s)
	}
}

// finish ends one worker's part of a pass, and with the last part the pass. It
// returns what the pass took in all, whether it was cut short and is over, and
// whether there may be something for another.
func (s *stream) finish(p *pass, part time.Duration) (took time.Duration, cut, over, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.working--
	p.took += part
	if p.working > 0 || p.next < p.end {
		return 0, false, false, false
	}
	took, cut = p.took, p.cut
	s.pass = nil
	p.release() // before another pass can use the same groups
	return took, cut, true, s.waitingLocked()
}

// claim takes the next part of the subscribers; nil when there is nothing to
// do. What is left is given to the next turn before this one is served: another
// worker may have it meanwhile.
func (w *worker) claim(s *stream) *pass {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, begins := s.pass, s.pass == nil
	if begins {
		if p = s.beginLocked(); p == nil {
			return nil
		}
	}
	n := min(w.hub.opts.TurnSize, p.end-p.next)
	if n <= 0 && p.working > 0 {
		return nil // who ends the pass looks whether there is more
	}
	w.part = append(w.part[:0], s.members[p.next:p.next+n]...)
	p.next += n
	p.working++
	if w.served += n; !begins {
		w.served = 0
	}
	if p.next < p.end {
		s.sh.requeue(s)
	}
	return p
}

// beginLocked begins a pass with what is pending; nil when there is nothing.
func (s *stream) beginLocked() *pass {
	if !s.started {
		return nil
	}
	s.gateLocked()
	if len(s.pending) == 0 {
		s.release()
		return nil
	}
	n, size := 0, 0
	for n < len(s.pending) && n < passMessages {
		if size += len(s.pending[n].Data); n > 0 && size > passBytes {
			break
		}
		n++
	}
	p := passes.Get().(*pass)
	p.life, p.after, p.to = s.life, s.fanned, s.pending[n-1].Offset
	p.msgs, p.end = s.pending[:n:n], len(s.members)
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.pending = nil
		s.release()
	}
	p.cut = s.pending != nil
	s.pass, s.fanned = p, p.to
	return p
}

// waitingLocked says whether there may be something for another pass.
func (s *stream) waitingLocked() bool {
	s.inMu.Lock()
	defer s.inMu.Unlock()
	return len(s.pending) > 0 || len(s.inbox) > 0 || s.dropped != protocol.Position{}
}

// serve delivers to the part that was claimed.
func (w *worker) serve(p *pass) {
	delivered, lagged := uint64(0), uint64(0)
	for i, c := range w.part {
		n, lagging := w.deliver(p, c)
		delivered += n
		if lagging {
			lagged++
			w.lagging = append(w.lagging, c)
		}
		if i%yieldEvery == yieldEvery-1 {
			runtime.Gosched()
		}
	}
	clear(w.part)
	clear(w.alone)
	w.group, w.frames = nil, nil
	w.hub.n.delivered.Add(delivered)
	w.hub.n.lagged.Add(lagged)
}

// deliver pushes the batch to one live subscription; lagging when its sink had
// no room.
func (w *worker) deliver(p *pass, c *Subscription) (messages uint64, lagging bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != live || c.life != p.life || c.cursor >= p.to {
		return 0, false
	}
	if c.cursor < p.after || !c.sink.Push(w.framesFor(p, c.group, c.cursor)) {
		c.state = catching
		return 0, true
	}
	messages, c.cursor = p.to-c.cursor, p.to
	return messages, false
}

// framesFor encodes the part of the batch after the cursor, once per group. A
// live subscription stands at p.after, or inside the batch when it joined
// while these messages were pending.
func (w *worker) framesFor(p *pass, g *group, cursor uint64) [][]byte {
	switch {
	case cursor != p.after:
		return p.partialFrames(g, cursor)
	case g == w.group:
		return w.frames
	case g.size.Load() == 1:
		w.alone = g.encode(w.alone[:0], p.life.epoch, p.msgs, false)
		return w.alone
	}
	w.group, w.frames = g, p.framesOf(g)
	return w.frames
}

// framesOf returns the frames of a group, encoded by the worker that comes
// first.
func (p *pass) framesOf(g *group) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.shared == nil {
		g.shared = new(shared)
	}
	if g.shared.of != p {
		g.shared.of, g.shared.frames = p, g.encode(g.shared.frames[:0], p.life.epoch, p.msgs, false)
		p.used = append(p.used, g)
	}
	return g.shared.frames
}

func (p *pass) partialFrames(g *group, cursor uint64) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := partialKey{g, cursor}
	frames := p.partial[key]
	if frames == nil {
		if p.partial == nil {
			p.partial = make(map[partialKey][][]byte)
		}
		frames = g.encode(nil, p.life.epoch, p.msgs[cursor-p.after:], false)
		p.partial[key] = frames
	}
	return frames
}
