package sequencer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/protocol"
	. "github.com/chronocast/chronocast/sequencer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Log in memory. Each Append takes a millisecond, and gate, when
// set, decides what becomes of a batch.
type memory struct {
	gate func(ctx context.Context, batch []Request) ([]Result, error)

	mu      sync.Mutex
	last    map[string]uint64
	data    map[string][]string
	batches [][]Request
}

func (m *memory) Append(ctx context.Context, batch []Request) ([]Result, error) {
	time.Sleep(time.Millisecond) // in the fake time of synctest
	m.mu.Lock()
	m.batches = append(m.batches, slices.Clone(batch))
	m.mu.Unlock()
	if m.gate != nil {
		if results, err := m.gate(ctx, batch); results != nil || err != nil {
			return results, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last, m.data = map[string]uint64{}, map[string][]string{}
	}
	results := make([]Result, len(batch))
	for i, r := range batch {
		for _, b := range r {
			m.last[b.Stream]++
			m.data[b.Stream] = append(m.data[b.Stream], string(b.Data))
			results[i].Placed = append(results[i].Placed, Placed{Position: protocol.Position{Epoch: 1, Offset: m.last[b.Stream]}})
		}
	}
	return results, nil
}

func (m *memory) sizes() (sizes []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

// start runs a sequencer until the returned stop is called.
func start(t *testing.T, log Log, o Options) (s *Sequencer, stop func()) {
	t.Helper()
	s = New(log, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func one(stream, data string) Request { return Request{{Stream: stream, Data: []byte(data)}} }

// launch calls Append for each request from a goroutine of its own, in order,
// and returns how to wait for the outcomes.
func launch(s *Sequencer, requests ...Request) (wait func() ([][]Placed, []error)) {
	placed, errs := make([][]Placed, len(requests)), make([]error, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() { placed[i], errs[i] = s.Append(context.Background(), r) })
		synctest.Wait()
	}
	return func() ([][]Placed, []error) {
		wg.Wait()
		return placed, errs
	}
}

func all(s *Sequencer, requests ...Request) ([][]Placed, []error) { return launch(s, requests...)() }

func TestAppend_CallersThatMeetACommitShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{}
		s, stop := start(t, log, Options{})
		defer stop()
		var requests []Request
		for i := range 100 {
			requests = append(requests, one("s", fmt.Sprint(i)))
		}
		began := time.Now()
		placed, errs := all(s, requests...)
		for i := range requests {
			if errs[i] != nil || placed[i][0].Offset != uint64(i+1) {
				t.Fatalf("request %d: %v, %v", i, placed[i], errs[i])
			}
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 99}) {
			t.Errorf("batches of %v, want the first alone and the others together", got)
		}
		if took := time.Since(began); took != 2*time.Millisecond {
			t.Errorf("two commits of 1ms took %v: somebody waited for something else", took)
		}
	})
}

func TestAppend_BatchesKeepTheirBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{}
		s, stop := start(t, log, Options{MaxBatch: 10, MaxBatchBytes: 100})
		defer stop()
		big := `"` + strings.Repeat("x", 58) + `"` // 60 bytes: two are too many
		huge := `"` + strings.Repeat("x", 998) + `"`
		var many Request
		for range 25 {
			many = append(many, one("s", "1")...)
		}
		requests := []Request{one("s", "0"), one("s", huge), one("s", big), one("s", big), many}
		for range 15 {
			requests = append(requests, one("s", "1"))
		}
		_, errs := all(s, requests...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 1, 1, 1, 1, 10, 5}) {
			t.Errorf("batches of %v", got)
		}
	})
}

func TestAppend_ChecksBroadcasts(t *testing.T) {
	s, stop := start(t, &memory{}, Options{})
	defer stop()
	for name, r := range map[string]Request{
		"no payload":        {{Stream: "s"}},
		"no name":           {{Data: []byte("1")}},
		"control character": {{Stream: "a\nb", Data: []byte("1")}},
		"no UTF-8":          {{Stream: "a\xff", Data: []byte("1")}},
		"long name":         {{Stream: strings.Repeat("x", 256), Data: []byte("1")}},
		"long key":          {{Stream: "s", Data: []byte("1"), Key: strings.Repeat("k", MaxKeyBytes+1)}},
		"the second":        {{Stream: "s", Data: []byte("1")}, {Stream: "", Data: []byte("1")}},
	} {
		if _, err := s.Append(t.Context(), r); !errors.Is(err, ErrInvalid) || !errors.Is(err, ErrNotStored) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Append(t.Context(), Request{{Stream: "s", Data: []byte("1"), Key: strings.Repeat("k", MaxKeyBytes)}}); err != nil {
		t.Errorf("a key of the greatest length: %v", err)
	}
	if placed, err := s.Append(t.Context(), nil); placed != nil || err != nil {
		t.Errorf("nothing: %v, %v", placed, err)
	}
}

func TestAppend_OutsideRunIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&memory{}, Options{})
		refused := func(when string) {
			t.Helper()
			if _, err := s.Append(context.Background(), one("s", "1")); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotStored) {
				t.Errorf("%s: %v", when, err)
			}
		}
		refused("before Run")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		refused("after Run")
		if err := s.Run(t.Context()); err == nil {
			t.Error("a second Run began")
		}
	})
}

func TestRun_FinishesTheCommitAndRefusesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(ctx context.Context, batch []Request) ([]Result, error) {
			time.Sleep(time.Second)
			return nil, ctx.Err()
		}}
		s, stop := start(t, log, Options{})
		wait := launch(s, one("s", "1"), one("s", "2"), one("s", "3"))
		stop()
		_, errs := wait()
		if errs[0] != nil {
			t.Errorf("the commit under way: %v", errs[0])
		}
		for _, err := range errs[1:] {
			if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotStored) {
				t.Errorf("queued: %v", err)
			}
		}
	})
}

func TestAppend_OverloadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Options{{MaxQueue: 5}, {MaxQueueBytes: 5}} {
			s, stop := start(t, &memory{}, o)
			_, errs := all(s, one("s", "1"), one("s", "1"), one("s", "1"), one("s", "1"), one("s", "1"), one("s", "1"), one("s", "1"))
			for i, err := range errs {
				switch { // one commits, five wait
				case i < 6 && err != nil:
					t.Errorf("%+v: request %d: %v", o, i, err)
				case i >= 6 && (!errors.Is(err, ErrOverloaded) || !errors.Is(err, ErrNotStored)):
					t.Errorf("%+v: request %d: %v", o, i, err)
				}
			}
			if _, err := s.Append(t.Context(), one("s", "12345678")); err != nil {
				t.Errorf("%+v: a large request on an empty queue: %v", o, err)
			}
			stop()
		}
	})
}

func TestAppend_CancelledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(context.Context, []Request) ([]Result, error) {
			time.Sleep(time.Second)
			return nil, nil
		}}
		var told []string
		s, stop := start(t, log, Options{Committed: func(batches []protocol.Batch) {
			for _, b := range batches {
				for _, m := range b.Messages {
					told = append(told, string(m.Data))
				}
			}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var underWay, queued, other error
		var wg sync.WaitGroup
		wg.Go(func() { _, underWay = s.Append(ctx, one("s", "1")) })
		synctest.Wait()
		wg.Go(func() { _, queued = s.Append(ctx, one("s", "2")) })
		wg.Go(func() { _, other = s.Append(context.Background(), one("s", "3")) })
		wg.Wait()
		if !errors.Is(underWay, ErrOutcomeUnknown) || !errors.Is(underWay, context.DeadlineExceeded) || errors.Is(underWay, ErrNotStored) {
			t.Errorf("commit under way: %v", underWay)
		}
		if !errors.Is(queued, ErrNotStored) || !errors.Is(queued, context.DeadlineExceeded) {
			t.Errorf("queued: %v", queued)
		}
		if other != nil {
			t.Errorf("another caller: %v", other)
		}
		stop()
		if got := log.data["s"]; !slices.Equal(got, []string{"1", "3"}) {
			t.Errorf("stored %v", got)
		}
		// The hub hears of what is stored, whoever waits for it.
		if !slices.Equal(told, []string{"1", "3"}) {
			t.Errorf("told %v", told)
		}
	})
}

// TestAppend_WithdrawnCallersLeaveTheQueue withdraws far more callers than the
// queue has room for while the log stands still.
func TestAppend_WithdrawnCallersLeaveTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(context.Context, []Request) ([]Result, error) {
			time.Sleep(time.Hour)
			return nil, nil
		}}
		s, stop := start(t, log, Options{MaxQueue: 100})
		var wg sync.WaitGroup
		wg.Go(func() { s.Append(context.Background(), one("s", "1")) })
		synctest.Wait()
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			for range 80 {
				wg.Go(func() {
					if _, err := s.Append(ctx, one("s", "2")); !errors.Is(err, ErrNotStored) || errors.Is(err, ErrOverloaded) {
						t.Errorf("withdrawn: %v", err)
					}
				})
			}
			synctest.Wait()
			cancel()
			synctest.Wait()
		}
		wg.Go(func() {
			if _, err := s.Append(context.Background(), one("s", "3")); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		stop()
		if got := log.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("batches of %v", got)
		}
	})
}

// TestAppend_CommitHasItsOwnDeadline: the callers may wait for ever, the log
// may not.
func TestAppend_CommitHasItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(ctx context.Context, _ []Request) ([]Result, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("%w: %w", ErrNotStored, ErrBusy)
		}}
		s, stop := start(t, log, Options{})
		defer stop()
		began := time.Now()
		if _, err := s.Append(context.Background(), one("s", "1")); !errors.Is(err, ErrBusy) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestB115_BadRequestFailsAlone: a request that the log cannot take, and of
