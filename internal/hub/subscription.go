package hub

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/chronocast/chronocast/protocol"
)

// Subscription is one identifier of one connection listening to one stream.
// There are as many as there are clients: what only catching up needs is kept
// in a trail.
type Subscription struct {
	group *group // immutable once joined
	sink  Sink

	mu     sync.Mutex // guards what follows but index; held across Sink.Push
	life   *lifetime  // of the stream, that cursor belongs to
	cursor uint64     // what follows it is pushed next
	trail  *trail     // nil while there is nothing to catch up
	index  uint32     // in stream.members; guarded by stream.mu
	state  state
	work   work
	left   bool // Close was called
}

// trail is what a subscription needs to catch up.
type trail struct {
	sent     protocol.Position         // what the client has been sent up to
	replayTo uint64                    // frames up to here are marked replay
	done     [][]byte                  // owed when the cursor has reached replayTo
	owed     []byte                    // owed before anything else
	turns    uint64                    // counts what moves the cursor other than forward
	stalls   int                       // pushes without room since the last that had
	failures int                       // reads of the log that failed, one after another
	cut      protocol.DisconnectReason // the connection is to be cut with it
}

type state uint8

const (
	holding  state = iota // nothing is pushed before Live or Replay
	live                  // the shard pushes
	catching              // catch-up workers push
	closed                // nothing is pushed any more
)

// work is where a subscription stands with the catch-up workers.
type work uint8

const (
	idle    work = iota
	queued       // in the queue
	running      // in the hands of a worker
	rerun        // and to be queued again afterwards
)

