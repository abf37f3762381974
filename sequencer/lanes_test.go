package sequencer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/protocol"
	. "github.com/chronocast/chronocast/sequencer"
)

// locked is a memory whose streams can be held by somebody else.
type locked struct {
	memory

	mu      sync.Mutex
	held    map[string]chan struct{} // closed when the stream is let go
	shared  []string                 // streams that Append ran into
	waiting int                      // calls of AppendWaiting
	most    int
	down    error // what AppendWaiting fails with
}

const laneWait = 2 * time.Second

func (l *locked) hold(streams ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range streams {
		l.held[s] = make(chan struct{})
	}
}

func (l *locked) free(stream string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[stream])
	delete(l.held, stream)
}

func (l *locked) lockOf(r Request) (string, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range r {
		if lock := l.held[b.Stream]; lock != nil {
			return b.Stream, lock
		}
	}
	return "", nil
}

// store appends what is not held.
func (l *locked) store(ctx context.Context, batch []Request) ([]Result, error) {
	results := make([]Result, len(batch))
	var free []Request
	var at []int
	for i, r := range batch {
		if stream, lock := l.lockOf(r); lock != nil {
			l.mu.Lock()
			l.shared = append(l.shared, stream)
			l.mu.Unlock()
			results[i].Err = fmt.Errorf("log: %w", &LockedError{Stream: stream})
			continue
		}
		free, at = append(free, r), append(at, i)
	}
	stored, err := l.memory.Append(ctx, free)
	for n, i := range at {
		if err == nil {
			results[i] = stored[n]
		}
	}
	return results, err
}

func (l *locked) Append(ctx context.Context, batch []Request) ([]Result, error) {
	return l.store(ctx, batch)
}

func (l *locked) AppendWaiting(ctx context.Context, batch []Request) ([]Result, error) {
	l.mu.Lock()
	l.waiting++
	l.most = max(l.most, l.waiting)
	down := l.down
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
	}()
	if down != nil {
		return nil, down
	}
	if _, lock := l.lockOf(batch[0]); lock != nil {
		select {
		case <-lock:
		case <-time.After(laneWait):
		}
	}
	return l.store(ctx, batch)
}

func startLocked(t *testing.T, o Options) (*locked, *Sequencer, func()) {
	log := &locked{held: map[string]chan struct{}{}}
	s, stop := start(t, log, o)
	return log, s, stop
}

func checkHeld(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if !errors.Is(err, ErrBusy) || !errors.Is(err, ErrNotStored) || !errors.Is(err, ErrLocked) {
			t.Errorf("request %d to a held stream: %v", i, err)
		}
	}
}

func TestB104_HeldStreamDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("held")
		began := time.Now()
		refused := launch(s, one("held", "1"), one("held", "2"))
		for i := range 100 {
			if _, errs := all(s, one("other", fmt.Sprint(i))); errs[0] != nil {
				t.Fatal(errs[0])
			}
		}
		if took := time.Since(began); took > 110*time.Millisecond {
			t.Errorf("100 commits of 1ms took %v beside a held stream", took)
		}
		_, errs := refused()
		checkHeld(t, errs...)
		if took := time.Since(began); took > laneWait+10*time.Millisecond {
			t.Errorf("the held stream's publishers were told after %v", took)
		}
	})
}

func TestLane_NobodyWaitsLongerThanOneTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("held")
		first := launch(s, one("held", "1"))
		time.Sleep(laneWait * 3 / 4)
		began := time.Now()
		second := launch(s, one("held", "2"))
		_, errs := first()
		checkHeld(t, errs...)
		_, errs = second()
		checkHeld(t, errs...)
		if took := time.Since(began); took > laneWait {
			t.Errorf("a request that came during a try waited %v", took)
		}
	})
}

func TestLane_HealsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []uint64
		log, s, stop := startLocked(t, Options{MaxBatch: 3, Committed: func(batches []protocol.Batch) {
			mu.Lock()
			defer mu.Unlock()
			for _, b := range batches {
				for _, m := range b.Messages {
					told = append(told, m.Offset)
				}
			}
		}})
		defer stop()
		log.hold("held")
		var want []string
		var pending []func() ([][]Placed, []error)
		for i := range 10 {
			want = append(want, fmt.Sprint(i))
			pending = append(pending, launch(s, one("held", fmt.Sprint(i))))
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		log.free("held")
		for _, answer := range pending {
			if _, errs := answer(); errs[0] != nil {
				t.Fatal(errs[0])
			}
		}
		want = append(want, "after")
		if _, errs := all(s, one("held", "after")); errs[0] != nil {
			t.Fatal(errs[0])
		}
		if got := log.data["held"]; !slices.Equal(got, want) {
			t.Errorf("stored %v, want %v", got, want)
		}
		if !slices.IsSorted(told) || len(told) != 11 {
			t.Errorf("told %v", told)
		}
		if got := log.shared; !slices.Equal(got, []string{"held"}) {
			t.Errorf("the shared commits ran into held streams %v, want once", got)
		}
	})
}

