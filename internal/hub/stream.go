package hub

import (
	"context"
	"sync"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

// stream is one stream in memory: its gate, and who listens.
type stream struct {
	hub  *Hub
	sh   *shard
	name string

	pins      int       // subscriptions and calls that need it; guarded by sh.mu
	idleSince time.Time // when pins became 0; guarded by sh.mu

	ready, resting bool // guarded by sh.queueMu

	inMu    sync.Mutex // guards what follows; a leaf
	gone    bool
	inbox   []protocol.Batch
	dropped protocol.Position // newest position whose hint was dropped
	waiting load              // of the inbox
	pended  load              // of what left it and may be pending

	mu       sync.Mutex // guards what follows
	starting *start     // the read of the head under way, if any
	started  bool
	life     *lifetime // changes whenever the numbering in memory begins anew; nil until started
	tail     *history.Tail
	first    uint64             // lowest offset kept, as the log last told
	checked  time.Time          // when the log was last asked
	fanned   uint64             // last offset of the newest pass; up to the head it is pending
	pending  []protocol.Message // passed the gate, not yet fanned out
	suspect  bool               // a hint spoke of a later epoch
	hinted   uint64             // newest offset a hint without messages spoke of, before the head was known
	filling  bool               // a fill is scheduled or under way
	failures int                // of fills, one after another
	used     uint64             // when the window was last of use
	counted  int                // window bytes counted in hub.window
	pass     *pass              // under way, or nil
	members  []*Subscription

	groups     []*group
	groupIndex map[groupKey]*group // of all groups, when they are many
}

// lifetime is one life of a stream's numbering in memory.
type lifetime struct {
	number uint64 // no other life of any stream has it
	epoch  protocol.Epoch
}

// load is what hints cost while they wait.
type load struct{ messages, bytes int }

type start struct {
	done chan struct{}
	err  error
}

// post takes a hint; false when nobody needs to look at it.
func (s *stream) post(b protocol.Batch) bool {
	size := load{messages: len(b.Messages)}
	for i := range b.Messages {
		size.bytes += cost(b.Messages[i])
	}
	s.hub.n.published.Add(uint64(size.messages))

	s.inMu.Lock()
	defer s.inMu.Unlock()
	if s.gone {
		return false
	}
	if !s.sh.charge(size) {
		s.hub.n.overflowed.Add(uint64(size.messages))
		last := protocol.Position{Epoch: b.Epoch, Offset: b.Messages[size.messages-1].Offset}
		if last.Epoch > s.dropped.Epoch || (last.Epoch == s.dropped.Epoch && last.Offset > s.dropped.Offset) {
			s.dropped = last
		}
		return true
	}
	s.waiting.messages += size.messages
	s.waiting.bytes += size.bytes
	s.inbox = append(s.inbox, b)
	return true
}

// cost is what a message is taken to cost in memory.
func cost(m protocol.Message) int { return len(m.Data) + 64 }

// release gives the shard back what hints were charged that wait no longer.
func (s *stream) release() {
	s.inMu.Lock()
	defer s.inMu.Unlock()
	s.sh.discharge(s.pended)
	s.pended = load{}
}

// leave drops a stream that is no longer registered.
func (s *stream) leave() {
	s.inMu.Lock()
	s.gone = true
	s.sh.discharge(s.pended)
	s.sh.discharge(s.waiting)
	s.inbox, s.pended, s.waiting = nil, load{}, load{}
	s.inMu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		s.tail.Forget(protocol.MaxOffset + 1)
	}
	s.hub.window.Add(int64(-s.counted))
	s.counted = 0
}

// absorbLocked moves the hints through the gate, so that the head counts every
// Publish that has returned. What passed waits in pending for a turn.
func (s *stream) absorbLocked() {
	s.gateLocked()
	if len(s.pending) > 0 {
		s.sh.enqueue(s)
	}
}

func (s *stream) gateLocked() {
	s.inMu.Lock()
	in, dropped := s.inbox, s.dropped
	s.inbox, s.dropped = nil, protocol.Position{}
	s.pended.messages += s.waiting.messages
	s.pended.bytes += s.waiting.bytes
	s.waiting = load{}
	s.inMu.Unlock()
	for i := range in {
		s.addLocked(in[i].Epoch, in[i].Messages)
	}
	switch head := s.tail.Head(); {
	case dropped.Epoch > head.Epoch:
		s.suspect = true
	case dropped.Epoch == head.Epoch && dropped.Offset > head.Offset:
		s.tail.Know(dropped.Offset)
	}
	s.needLocked()
	s.accountLocked()
}

func (s *stream) addLocked(epoch protocol.Epoch, msgs []protocol.Message) {
	passed, newer := s.tail.Add(epoch, msgs)
	s.suspect = s.suspect || newer
	if len(passed) == 0 {
		return
	}
	s.hub.n.passed.Add(uint64(len(passed)))
	if s.pending == nil {
		s.pending = passed[:len(passed):len(passed)] // may be shared: never appended in place
	} else {
		s.pending = append(s.pending, passed...)
	}
}

// needLocked arranges for the log to be read when something is missing.
func (s *stream) needLocked() {
	if s.filling {
		return
	}
	_, _, gap := s.tail.Gap()
	if !gap && !s.suspect {
		return
	}
	s.filling = true
	wait := s.hub.opts.GapDelay
	if s.failures > 0 {
		wait = min(50*time.Millisecond<<min(s.failures-1, 5), time.Second)
	}
	s.hub.later.after(wait, func() { s.hub.fills.push(s) })
}

