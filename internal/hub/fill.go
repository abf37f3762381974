package hub

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

const (
	fillMessages = 1000    // messages of one read of a gap
	fillBytes    = 1 << 20 // and their payload bytes
	fillAhead    = 4096    // pending messages over which a gap waits for the fan-out
	sweepChunk   = 500     // streams compared with the log in one read
	sweepRetry   = 2 * time.Second
)

// maxDoubts is how often the log is asked for what a hint spoke of, about a
// second and a half in all, before the hint counts as a mistake.
const maxDoubts = 6

// fill reads from the log what the gate misses, one page at a time.
func (s *stream) fill(context.Context) {
	s.mu.Lock()
	before, life := s.markLocked()
	after, _, gap := s.tail.Gap()
	known := s.tail.Known()
	switch {
	case !gap && !s.suspect:
		s.failures = 0
		s.filledLocked()
		s.mu.Unlock()
		return
	case len(s.pending) > fillAhead:
		s.filledLocked()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()

	began := time.Now()
	page, err := timed(s.hub, s.hub.rangeOf(s.name, before.Offset, fillMessages, fillBytes))

	s.mu.Lock()
	var told []*Subscription
	if err != nil {
		s.failures++
	} else {
		told = s.settleLocked(before, life, page.Span)
		s.failures++ // unless it led on: the log may not have what a hint spoke of
		if life != s.life || s.tail.Head() != before {
			s.failures = 0
		}
		if life == s.life && s.failures > maxDoubts && s.tail.Known() == known {
			s.tail.Doubt(page.Last) // anybody who may connect to the database can ring its bell
			if _, _, gap := s.tail.Gap(); !gap {
				s.failures = 0
			}
		}
		if life == s.life && len(page.Messages) > 0 {
			s.failures = 0
			s.addLocked(page.Epoch, page.Messages)
			s.hub.n.gapsFilled.Add(1)
			s.hub.logger.Debug("gap filled from the log", zap.String("stream", s.name),
				zap.Uint64("after", after), zap.Duration("took", time.Since(began)))
		}
	}
	s.filledLocked()
	s.mu.Unlock()
	s.hub.catchups.push(told...)
}

func (s *stream) filledLocked() {
	s.filling = false
	s.absorbLocked()
}

// sweeper compares heads with the log on a timer and when asked. A gate cannot
// see that the newest message never came; this can.
func (h *Hub) sweeper(ctx context.Context) {
	timer := time.NewTimer(h.opts.SweepEvery)
	defer timer.Stop()
	wait := h.opts.SweepEvery
	for {
		select {
		case <-timer.C:
		case <-h.sweepNow:
		case <-ctx.Done():
			return
		}
		if err := h.sweep(ctx); err != nil {
			wait = min(wait*2, max(sweepRetry, h.opts.SweepEvery))
		} else {
			wait = h.opts.SweepEvery
		}
		timer.Reset(wait)
	}
}

func (h *Hub) sweep(ctx context.Context) error {
	for chunk := range slices.Chunk(h.listened(), sweepChunk) {
		if ctx.Err() != nil {
			return nil
		}
		if err := h.sweepChunk(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (h *Hub) sweepChunk(streams []*stream) error {
	type mark struct {
		before protocol.Position
		life   *lifetime
	}
	names := make([]string, len(streams))
	marks := make([]mark, len(streams))
	for i, s := range streams {
		names[i] = s.name
		s.mu.Lock()
		marks[i].before, marks[i].life = s.markLocked()
		s.mu.Unlock()
	}
	spans, err := timed(h, func(ctx context.Context) ([]protocol.Span, error) {
		spans, err := h.log.Heads(ctx, names)
		if err == nil && len(spans) != len(names) {
			err = fmt.Errorf("%d heads for %d streams", len(spans), len(names))
		}
		if err != nil {
			return nil, fmt.Errorf("hub: heads: %w", err)
		}
		return spans, nil
	})
	if err != nil {
		return err
	}
	for i, s := range streams {
		s.mu.Lock()
		told := s.settleLocked(marks[i].before, marks[i].life, spans[i])
		s.mu.Unlock()
		h.catchups.push(told...)
	}
	return nil
}

// listened returns the streams that have subscribers.
func (h *Hub) listened() []*stream {
	var all []*stream
	for _, sh := range h.shards {
		sh.mu.RLock()
		for _, s := range sh.streams {
			if s.pins > 0 {
				all = append(all, s)
			}
		}
		sh.mu.RUnlock()
	}
	return slices.DeleteFunc(all, func(s *stream) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.started || !s.listenedLocked()
	})
}

// keeper keeps memory within its bounds: it lets go of streams nobody listens
// to, of the least recently used windows, and of what the cache holds unused.
func (h *Hub) keeper(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			h.dropIdle(time.Now())
			h.cache.turn()
		case <-h.evictNow:
			h.evict()
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hub) dropIdle(now time.Time) {
	type idle struct {
		s     *stream
		since time.Time
	}
	var kept []idle
	var gone []*stream
	for _, sh := range h.shards {
		sh.mu.Lock()
		for name, s := range sh.streams {
			switch {
			case s.pins > 0:
			case now.Sub(s.idleSince) >= h.opts.Linger:
				delete(sh.streams, name)
				gone = append(gone, s)
			default:
				kept = append(kept, idle{s, s.idleSince})
			}
		}
		sh.mu.Unlock()
	}
	if over := len(kept) - h.opts.MaxIdle; over > 0 {
		slices.SortFunc(kept, func(a, b idle) int { return a.since.Compare(b.since) })
		for _, k := range kept[:over] {
			sh := k.s.sh
			sh.mu.Lock()
			if k.s.pins == 0 && sh.streams[k.s.name] == k.s {
				delete(sh.streams, k.s.name)
				gone = append(gone, k.s)
			}
			sh.mu.Unlock()
		}
	}
	for _, s := range gone {
		h.n.streams.Add(-1)
		s.leave()
	}
}

// evict drops the least recently used windows until an eighth of the total is
// free again.
func (h *Hub) evict() {
	type window struct {
		s    *stream
		used uint64
	}
	var all []window
	for _, sh := range h.shards {
		sh.mu.RLock()
		for _, s := range sh.streams {
			all = append(all, window{s: s})
		}
		sh.mu.RUnlock()
	}
	for i := range all {
		all[i].s.mu.Lock()
		all[i].used = all[i].s.used
		all[i].s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b window) int {
		if a.used < b.used {
			return -1
		}
		return 1
	})
	for _, w := range all {
		if h.window.Load() <= h.opts.WindowTotal-h.opts.WindowTotal/8 {
			return
		}
		w.s.mu.Lock()
		if w.s.started && w.s.counted > 0 {
			w.s.tail.Forget(protocol.MaxOffset + 1)
			h.window.Add(int64(-w.s.counted))
			w.s.counted = 0
			h.n.evicted.Add(1)
		}
		w.s.mu.Unlock()
	}
}

// Head returns what the log holds of a stream now.
func (h *Hub) Head(ctx context.Context, stream string) (protocol.Span, error) {
	return h.spans.do(ctx, stream, true, h.headOf(stream))
}

// Read returns messages after the position, at most limit of them and maxBytes
// of payload but at least one when there is one, from memory or else from the
// log. The page is shared: do not change it. A non-empty Reason tells that the
// position cannot be continued; the page then has only its span. A position
// without epoch is one of the current epoch.
func (h *Hub) Read(ctx context.Context, stream string, after protocol.Position, limit, maxBytes int) (history.Page, protocol.Reason, error) {
	if page, ok := h.readWindow(stream, after, limit, maxBytes); ok {
		return page, "", nil
	}
	key := fmt.Sprintf("read %d %d %d %s", after.Offset, limit, maxBytes, stream)
	page, err := h.pages.do(ctx, key, true, h.rangeOf(stream, after.Offset, limit, maxBytes))
	if err != nil {
		return history.Page{}, "", err
	}
	if reason := page.Span.Check(after); reason != "" {
		return history.Page{Span: page.Span}, reason, nil
	}
	return page, "", nil
}

// readWindow serves what is in memory. The end of the stream is left to the
// log: a commit may have no hint here yet, and when other nodes commit too, a
// page that ends where this node's knowledge ends may not be the last.
func (h *Hub) readWindow(stream string, after protocol.Position, limit, maxBytes int) (history.Page, bool) {
	sh := h.shard(stream)
	s := sh.lookup(stream)
	if s == nil {
		return history.Page{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || time.Since(s.checked) > 2*h.opts.SweepEvery {
		return history.Page{}, false
	}
	s.absorbLocked()
	span := s.spanLocked()
	if span.Check(after) != "" {
		return history.Page{}, false
	}
	msgs, covered := s.tail.After(after.Offset, limit, maxBytes)
	if !covered || len(msgs) == 0 || h.opts.Shared && msgs[len(msgs)-1].Offset == span.Last {
		return history.Page{}, false
	}
	return history.Page{Span: span, Messages: msgs}, true
}
