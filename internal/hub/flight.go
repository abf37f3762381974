package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

// flights lets callers that want the same read of the log share one. The read
// belongs to the hub: a caller that gives up leaves it to the others. Results
// are shared and must not be changed.
type flights[V any] struct {
	hub *Hub
	mu  sync.Mutex // guards m
	m   map[string]*flight[V]
}

type flight[V any] struct {
	done chan struct{}
	next *flight[V] // begins when this one is done; guarded by flights.mu
	val  V
	err  error
}

// do returns the result of read, its own or that of a read under way for the
// same key. With fresh it takes only a read that begins after the call.
func (g *flights[V]) do(ctx context.Context, key string, fresh bool, read func(context.Context) (V, error)) (V, error) {
	g.mu.Lock()
	f := g.m[key]
	switch {
	case f == nil:
		f = &flight[V]{done: make(chan struct{})}
		if !g.hub.goBackground(func() { g.fly(key, f, read) }) {
			g.mu.Unlock()
			return f.val, ErrClosed
		}
		if g.m == nil {
			g.m = make(map[string]*flight[V])
		}
		g.m[key] = f
	case fresh:
		if f.next == nil {
			f.next = &flight[V]{done: make(chan struct{})}
		}
		f = f.next
	}
	g.mu.Unlock()

	select {
	case <-f.done:
		return f.val, f.err
	case <-ctx.Done():
		var none V
		return none, gaveUp(ctx)
	}
}

// gaveUp is the error of a caller whose ctx ended while it waited for the log:
// when its time was up, the log did not answer in time.
func gaveUp(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", history.ErrUnavailable, cause)
	}
	return cause
}

func (g *flights[V]) fly(key string, f *flight[V], read func(context.Context) (V, error)) {
	for f != nil {
		f.val, f.err = timed(g.hub, read)
		g.mu.Lock()
		next := f.next
		if next == nil {
			delete(g.m, key)
		} else {
			g.m[key] = next
		}
		g.mu.Unlock()
		close(f.done)
		f = next
	}
}

// timed runs one read of the log within its time. Every failure is made an
// ErrUnavailable: to the hub's callers the log did not answer.
func timed[V any](h *Hub, read func(context.Context) (V, error)) (V, error) {
	ctx, cancel := context.WithTimeout(h.ctx, h.opts.ReadTimeout)
	defer cancel()
	h.n.logReads.Add(1)
	val, err := read(ctx)
	if err != nil && !errors.Is(err, history.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", history.ErrUnavailable, err)
	}
	h.reached(err)
	return val, err
}

// headOf reads what the log holds of one stream.
func (h *Hub) headOf(stream string) func(context.Context) (protocol.Span, error) {
	return func(ctx context.Context) (protocol.Span, error) {
		spans, err := h.log.Heads(ctx, []string{stream})
		if err == nil && len(spans) != 1 {
			err = fmt.Errorf("%d heads for one stream", len(spans))
		}
		if err != nil {
			return protocol.Span{}, fmt.Errorf("hub: head of %q: %w", stream, err)
		}
		return spans[0], nil
	}
}

func (h *Hub) rangeOf(stream string, after uint64, limit, maxBytes int) func(context.Context) (history.Page, error) {
	return func(ctx context.Context) (history.Page, error) {
		page, err := h.log.Range(ctx, stream, after, limit, maxBytes)
		if err != nil {
			return page, fmt.Errorf("hub: read %q after %d: %w", stream, after, err)
		}
		return page, nil
	}
}
