package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// ledger is a publish function that stores as a sequencer does: atomically,
// with a key's repeat answered by the first position.
type ledger struct {
	mu       sync.Mutex
	streams  map[string][]string // payloads in order
	keys     map[string]uint64   // stream and key → offset
	at       []time.Time         // when each broadcast was stored
	requests int

	// before runs ahead of storing, without the lock, and may refuse; after
	// runs once stored and may deny that it happened.
	before, after func(call int) error
}

func newLedger() *ledger {
	return &ledger{streams: map[string][]string{}, keys: map[string]uint64{}}
}

func (l *ledger) publish(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error) {
	l.mu.Lock()
	l.requests++
	call := l.requests
	l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", sequencer.ErrNotStored, err)
	}
	if l.before != nil {
		if err := l.before(call); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	placed := make([]sequencer.Placed, len(r))
	for i, b := range r {
		key := b.Stream + "\x00" + b.Key
		offset, repeat := l.keys[key]
		if b.Key == "" || !repeat {
			l.streams[b.Stream] = append(l.streams[b.Stream], string(b.Data))
			offset = uint64(len(l.streams[b.Stream]))
			l.keys[key] = offset
			l.at = append(l.at, time.Now())
		}
		placed[i] = sequencer.Placed{Position: protocol.Position{Epoch: 1, Offset: offset}, Repeat: repeat}
	}
	if l.after != nil {
		if err := l.after(call); err != nil {
			return nil, err
		}
	}
	return placed, nil
}

func (l *ledger) text(t *testing.T, stream string) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, data := range l.streams[stream] {
		var s string
		if err := json.Unmarshal([]byte(data), &s); err != nil {
			t.Fatalf("payload %q: %v", data, err)
		}
		b.WriteString(s)
	}
	return b.String()
}

func (l *ledger) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *ledger) count(stream string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams[stream])
}

// inBubble runs f beside d.Run in a synctest bubble and ends Run after it.
func inBubble(t *testing.T, l *ledger, opts Options, f func(t *testing.T, d *Demo)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := New(l.publish, opts)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		synctest.Wait()
		f(t, d)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func mustOrder(t *testing.T, d *Demo, stream string, rate float64, from int) string {
	t.Helper()
	name, _, err := d.order(stream, rate, from)
	if err != nil {
		t.Fatalf("order: %v", err)
	}
	return name
}

func TestAnswerIsTheTextAtTheRate(t *testing.T) {
	for _, rate := range []float64{MinRate, 60, MaxRate} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			l := newLedger()
			inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
				stream := mustOrder(t, d, "", rate, 0)
				time.Sleep(10 * time.Second) // the bubble's clock
				synctest.Wait()
				if got, want := l.count(stream), min(int(10*rate)+1, len(d.tokens)); got < want-1 || got > want+1 {
					t.Errorf("%d tokens after 10 s at %v a second, want %d", got, rate, want)
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if l.text(t, stream) != answerText {
					t.Error("the stream does not hold the text")
				}
			})
		})
	}
}

// A commit that takes longer than the time between two tokens does not slow the
// answer down: what has fallen due goes together.
func TestSlowCommitsKeepTheRate(t *testing.T) {
	l := newLedger()
	l.before = func(int) error { time.Sleep(20 * time.Millisecond); return nil }
	inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
		stream := mustOrder(t, d, "", 400, 0)
		time.Sleep(time.Second)
		if got := l.count(stream); got < 370 || got > 401 {
			t.Errorf("%d tokens after 1 s at 400 a second", got)
		}
	})
}

func TestOrderForARunningAnswerChangesItsRate(t *testing.T) {
	l := newLedger()
	inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
		stream := mustOrder(t, d, "", 10, 0)
		time.Sleep(time.Second)
		if _, begun, err := d.order(stream, 100, 0); begun || err != nil {
			t.Errorf("second order: begun %v, %v", begun, err)
		}
		before := l.count(stream)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := l.count(stream) - before; got < 180 || got > 202 {
			t.Errorf("%d tokens in 2 s at 100 a second", got)
		}
	})
}

// B163: a publisher that tries again must not send again what was stored.
func TestB163_RetryNeverDoubles(t *testing.T) {
	t.Run("outcome unknown", func(t *testing.T) {
		l := newLedger()
		l.after = func(call int) error {
			if call%5 == 0 {
				return fmt.Errorf("store: %w", sequencer.ErrOutcomeUnknown)
			}
			return nil
		}
		inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
			stream := mustOrder(t, d, "", 100, 0)
			time.Sleep(time.Minute)
			if l.text(t, stream) != answerText {
				t.Error("a retried token is doubled or missing")
			}
		})
	})
	t.Run("generation restarted from token 0", func(t *testing.T) {
		l := newLedger()
		inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
			stream := mustOrder(t, d, "demo/again", 100, 0)
			time.Sleep(time.Minute)
			requests := l.calls()
			if _, begun, _ := d.order(stream, 100, 0); !begun {
				t.Fatal("the second order did not begin")
			}
			time.Sleep(time.Second)
			if l.text(t, stream) != answerText {
				t.Error("the restarted generation doubled tokens")
			}
			if l.calls() == requests {
				t.Error("the restarted generation published nothing")
			}
		})
	})
	t.Run("rest of an answer that was cut off", func(t *testing.T) {
		l := newLedger()
		inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
			stream := "demo/half"
			for i := range 700 {
				if _, err := d.publishTokens(t.Context(), stream, i, 1); err != nil {
					t.Fatal(err)
				}
			}
			// The order names a token that is stored already.
			mustOrder(t, d, stream, 100, 650)
			time.Sleep(time.Minute)
			if l.text(t, stream) != answerText {
				t.Error("the rest does not join up")
			}
		})
	})
}