// A stream stays in its lane when it is found held, so that the shared commits
// do not run into the lock again and again.
func TestLane_SharedCommitsMeetALockOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("held")
		for range 5 {
			_, errs := all(s, one("held", "1"), one("other", "1"))
			checkHeld(t, errs[0])
		}
		meetings := 0
		for _, batch := range log.batches {
			for _, r := range batch {
				if r[0].Stream == "held" {
					meetings++
				}
			}
		}
		if meetings != 0 {
			t.Errorf("%d requests to a held stream were stored", meetings)
		}
		// Once by the shared commit; the other four times by the lane.
		if len(log.shared) != 6 {
			t.Errorf("the lock was met %d times, want once by a shared commit and once for each of 5 tries in the lane", len(log.shared))
		}
	})
}

func TestLane_RequestOverSeveralStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("b")
		answer := launch(s, append(one("a", "1"), one("b", "2")...))
		time.Sleep(time.Second)
		log.free("b")
		if _, errs := answer(); errs[0] != nil {
			t.Fatal(errs[0])
		}
		if len(log.data["a"]) != 1 || len(log.data["b"]) != 1 {
			t.Errorf("stored %v", log.data)
		}
	})
}

func TestLane_Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		var streams []string
		for i := range 20 {
			streams = append(streams, fmt.Sprintf("held%02d", i))
		}
		log.hold(append(streams, "held")...)
		var pending []func() ([][]Placed, []error)
		began := time.Now()
		for _, stream := range streams {
			pending = append(pending, launch(s, one(stream, "1")))
		}
		for _, answer := range pending {
			_, errs := answer()
			checkHeld(t, errs...)
		}
		if log.most != 16 {
			t.Errorf("%d lanes at a time, want 16", log.most)
		}
		if took := time.Since(began); took > laneWait+10*time.Millisecond {
			t.Errorf("refusing took %v", took)
		}
		// One lane's queue is bounded too: what is over the bound is refused now.
		var many []Request
		for range 1500 {
			many = append(many, one("held", "1"))
		}
		began = time.Now()
		_, errs := all(s, many...)
		checkHeld(t, errs...)
		if took := time.Since(began); took > laneWait+100*time.Millisecond {
			t.Errorf("refusing took %v", took)
		}
	})
}

func TestLane_TellsWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("held")
		for _, c := range []struct{ fault, want error }{
			{fmt.Errorf("%w: %w", ErrNotStored, ErrBusy), ErrNotStored},
			{ErrOutcomeUnknown, ErrOutcomeUnknown},
			{errors.New("anything"), ErrOutcomeUnknown},
		} {
			log.down = c.fault
			if _, errs := all(s, one("held", "1")); !errors.Is(errs[0], c.want) {
				t.Errorf("%v became %v", c.fault, errs[0])
			}
		}
		log.down = nil
		log.free("held")
		if _, errs := all(s, one("held", "1")); errs[0] != nil {
			t.Error(errs[0])
		}
	})
}

func TestLane_EndOfRunAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		log.hold("held")
		answer := launch(s, one("held", "1"), one("held", "2"))
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		stop()
		_, errs := answer()
		checkHeld(t, errs...)
	})
}

// A caller that gives up while its request waits in a lane, before its commit
// has begun, hears that nothing is stored, and nothing is.
func TestLane_CancelledBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := startLocked(t, Options{})
		defer stop()
		log.hold("held")
		first := launch(s, one("held", "1"))
		synctest.Wait()
		time.Sleep(10 * time.Millisecond) // the lane waits with the first alone
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := s.Append(ctx, one("held", "2"))
			answer <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-answer; !errors.Is(err, ErrNotStored) || !errors.Is(err, context.Canceled) {
			t.Errorf("a request that waited behind another: %v", err)
		}
		log.free("held")
		if _, errs := first(); errs[0] != nil {
			t.Fatal(errs[0])
		}
		if _, errs := all(s, one("held", "3")); errs[0] != nil {
			t.Fatal(errs[0])
		}
		if got := log.data["held"]; !slices.Equal(got, []string{"1", "3"}) {
			t.Errorf("stored %v", got)
		}
	})
}

// Nodes that wait for each other's commits meet locks all the time; only one
// that is held for long is told, once, and so is its end.
func TestLane_TellsOfLongHoldsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zap.InfoLevel)
		log, s, stop := startLocked(t, Options{Logger: zap.New(core)})
		defer stop()
		for range 5 {
			log.hold("held")
			answer := launch(s, one("held", "1"))
			synctest.Wait()
			time.Sleep(100 * time.Millisecond)
			log.free("held")
			if _, errs := answer(); errs[0] != nil {
				t.Fatal(errs[0])
			}
		}
		if lines.Len() != 0 {
			t.Errorf("%d lines about short waits: %v", lines.Len(), lines.All())
		}
		log.hold("held")
		for range 3 {
			_, errs := all(s, one("held", "1"))
			checkHeld(t, errs...)
		}
		log.free("held")
		if _, errs := all(s, one("held", "1")); errs[0] != nil {
			t.Fatal(errs[0])
		}
		synctest.Wait()
		if lines.Len() != 2 {
			t.Errorf("%d lines about one long hold, want its beginning and its end: %v", lines.Len(), lines.All())
		}
	})
}