// hint takes note of an offset that exists; true when the stream must be given
// to the fill workers now. The news comes from another node and brings no
// messages, so there is nothing to wait for.
func (s *stream) hint(last uint64) (fill bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.hinted = max(s.hinted, last)
		return false
	}
	if !s.listenedLocked() {
		s.checked = time.Time{} // whoever subscribes next asks the log first
		return false
	}
	s.tail.Know(last)
	if _, _, gap := s.tail.Gap(); !gap || s.filling {
		return false
	}
	s.filling = true
	return true
}

func (s *stream) accountLocked() {
	s.used = s.hub.uses.Add(1)
	now := s.tail.WindowBytes()
	if total := s.hub.window.Add(int64(now - s.counted)); now > s.counted && total > s.hub.opts.WindowTotal {
		signal(s.hub.evictNow)
	}
	s.counted = now
}

// spanLocked is what the stream holds as far as this node knows.
func (s *stream) spanLocked() protocol.Span {
	head := s.tail.Head()
	return protocol.Span{Epoch: head.Epoch, First: s.first, Last: head.Offset}
}

// ensureStarted reads the head of a stream new in memory, or of one that may
// have missed hints while nobody listened. The stream is registered before, so
// that every commit later than the read leaves its hint in the inbox.
func (s *stream) ensureStarted(ctx context.Context) error {
	s.mu.Lock()
	if s.started && (s.listenedLocked() || s.freshLocked()) {
		s.mu.Unlock()
		return nil
	}
	st := s.starting
	if st == nil {
		st = &start{done: make(chan struct{})}
		if !s.hub.goBackground(func() { s.begin(st) }) {
			s.mu.Unlock()
			return ErrClosed
		}
		s.starting = st
	}
	s.mu.Unlock()
	select {
	case <-st.done:
		return st.err
	case <-ctx.Done():
		return gaveUp(ctx)
	}
}

func (s *stream) begin(st *start) {
	s.mu.Lock()
	before, life := s.markLocked()
	s.mu.Unlock()
	span, err := timed(s.hub, s.hub.headOf(s.name))
	var told []*Subscription
	s.mu.Lock()
	s.starting = nil
	st.err = err
	switch {
	case err != nil:
	case s.started:
		told = s.settleLocked(before, life, span)
		if head := s.tail.Head(); !s.listenedLocked() && span.Epoch == head.Epoch && span.Last > head.Offset {
			// Other nodes went on while nobody listened here. What they sent then
			// is for nobody who comes now and asks for no history.
			s.restartLocked(span)
			s.absorbLocked()
		}
	default:
		s.tail = history.NewTail(s.hub.opts.Tail)
		s.restartLocked(span)
		s.started = true
		s.tail.Know(s.hinted)
		s.absorbLocked()
	}
	s.mu.Unlock()
	close(st.done)
	s.hub.catchups.push(told...)
}

// freshLocked says whether the log was asked a moment ago.
func (s *stream) freshLocked() bool {
	return time.Since(s.checked) < s.hub.opts.SweepEvery
}

func (s *stream) listenedLocked() bool { return len(s.members) > 0 }

// markLocked notes where the stream stands before a read of the log.
func (s *stream) markLocked() (before protocol.Position, life *lifetime) {
	if !s.started {
		return protocol.Position{}, s.life
	}
	s.absorbLocked()
	return s.tail.Head(), s.life
}

// settleLocked compares the stream with the span a read of the log returned
// that began when the stream stood at before. The log is the truth: when it
// does not continue the stream, all subscriptions are reset and returned, to
// be queued for catching up.
func (s *stream) settleLocked(before protocol.Position, life *lifetime, span protocol.Span) []*Subscription {
	if life != s.life {
		return nil
	}
	s.suspect = false
	s.checked = time.Now()
	switch reason := span.Check(before); reason {
	case protocol.ReasonEpochChanged, protocol.ReasonAhead:
		return s.resetLocked(reason, span)
	case protocol.ReasonTrimmed:
		// Hints may have brought meanwhile what the log no longer has.
		if s.absorbLocked(); s.tail.Head().Offset+1 < span.First {
			return s.resetLocked(reason, span)
		}
	}
	if span.First > s.first {
		s.first = span.First
		s.tail.Forget(s.first)
	}
	s.tail.Know(span.Last)
	s.absorbLocked()
	return nil
}

// restartLocked begins a new life of the stream at the head of span.
func (s *stream) restartLocked(span protocol.Span) {
	s.life = &lifetime{number: s.hub.lives.Add(1), epoch: span.Epoch}
	s.tail.Start(span.Head())
	s.first = span.First
	s.fanned, s.pending = span.Last, nil
	s.release()
	s.suspect = false
	s.checked = time.Now()
	s.accountLocked()
}

// resetLocked restarts the stream at the head of span and tells every
// subscription that what it had cannot be continued.
func (s *stream) resetLocked(reason protocol.Reason, span protocol.Span) (told []*Subscription) {
	s.hub.logReset(s.name, reason, s.tail.Head(), span.Head())
	s.restartLocked(span)
	frames := make(map[*group][]byte, len(s.groups))
	for _, g := range s.groups {
		frames[g] = g.resetFrame(reason, span)
	}
	for _, c := range s.members {
		c.mu.Lock()
		if c.resetLocked(reason, frames[c.group], span.Head()) {
			told = append(told, c)
		}
		c.mu.Unlock()
	}
	s.absorbLocked()
	return told
}