func TestBusyLogIsTriedAgain(t *testing.T) {
	l := newLedger()
	l.before = func(call int) error {
		switch {
		case call > 10 && call < 20:
			return fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrBusy)
		case call > 30 && call < 34:
			return sequencer.ErrOverloaded
		}
		return nil
	}
	inBubble(t, l, Options{}, func(t *testing.T, d *Demo) {
		stream := mustOrder(t, d, "", 200, 0)
		time.Sleep(time.Minute)
		if l.text(t, stream) != answerText {
			t.Error("the text did not get through")
		}
	})
}

func TestAnswerIsGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		requests int
	}{
		"key conflict":      {sequencer.ErrKeyConflict, 1},
		"stream full":       {sequencer.ErrStreamFull, 1},
		"closed":            {fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrClosed), 1},
		"busy for too long": {sequencer.ErrBusy, 4},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			l.before = func(int) error { return tt.err }
			inBubble(t, l, Options{Attempts: 4, Answers: 1}, func(t *testing.T, d *Demo) {
				mustOrder(t, d, "", 100, 0)
				time.Sleep(time.Minute)
				if got := l.calls(); got != tt.requests {
					t.Errorf("%d attempts, want %d", got, tt.requests)
				}
				// Its place is free again.
				if _, _, err := d.order("", 100, 0); err != nil {
					t.Errorf("next order: %v", err)
				}
			})
		})
	}
}

func TestHangingPublishIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, hung := newLedger(), 0
		d := New(func(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error) {
			if hung++; hung == 1 {
				<-ctx.Done()
				return nil, fmt.Errorf("%w: %w", sequencer.ErrOutcomeUnknown, ctx.Err())
			}
			return l.publish(ctx, r)
		}, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		synctest.Wait()
		stream := mustOrder(t, d, "", 400, 0)
		time.Sleep(20 * time.Second)
		if l.text(t, stream) != answerText {
			t.Error("the text did not get through")
		}
		cancel()
		<-ended
	})
}

// An answer that the end of Run meets while it publishes is stopped, as one is
// that the end meets while it waits: no reason to warn.
func TestStoppedIsNoWarning(t *testing.T) {
	for name, tt := range map[string]struct {
		publish func(ctx context.Context) error
		want    string
	}{
		"while waiting":             {func(context.Context) error { return nil }, "info answer stopped"},
		"while publishing":          {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "info answer stopped"},
		"while the sequencer stops": {func(ctx context.Context) error { <-ctx.Done(); return sequencer.ErrClosed }, "info answer stopped"},
		"by itself":                 {func(context.Context) error { return sequencer.ErrStreamFull }, "warn answer given up"},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			synctest.Test(t, func(t *testing.T) {
				d := New(func(ctx context.Context, _ sequencer.Request) ([]sequencer.Placed, error) {
					return nil, tt.publish(ctx)
				}, Options{Logger: zap.New(core)})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- d.Run(ctx) }()
				synctest.Wait()
				mustOrder(t, d, "", 10, 0)
				synctest.Wait()
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("Run: %v", err)
				}
			})
			var got []string
			for _, e := range logs.All() {
				got = append(got, e.Level.String()+" "+e.Message)
			}
			if len(got) != 1 || got[0] != tt.want {
				t.Errorf("logged %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDeadlineEndsAnAnswer(t *testing.T) {
	l := newLedger()
	inBubble(t, l, Options{Deadline: 10 * time.Second, Answers: 1}, func(t *testing.T, d *Demo) {
		stream := mustOrder(t, d, "", 10, 0)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := l.count(stream); got < 99 || got > 101 {
			t.Errorf("%d tokens, want those of 10 s", got)
		}
		mustOrder(t, d, "", 10, 0)
	})
}

func TestAnswersAreBoundedAndStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		d := New(l.publish, Options{Answers: 3})
		if _, _, err := d.order("", 0, 0); !errors.Is(err, errStopped) {
			t.Errorf("order before Run: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		synctest.Wait()
		streams := map[string]bool{}
		for range 3 {
			streams[mustOrder(t, d, "", 10, 0)] = true
		}
		if len(streams) != 3 {
			t.Errorf("3 orders share %d streams", len(streams))
		}
		if _, _, err := d.order("", 10, 0); !errors.Is(err, errBusy) {
			t.Errorf("fourth order: %v", err)
		}
		time.Sleep(time.Second)
		cancel()
		<-ended
		synctest.Wait() // goroutines left behind would publish on
		requests := l.calls()
		time.Sleep(time.Minute)
		if l.calls() != requests {
			t.Error("something is published after Run has returned")
		}
		if _, _, err := d.order("", 10, 0); !errors.Is(err, errStopped) {
			t.Errorf("order after Run: %v", err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.answers) != 0 {
			t.Errorf("%d answers are still counted", len(d.answers))
		}
	})
}

func TestTokensAreJSONStrings(t *testing.T) {
	d := New(newLedger().publish, Options{})
	for i, tok := range d.tokens {
		if !json.Valid(tok) || tok[0] != '"' || bytes.ContainsRune(tok, '\n') {
			t.Errorf("token %d is %s", i, tok)
		}
	}
}