// Subscribe registers a subscription that holds: nothing is pushed before
// [Subscription.Live] or [Subscription.Replay], and live frames then begin
// right after the head of the returned span. addr is where the frames go; it
// must not be changed, and [Subscription.Address] returns it or its equal. The
// error is history.ErrUnavailable when the log did
// not tell the head, that of ctx, or [ErrClosed].
func (h *Hub) Subscribe(ctx context.Context, stream string, addr *protocol.Address, codec protocol.Codec, sink Sink) (*Subscription, protocol.Span, error) {
	sh := h.shard(stream)
	s := sh.pin(stream)
	if err := s.ensureStarted(ctx); err != nil {
		sh.unpin(s)
		return nil, protocol.Span{}, fmt.Errorf("hub: subscribe to %q: %w", stream, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absorbLocked()
	span := s.spanLocked()
	c := &Subscription{sink: sink, life: s.life, cursor: span.Last}
	s.joinLocked(c, addr, codec)
	h.n.subscriptions.Add(1)
	return c, span, nil
}

// Live ends holding: what follows the head returned by Subscribe is pushed.
func (c *Subscription) Live() {
	s := c.group.stream
	s.mu.Lock()
	c.mu.Lock()
	catchUp := false
	if c.state == holding {
		if (c.trail == nil || c.trail.owed == nil) && c.cursor >= s.fanned {
			c.state, c.trail = live, nil
		} else {
			c.state = catching
			catchUp = c.queueLocked()
		}
	}
	c.mu.Unlock()
	s.mu.Unlock()
	if catchUp {
		s.hub.catchups.push(c)
	}
}

// Replay sends everything after the position, marked replay up to the newest
// message of now, then done, a frame ready for the wire or nil, and continues
// live.
// It returns at once; the span's Last is where the replay ends. On a live
// subscription the wire goes back to the message after the position, and what
// is live waits meanwhile. A position without epoch is one of the current
// epoch.
//
// A non-empty Reason tells that the position cannot be continued. Nothing was
// changed then; the span's Last is where the subscription stands, and a
// holding one still waits for Live. The error is history.ErrUnavailable when
// the log was needed and did not answer, that of ctx, or [ErrClosed].
func (c *Subscription) Replay(ctx context.Context, after protocol.Position, done []byte) (protocol.Span, protocol.Reason, error) {
	span, reason, err := c.replay(ctx, after, done)
	if err != nil {
		err = fmt.Errorf("hub: replay %q after %v: %w", c.group.stream.name, after, err)
	}
	return span, reason, err
}

// since is what the log answers about a time.
type since struct {
	span  protocol.Span
	after uint64
}

// ReplaySince is Replay after the last message committed before the time, in
// microseconds since 1970.
func (c *Subscription) ReplaySince(ctx context.Context, unixMicros int64, done []byte) (protocol.Span, protocol.Reason, error) {
	s := c.group.stream
	key := strconv.FormatInt(unixMicros, 10) + " " + s.name
	found, err := s.hub.sinces.do(ctx, key, true, func(ctx context.Context) (since, error) {
		span, after, err := s.hub.log.Since(ctx, s.name, unixMicros)
		return since{span, after}, err
	})
	if err != nil {
		return protocol.Span{}, "", fmt.Errorf("hub: replay %q since %d: %w", s.name, unixMicros, err)
	}
	after := protocol.Position{Epoch: found.span.Epoch, Offset: found.after}
	if reason := found.span.Check(after); reason != "" {
		return c.refuse(), reason, nil
	}
	return c.Replay(ctx, after, done)
}

func (c *Subscription) replay(ctx context.Context, after protocol.Position, done []byte) (protocol.Span, protocol.Reason, error) {
	s := c.group.stream
	for asked := false; ; asked = true {
		s.mu.Lock()
		before, life := s.markLocked()
		span := s.spanLocked()
		span.Last = s.tail.Known()
		p := after
		if p.Epoch == 0 {
			p.Epoch = span.Epoch
		}
		reason := span.Check(p)
		if reason == "" && (asked || s.tail.Covers(p.Offset) || s.freshLocked()) {
			err := c.rewindLocked(p, span.Last, done)
			s.mu.Unlock()
			return span, "", err
		}
		s.mu.Unlock()
		if reason == protocol.ReasonTrimmed || p.Epoch < span.Epoch || (reason != "" && asked) {
			return c.refuse(), reason, nil
		}
		// Another node may know of commits that this one has no hint of yet,
		// and the log may have trimmed what the window does not cover.
		truth, err := s.hub.spans.do(ctx, s.name, true, s.hub.headOf(s.name))
		if err != nil {
			return protocol.Span{}, "", err
		}
		s.mu.Lock()
		told := s.settleLocked(before, life, truth)
		s.mu.Unlock()
		s.hub.catchups.push(told...)
	}
}

// rewindLocked, with the stream's lock, begins a replay after p.
func (c *Subscription) rewindLocked(p protocol.Position, to uint64, done []byte) error {
	s := c.group.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == closed {
		return ErrClosed
	}
	s.hub.n.replays.Add(1)
	t := c.trailLocked()
	if c.state == holding {
		t.sent = p // it begins there
	}
	c.state = catching
	c.life, c.cursor, t.replayTo = s.life, p.Offset, to
	t.owed = nil
	if done != nil {
		t.done = append(t.done, done)
	}
	t.turns++
	if c.queueLocked() {
		s.hub.catchups.push(c)
	}
	return nil
}

// refuse returns the span of a refused replay, made to tell where the
// subscription stands, so that what follows on the wire continues it. The
// caller tells the client; a reset still owed would tell a holding one twice.
func (c *Subscription) refuse() protocol.Span {
	s := c.group.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	span := s.spanLocked()
	span.Last = c.cursor
	if c.state == holding {
		c.trail = nil
	}
	return span
}

// resetLocked moves the subscription to head, owing the client the frame. It
// says whether a worker is to be told; plain clients cannot be told and are
// cut by the worker.
func (c *Subscription) resetLocked(reason protocol.Reason, frame []byte, head protocol.Position) bool {
	if c.state == closed {
		return false
	}
	s, t := c.group.stream, c.trailLocked()
	s.hub.n.resets.Add(1)
	c.life, c.cursor, t.replayTo = s.life, head.Offset, 0
	t.done = nil
	t.turns++
	t.owed = frame
	if frame == nil {
		t.cut = protocol.DisconnectServerRestart
		if reason == protocol.ReasonTrimmed {
			t.cut = protocol.DisconnectTooSlow
		}
	}
	if c.state == holding && frame != nil {
		return false
	}
	c.state = catching
	return c.queueLocked()
}

// trailLocked returns the trail, begun now if need be. Call it before the
// cursor is moved: a trail remembers what had been sent.
func (c *Subscription) trailLocked() *trail {
	if c.trail == nil {
		c.trail = &trail{sent: c.positionLocked()}
	}
	return c.trail
}

func (c *Subscription) positionLocked() protocol.Position {
	return protocol.Position{Epoch: c.life.epoch, Offset: c.cursor}
}

func (c *Subscription) sentLocked() protocol.Position {
	if c.trail != nil {
		return c.trail.sent
	}
	return c.positionLocked()
}

// Address returns where the subscription's frames go. Subscriptions of a
// stream with the same identifier share one.
func (c *Subscription) Address() *protocol.Address { return c.group.addr }

// Sent returns the position of the newest message pushed to the sink; before
// the first one, where the subscription began.
func (c *Subscription) Sent() protocol.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sentLocked()
}

// Tell pushes the frame that f makes for the position [Subscription.Sent]
// returns, with no message of the subscription in between: a confirmation
// repeated on a live subscription, or a refusal, must not tell a position that
// the wire has passed. f must do nothing but encode; when it returns nil there
// is nothing to tell. The frame is ready for the wire, as [Sink.Push] takes it.
// Tell returns false when the sink had no room; after Close nothing is pushed
// and it returns true.
func (c *Subscription) Tell(f func(sent protocol.Position) []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == closed {
		return true
	}
	frame := f(c.sentLocked())
	return frame == nil || c.sink.Push([][]byte{frame})
}

// Close ends the subscription. After it returns nothing more is pushed. It may
// be called again.
func (c *Subscription) Close() {
	if !c.leave() {
		return
	}
	s := c.group.stream
	s.mu.Lock()
	s.leaveLocked(c)
	s.mu.Unlock()
	s.hub.n.subscriptions.Add(-1)
	s.sh.unpin(s)
}

// leave ends what is pushed; false when that has been done.
func (c *Subscription) leave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return false
	}
	c.left, c.state = true, closed
	c.trail = nil
	return true
}

// queueLocked says whether the subscription must be pushed to the queue of the
// catch-up workers.
func (c *Subscription) queueLocked() bool {
	switch c.work {
	case idle:
		c.work = queued
		return true
	case running:
		c.work = rerun
	}
	return false
}

// wake is called when the sink has room.
func (c *Subscription) wake() {
	c.mu.Lock()
	push := c.state == catching && c.queueLocked()
	c.mu.Unlock()
	if push {
		c.group.stream.hub.catchups.push(c)
	}
}