// which it says only that the batch was not stored, fails by itself.
func TestB115_BadRequestFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(_ context.Context, batch []Request) ([]Result, error) {
			for _, r := range batch {
				if bytes.Contains(r[0].Data, []byte("bad")) {
					return nil, fmt.Errorf("%w: a row was refused", ErrNotStored)
				}
			}
			return nil, nil
		}}
		s, stop := start(t, log, Options{})
		defer stop()
		var requests []Request
		for i := range 101 {
			data := fmt.Sprint(i)
			if i == 37 || i == 90 {
				data = `"bad"`
			}
			requests = append(requests, one("s", data))
		}
		placed, errs := all(s, requests...)
		next := uint64(1)
		for i := range requests {
			if i == 37 || i == 90 {
				if !errors.Is(errs[i], ErrNotStored) {
					t.Errorf("the bad request: %v", errs[i])
				}
				continue
			}
			if errs[i] != nil || placed[i][0].Offset != next {
				t.Fatalf("request %d: %v, %v, want offset %d", i, placed[i], errs[i], next)
			}
			next++
		}
	})
}

func TestAppend_BusyLogIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{gate: func(context.Context, []Request) ([]Result, error) {
			return nil, fmt.Errorf("%w: %w", ErrNotStored, ErrBusy)
		}}
		s, stop := start(t, log, Options{})
		defer stop()
		_, errs := all(s, one("s", "1"), one("s", "2"), one("s", "3"))
		for _, err := range errs {
			if !errors.Is(err, ErrBusy) || !errors.Is(err, ErrNotStored) {
				t.Error(err)
			}
		}
		if got := log.sizes(); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("batches of %v", got)
		}
	})
}

// TestAppend_AnythingElseIsUnknown: a failure of which the log does not say
// that nothing was stored, a panic, or an answer that does not fit, leaves the
// outcome unknown for the whole batch, tells the hub nothing, and hangs nobody.
func TestAppend_AnythingElseIsUnknown(t *testing.T) {
	for name, gate := range map[string]func(context.Context, []Request) ([]Result, error){
		"error":       func(context.Context, []Request) ([]Result, error) { return nil, errors.New("link lost") },
		"unknown":     func(context.Context, []Request) ([]Result, error) { return nil, ErrOutcomeUnknown },
		"panic":       func(context.Context, []Request) ([]Result, error) { panic("a bug") },
		"few results": func(context.Context, []Request) ([]Result, error) { return []Result{}, nil },
		"few places":  func(_ context.Context, b []Request) ([]Result, error) { return make([]Result, len(b)), nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &memory{gate: gate}
				s, stop := start(t, log, Options{Committed: func([]protocol.Batch) { t.Error("the hub was told") }})
				_, errs := all(s, one("s", "1"), one("s", "2"), one("s", "3"))
				for _, err := range errs {
					if !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotStored) {
						t.Errorf("got %v", err)
					}
				}
				stop()
			})
		})
	}
}

func TestCommitted_IsToldBeforeTheCallerAndNotOfRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := func(epoch protocol.Epoch, offset uint64, repeat bool) Placed {
			return Placed{Position: protocol.Position{Epoch: epoch, Offset: offset}, At: 9, Repeat: repeat}
		}
		log := &memory{gate: func(_ context.Context, batch []Request) ([]Result, error) {
			if len(batch) == 1 {
				return nil, nil
			}
			return []Result{
				{Placed: []Placed{place(5, 1, false), place(5, 7, false)}},
				{Err: ErrKeyConflict},
				{Placed: []Placed{place(5, 1, true), place(5, 2, false), place(6, 8, false)}},
			}, nil
		}}
		var told []protocol.Batch
		s, stop := start(t, log, Options{Committed: func(b []protocol.Batch) {
			told = b
			panic("the hub must not break publishing")
		}})
		defer stop()
		_, errs := all(s, one("x", "0"),
			Request{{Stream: "a", Data: []byte("1")}, {Stream: "b", Data: []byte("2")}},
			one("a", "3"),
			Request{{Stream: "a", Data: []byte("1")}, {Stream: "a", Data: []byte("4")}, {Stream: "b", Data: []byte("5")}},
		)
		if errs[1] != nil || !errors.Is(errs[2], ErrKeyConflict) || errs[3] != nil {
			t.Fatalf("%v", errs)
		}
		want := `[{a 5 [{1 9 [49]} {2 9 [52]}]} {b 5 [{7 9 [50]}]} {b 6 [{8 9 [53]}]}]`
		if got := fmt.Sprint(told); got != want {
			t.Errorf("told %s, want %s", got, want)
		}
	})
}
