package hub

import (
	"context"
	"strconv"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

const (
	pageMessages  = 256       // messages of one read, and what reads are aligned to
	pageBytes     = 512 << 10 // payload bytes of one read
	blockMessages = 64        // messages encoded together, and what blocks are aligned to
	pushBytes     = 64 << 10  // bytes of one push, but at least one block
	servePages    = 4         // pages pushed before others have their turn
	retryMin      = 50 * time.Millisecond
	retryMax      = time.Second
	stallMin      = 5 * time.Millisecond
	stallMax      = 200 * time.Millisecond
)

// outcome is how a worker leaves a subscription.
type outcome uint8

const (
	settled outcome = iota // live or closed
	more                   // there is more to push
	full                   // the sink has no room
	failed                 // the log did not answer
)

// catchUp serves one subscription for a while: it pushes what follows its
// cursor, and makes it live where the cursor meets the fan-out.
func (c *Subscription) catchUp(ctx context.Context) {
	c.mu.Lock()
	c.work = running
	c.mu.Unlock()

	out := c.serve(ctx)

	c.mu.Lock()
	again := out == more || (c.work == rerun && c.state == catching)
	c.work = idle
	if again {
		c.work = queued
	}
	wait := time.Duration(0)
	switch out {
	case full:
		if c.stalls++; c.stalls > 1 { // it had room, but not for the next frame
			wait = min(stallMin<<min(c.stalls-2, 6), stallMax)
		}
	case failed:
		c.failures++
		wait = min(retryMin<<min(c.failures-1, 5), retryMax)
	default:
		c.failures = 0
	}
	c.mu.Unlock()

	hub := c.stream.hub
	switch {
	case again:
		hub.catchups.push(c)
	case out == failed:
		hub.later.after(wait, c.wake)
	case out == full && wait == 0:
		c.sink.Room(c.wake)
	case out == full:
		hub.later.after(wait, func() { c.sink.Room(c.wake) })
	}
}

func (c *Subscription) serve(ctx context.Context) outcome {
	s := c.stream
	for range servePages {
		from, out, done := c.pay()
		if done {
			return out
		}
		msgs, ask, done := c.fromWindow(from)
		if done {
			return settled
		}
		if ask {
			page, err := s.page(ctx, from)
			if err != nil {
				return failed
			}
			if len(page.Messages) == 0 || page.Epoch != from.epoch {
				c.lost(ctx, from)
				return failed // for now; a reset has queued it again
			}
			msgs = page.Messages
		}
		if out, done := c.push(from, msgs); done {
			return out
		}
	}
	return more
}

// place is where a worker found a subscription.
type place struct {
	turns, life uint64
	epoch       protocol.Epoch
	after       uint64
	replayTo    uint64
	owing       bool // a frame is due right after replayTo
}

// pay pushes the frames that are owed here.
func (c *Subscription) pay() (from place, out outcome, done bool) {
	c.mu.Lock()
	cut := c.cut
	if c.state == catching && cut != "" {
		c.state = closed
		c.mu.Unlock()
		c.stream.hub.n.cuts.Add(1)
		c.sink.Cut(cut)
		return place{}, settled, true
	}
	defer c.mu.Unlock()
	if c.state != catching {
		return place{}, settled, true
	}
	if len(c.owed) > 0 {
		if !c.sink.Push(c.owed) {
			return place{}, full, true
		}
		c.owed, c.sent, c.stalls = nil, c.cursor, 0
	}
	if len(c.done) > 0 && c.cursor.Offset >= c.replayTo {
		if !c.sink.Push(c.done) {
			return place{}, full, true
		}
		c.done, c.stalls = nil, 0
	}
	return place{
		turns: c.turns, life: c.life, epoch: c.cursor.Epoch,
		after: c.cursor.Offset, replayTo: c.replayTo, owing: len(c.done) > 0,
	}, settled, false
}

// fromWindow returns what follows in memory. done tells that the subscription
// is live now, ask that the log must be read.
func (c *Subscription) fromWindow(from place) (msgs []protocol.Message, ask, done bool) {
	s := c.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absorbLocked()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != catching || c.turns != from.turns {
		return nil, false, c.state != catching
	}
	if from.after >= s.fanned && len(c.done) == 0 {
		c.state, c.stalls = live, 0
		return nil, false, true
	}
	msgs, covered := s.tail.After(from.after, pageMessages, pageBytes)
	return msgs, !covered || len(msgs) == 0, false
}

// push encodes and pushes the messages as far as there is room.
func (c *Subscription) push(from place, msgs []protocol.Message) (out outcome, done bool) {
	if left := from.replayTo - from.after; from.owing && left < uint64(len(msgs)) {
		msgs = msgs[:left]
	}
	for len(msgs) > 0 {
		var frames [][]byte
		n, size, one, oneN := 0, 0, 0, 0
		for n < len(msgs) && size < pushBytes {
			k := blockLen(msgs[n:], from.replayTo)
			for _, f := range c.stream.block(c.group, from, msgs[n:n+k]) {
				size += len(f)
				frames = append(frames, f)
			}
			if n += k; oneN == 0 {
				one, oneN = len(frames), n
			}
		}
		c.mu.Lock()
		if c.state != catching || c.turns != from.turns {
			c.mu.Unlock()
			return more, c.state != catching
		}
		ok := c.sink.Push(frames)
		if !ok && oneN < n {
			n, ok = oneN, c.sink.Push(frames[:one])
		}
		if ok {
			c.cursor.Offset = msgs[n-1].Offset
			c.sent, c.stalls = c.cursor, 0
		}
		c.mu.Unlock()
		if !ok {
			return full, true
		}
		c.stream.hub.n.delivered.Add(uint64(n))
		msgs = msgs[n:]
	}
	return more, false
}

// blockLen returns how many of the messages are encoded together: up to the
// next aligned offset, so that readers at different positions share frames,
// and not across the end of the replay.
func blockLen(msgs []protocol.Message, replayTo uint64) int {
	first := msgs[0].Offset
	n := blockMessages - (first-1)%blockMessages
	if first <= replayTo {
		n = min(n, replayTo-first+1)
	}
	return int(min(n, uint64(len(msgs))))
}

func (s *stream) block(g *group, from place, msgs []protocol.Message) [][]byte {
	replay := msgs[0].Offset <= from.replayTo
	key := cacheKey{life: from.life, from: msgs[0].Offset - 1, to: msgs[len(msgs)-1].Offset, group: g.key, replay: replay}
	if frames, ok := s.hub.cache.get(key).([][]byte); ok {
		return frames
	}
	frames := s.encode(g, from.epoch, msgs, replay)
	size := 0
	for _, f := range frames {
		size += len(f) + 24
	}
	s.hub.cache.put(key, frames, size)
	return frames
}

// page reads what follows from the log. Reads are aligned, so that readers at
// similar positions share them.
func (s *stream) page(ctx context.Context, from place) (history.Page, error) {
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	aligned := from.after - from.after%pageMessages
	if first > 0 && aligned < first-1 && first-1 <= from.after {
		aligned = first - 1
	}
	page, err := s.readPage(ctx, from, aligned)
	if err != nil || aligned == from.after || len(page.Messages) > 0 || page.Epoch != from.epoch {
		return page, err
	}
	return s.readPage(ctx, from, from.after)
}

// readPage reads a page that begins after the offset at, and returns what
// follows from.after of it.
func (s *stream) readPage(ctx context.Context, from place, at uint64) (history.Page, error) {
	key := cacheKey{life: from.life, from: at}
	if page, ok := s.hub.cache.get(key).(history.Page); ok {
		if page = following(page, from.after); len(page.Messages) > 0 {
			return page, nil
		}
	}
	name := strconv.FormatUint(from.life, 10) + " " + strconv.FormatUint(at, 10)
	page, err := s.hub.pages.do(ctx, name, false, func(ctx context.Context) (history.Page, error) {
		page, err := s.hub.rangeOf(s.name, at, pageMessages, pageBytes)(ctx)
		if err == nil && page.Epoch == from.epoch && len(page.Messages) > 0 {
			size := 0
			for _, m := range page.Messages {
				size += cost(m)
			}
			s.hub.cache.put(key, page, size)
		}
		return page, err
	})
	if err != nil {
		return history.Page{}, err
	}
	return following(page, from.after), nil
}

// following returns the part of a shared page after the offset.
func following(page history.Page, after uint64) history.Page {
	n := 0
	for n < len(page.Messages) && page.Messages[n].Offset <= after {
		n++
	}
	page.Messages = page.Messages[n:]
	return page
}

// lost looks into a page that did not continue the subscription: what follows
// may be trimmed, the stream may have begun anew, or the page may only be
// older than what this node knows.
func (c *Subscription) lost(ctx context.Context, from place) {
	s := c.stream
	s.mu.Lock()
	before, life := s.markLocked()
	s.mu.Unlock()
	span, err := s.hub.spans.do(ctx, s.name, true, s.hub.headOf(s.name))
	if err != nil {
		return
	}
	s.mu.Lock()
	told := s.settleLocked(before, life, span)
	if s.life == from.life && !s.tail.Covers(from.after) && from.after+1 < s.first {
		span := s.spanLocked()
		c.mu.Lock()
		if c.state == catching && c.turns == from.turns {
			frame := c.group.resetFrame(protocol.ReasonTrimmed, span)
			if c.resetLocked(protocol.ReasonTrimmed, frame, span.Head()) {
				told = append(told, c)
			}
		}
		c.mu.Unlock()
	}
	s.mu.Unlock()
	s.hub.catchups.push(told...)
}
