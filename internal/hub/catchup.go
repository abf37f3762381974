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
	servePushes   = 8         // pushes before others have their turn
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

// feeder is one of the workers that serve subscriptions which catch up.
type feeder struct {
	frames [][]byte // of the push being made
}

// catchUp serves one subscription for a while: it pushes what follows its
// cursor, and makes it live where the cursor meets the fan-out.
func (f *feeder) catchUp(c *Subscription, ctx context.Context) {
	c.mu.Lock()
	c.work = running
	c.mu.Unlock()

	out := f.serve(ctx, c)

	c.mu.Lock()
	again := out == more || (c.work == rerun && c.state == catching)
	c.work = idle
	if again {
		c.work = queued
	}
	wait := time.Duration(0)
	if t := c.trail; t != nil {
		switch out {
		case full:
			if t.stalls++; t.stalls > 1 { // it had room, but not for the next frame
				wait = min(stallMin<<min(t.stalls-2, 6), stallMax)
			}
		case failed:
			t.failures++
			wait = min(retryMin<<min(t.failures-1, 5), retryMax)
		default:
			t.failures = 0
		}
	}
	c.mu.Unlock()

	hub := c.group.stream.hub
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

func (f *feeder) serve(ctx context.Context, c *Subscription) outcome {
	for range servePushes {
		from, out, done := c.pay()
		if done {
			return out
		}
		head, done := c.look(from)
		if done {
			return settled
		}
		blocks, err := f.gather(ctx, c, from, head)
		if len(blocks) == 0 {
			if err == nil {
				c.lost(ctx, from) // a reset has queued it again
			}
			return failed // for now
		}
		if out, done := c.push(from, f.frames, blocks); done {
			return out
		}
	}
	return more
}

// place is where a worker found a subscription.
type place struct {
	trail    *trail
	turns    uint64
	life     *lifetime
	after    uint64
	replayTo uint64
	owing    bool // a frame is due right after replayTo
}

// atLocked says whether the subscription is still where the worker found it,
// but for what the worker has pushed.
func (c *Subscription) atLocked(from place) bool {
	return c.state == catching && c.trail == from.trail && c.trail.turns == from.turns
}

// pay pushes the frames that are owed here.
func (c *Subscription) pay() (from place, out outcome, done bool) {
	c.mu.Lock()
	if c.state != catching {
		c.mu.Unlock()
		return place{}, settled, true
	}
	t := c.trailLocked()
	if t.cut != "" {
		cut := t.cut
		c.state = closed
		c.mu.Unlock()
		c.group.stream.hub.n.cuts.Add(1)
		c.sink.Cut(cut)
		return place{}, settled, true
	}
	defer c.mu.Unlock()
	if t.owed != nil {
		if !c.sink.Push([][]byte{t.owed}) {
			return place{}, full, true
		}
		t.owed, t.sent, t.stalls = nil, c.positionLocked(), 0
	}
	if len(t.done) > 0 && c.cursor >= t.replayTo {
		if !c.sink.Push(t.done) {
			return place{}, full, true
		}
		t.done, t.stalls = nil, 0
	}
	return place{
		trail: t, turns: t.turns, life: c.life,
		after: c.cursor, replayTo: t.replayTo, owing: len(t.done) > 0,
	}, settled, false
}

// look returns how far the stream has come. done tells that the subscription
// is live now, or no longer the worker's.
func (c *Subscription) look(from place) (head uint64, done bool) {
	s := c.group.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absorbLocked()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.atLocked(from) {
		return 0, c.state != catching
	}
	if from.after >= s.fanned && len(c.trail.done) == 0 {
		c.state, c.trail = live, nil
		return 0, true
	}
	return s.tail.Head().Offset, false
}

// block is the frames of some consecutive messages. It is shared.
type block struct {
	frames [][]byte
	to     uint64 // offset of the last
	bytes  int
}

// gather collects in f.frames what is pushed next. The error is that of the
// log; without one, no blocks mean that what follows cannot be had.
func (f *feeder) gather(ctx context.Context, c *Subscription, from place, head uint64) (blocks []block, err error) {
	f.frames = f.frames[:0]
	size, at := 0, from.after
	for len(blocks) == 0 || size < pushBytes && at < head && !(from.owing && at >= from.replayTo) {
		b, err := c.group.blockAfter(ctx, at, from, head)
		if err != nil || b.to == 0 {
			return blocks, err
		}
		f.frames = append(f.frames, b.frames...)
		blocks = append(blocks, b)
		size += b.bytes
		at = b.to
	}
	return blocks, nil
}

// push pushes the blocks, or the first of them, as there is room.
func (c *Subscription) push(from place, frames [][]byte, blocks []block) (out outcome, done bool) {
	defer clear(frames)
	to := blocks[len(blocks)-1].to
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.atLocked(from) {
		return more, c.state != catching
	}
	ok := c.sink.Push(frames)
	if !ok && len(blocks) > 1 {
		to, ok = blocks[0].to, c.sink.Push(blocks[0].frames)
	}
	if !ok {
		return full, true
	}
	c.group.stream.hub.n.delivered.Add(to - c.cursor)
	c.cursor = to
	c.trail.sent, c.trail.stalls = c.positionLocked(), 0
	return more, false
}

// blockEnd returns where the block after an offset ends: at the next aligned
// offset, so that readers at different positions share frames, not across the
// end of the replay, and not past the head.
func blockEnd(after, replayTo, head uint64) uint64 {
	end := after - after%blockMessages + blockMessages
	if after < replayTo {
		end = min(end, replayTo)
	}
	if after < head {
		end = min(end, head)
	}
	return end
}

// blockAfter returns the frames after the offset: those that were encoded for
// another reader, or from the window, or from the log. Its end is 0 when there
// are none. It may end earlier than it could.
func (g *group) blockAfter(ctx context.Context, after uint64, from place, head uint64) (block, error) {
	s := g.stream
	end := blockEnd(after, from.replayTo, head)
	replay := after < from.replayTo
	key := cacheKey{life: from.life.number, from: after, to: end, group: g.key(), replay: replay}
	if b, ok := s.hub.cache.get(key).(block); ok {
		return b, nil
	}
	msgs, ok := s.fromWindow(from.life, after, int(end-after))
	if !ok {
		page, err := s.page(ctx, from.life, after)
		if err != nil || page.Epoch != from.life.epoch {
			return block{}, err
		}
		msgs = page.Messages[:min(len(page.Messages), int(end-after))]
	}
	if len(msgs) == 0 {
		return block{}, nil
	}
	b := block{frames: g.encode(nil, from.life.epoch, msgs, replay), to: msgs[len(msgs)-1].Offset}
	for _, f := range b.frames {
		b.bytes += len(f)
	}
	s.hub.cache.put(key, b, b.bytes+24*len(b.frames))
	return b, nil
}

// fromWindow returns messages in memory; false when the log must be asked.
func (s *stream) fromWindow(life *lifetime, after uint64, limit int) ([]protocol.Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != life {
		return nil, false
	}
	msgs, covered := s.tail.After(after, limit, pageBytes)
	return msgs, covered && len(msgs) > 0
}

// page reads what follows from the log. Reads are aligned, so that readers at
// similar positions share them.
func (s *stream) page(ctx context.Context, life *lifetime, after uint64) (history.Page, error) {
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	aligned := after - after%pageMessages
	if first > 0 && aligned < first-1 && first-1 <= after {
		aligned = first - 1
	}
	page, err := s.readPage(ctx, life, after, aligned)
	if err != nil || aligned == after || len(page.Messages) > 0 || page.Epoch != life.epoch {
		return page, err
	}
	return s.readPage(ctx, life, after, after)
}

// readPage reads a page that begins after the offset at, and returns what
// follows after of it.
func (s *stream) readPage(ctx context.Context, life *lifetime, after, at uint64) (history.Page, error) {
	key := cacheKey{life: life.number, from: at}
	if page, ok := s.hub.cache.get(key).(history.Page); ok {
		if page = following(page, after); len(page.Messages) > 0 {
			return page, nil
		}
	}
	name := strconv.FormatUint(life.number, 10) + " " + strconv.FormatUint(at, 10)
	page, err := s.hub.pages.do(ctx, name, false, func(ctx context.Context) (history.Page, error) {
		page, err := s.hub.rangeOf(s.name, at, pageMessages, pageBytes)(ctx)
		if err == nil && page.Epoch == life.epoch && len(page.Messages) > 0 {
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
	return following(page, after), nil
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
	s := c.group.stream
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
		if c.atLocked(from) {
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
