package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Bounds of what waits for rows that somebody else holds.
const (
	maxLanes       = 16               // waited for at the same time
	maxLaneStreams = 1024             // known to be held
	maxLaneQueue   = 1024             // requests waiting in one lane
	laneForgotten  = 60 * time.Second // a held stream nobody publishes to
	laneTold       = time.Second      // held for so long is worth a line in the log
)

// lanes takes the requests to streams whose channel row is held by somebody
// else's open transaction out of everybody's way: each such stream has a queue
// of its own, and a goroutine as long as something is in it. A stream stays in
// its lane until an append to it has succeeded, so that the shared commits run
// into its lock once and no more. Past the bounds requests are refused at once.
type lanes struct {
	s      *Sequencer
	waiter Waiter
	wg     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	held    map[string]*lane
	running int
}

type lane struct {
	stream  string
	queue   []*waiter
	running bool
	since   time.Time // when it was found held
	told    bool
	used    time.Time
}

// laneOf returns the first stream of r that is in a lane.
func (l *lanes) laneOf(r Request) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) == 0 {
		return "", false
	}
	for i := range r {
		if _, held := l.held[r[i].Stream]; held {
			return r[i].Stream, true
		}
	}
	return "", false
}

// put queues w behind the lock of stream, or refuses it when too much waits.
func (l *lanes) put(ctx context.Context, stream string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[string]*lane{}
	}
	ln := l.held[stream]
	if ln == nil {
		if len(l.held) >= maxLaneStreams {
			l.forgetLocked()
		}
		if len(l.held) >= maxLaneStreams {
			w.answer <- Result{Err: errHeld}
			return
		}
		ln = &lane{stream: stream, since: time.Now()}
		l.held[stream] = ln
	}
	ln.used = time.Now()
	if len(ln.queue) >= maxLaneQueue || (!ln.running && l.running >= maxLanes) {
		w.answer <- Result{Err: errHeld}
		return
	}
	ln.queue = append(ln.queue, w)
	l.s.park(w)
	if !ln.running {
		ln.running = true
		l.running++
		l.wg.Go(func() { l.run(ctx, ln) })
	}
}

func (l *lanes) forgetLocked() {
	for stream, ln := range l.held {
		if !ln.running && time.Since(ln.used) > laneForgotten {
			delete(l.held, stream)
		}
	}
}

var errHeld = fmt.Errorf("%w: %w: %w", ErrNotStored, ErrBusy, ErrLocked)

// run appends what is in the lane until it is empty. When the row was not had
// in time, whatever has queued behind the batch is refused with it: nobody waits
// for longer than one such time, and the next request is the next try.
func (l *lanes) run(ctx context.Context, ln *lane) {
	free := true
	for {
		l.mu.Lock()
		batch := ln.next(l.s.opts.MaxBatch, l.s.opts.MaxBatchBytes)
		var late []*waiter
		if !free {
			late, batch, ln.queue = append(batch, ln.queue...), nil, nil
		}
		begun := l.s.begin(batch)
		if len(batch) > 0 && len(begun) == 0 {
			l.mu.Unlock() // all of them have gone
			continue
		}
		batch = begun
		if len(batch) == 0 {
			ln.running, ln.queue = false, nil
			l.running--
			if free && l.held[ln.stream] == ln {
				delete(l.held, ln.stream)
				if ln.told {
					l.s.zap.Info("the stream is free again", zap.String("stream", ln.stream), zap.Duration("after", time.Since(ln.since)))
				}
			}
			if held := time.Since(ln.since); !free && !ln.told && held >= laneTold {
				ln.told = true
				l.s.zap.Warn("the stream is held by an open transaction", zap.String("stream", ln.stream), zap.Duration("for", held))
			}
			l.mu.Unlock()
			for _, w := range late {
				w.answer <- Result{Err: errHeld}
			}
			return
		}
		l.mu.Unlock()
		free = l.append(ctx, batch)
	}
}

// park notes that w waits in a lane, where it may be withdrawn.
func (s *Sequencer) park(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.parked = true
}

// begin makes those of batch that were not withdrawn part of a commit.
func (s *Sequencer) begin(batch []*waiter) []*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(batch, func(w *waiter) bool {
		gone := !w.parked
		w.parked = false
		return gone
	})
}

// next takes what fits one commit out of the lane's queue. The lock is held.
func (ln *lane) next(count, bytes int) []*waiter {
	n := 0
	for _, w := range ln.queue {
		count, bytes = count-len(w.request), bytes-w.bytes
		if n > 0 && (count < 0 || bytes < 0) {
			break
		}
		n++
	}
	batch := ln.queue[:n:n]
	ln.queue = ln.queue[n:]
	return batch
}

// append commits one batch of a lane; free when the lock was had, or at least
// not seen to be held.
func (l *lanes) append(ctx context.Context, batch []*waiter) (free bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.s.opts.CommitTimeout)
	defer cancel()
	requests := make([]Request, len(batch))
	for i, w := range batch {
		requests[i] = w.request
	}
	results, err := guard(l.s.zap, func() ([]Result, error) { return l.waiter.AppendWaiting(ctx, requests) })
	if err == nil && !answers(results, batch) {
		err = fmt.Errorf("%w: the log's answer does not fit the question", ErrOutcomeUnknown)
	}
	if err != nil {
		if !errors.Is(err, ErrNotStored) && !errors.Is(err, ErrOutcomeUnknown) {
			err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		for _, w := range batch {
			w.answer <- Result{Err: err}
		}
		return false
	}
	var news batcher
	l.s.tell(&news, batch, results)
	for i, w := range batch {
		if errors.Is(results[i].Err, ErrLocked) {
			w.answer <- Result{Err: errHeld}
			continue
		}
		free = true
		w.answer <- results[i]
	}
	return free
}
