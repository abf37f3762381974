package pgnotify_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/internal/bus/pgnotify"
	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/internal/store/postgres"
	"github.com/chronocast/chronocast/sequencer"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m.Run)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// ears keeps what a bus has said.
type ears struct {
	mu     sync.Mutex // guards what follows
	hints  map[string]uint64
	count  int // hints
	sweeps int
	sweptA time.Time // when last
	change chan struct{}
}

func newEars() *ears { return &ears{hints: map[string]uint64{}, change: make(chan struct{})} }

func (e *ears) Hint(stream string, last uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hints[stream] = max(e.hints[stream], last)
	e.count++
	e.wakeLocked()
}

func (e *ears) Sweep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweeps++
	e.sweptA = time.Now()
	e.wakeLocked()
}

func (e *ears) wakeLocked() {
	close(e.change)
	e.change = make(chan struct{})
}

// await waits until cond, called under the lock, holds.
func (e *ears) await(t testing.TB, within time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	began, timer := time.Now(), time.NewTimer(within)
	defer timer.Stop()
	for {
		e.mu.Lock()
		ok, change := cond(), e.change
		e.mu.Unlock()
		if ok {
			return time.Since(began)
		}
		select {
		case <-change:
		case <-timer.C:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// awaitNews waits until the bus has told of the offset, or asked for a sweep
// since the moment after, which finds it as well.
func (e *ears) awaitNews(t testing.TB, within time.Duration, stream string, last uint64, after time.Time) time.Duration {
	t.Helper()
	return e.await(t, within, fmt.Sprintf("news of %s:%d", stream, last), func() bool {
		return e.hints[stream] >= last || e.sweptA.After(after)
	})
}

// awaitHint waits for a hint alone.
func (e *ears) awaitHint(t testing.TB, within time.Duration, stream string, last uint64) time.Duration {
	t.Helper()
	return e.await(t, within, fmt.Sprintf("a hint of %s:%d", stream, last), func() bool { return e.hints[stream] >= last })
}

// peer is a node: a store, and a bus that runs.
type peer struct {
	*testing.T
	store *postgres.Store
	rings rings
	bus   *pgnotify.Bus
	ears  *ears
	logs  *observer.ObservedLogs
	stop  func()
}

// rings remembers what the store was told about ringing.
type rings struct {
	*postgres.Store
	mu *sync.Mutex // guards what follows
	on *bool
}

func (r rings) Ring(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.on = on
	r.Store.Ring(on)
}

func (r rings) ringing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.on
}

var quick = pgnotify.Options{Beat: 200 * time.Millisecond, Poll: 20 * time.Millisecond, Retry: 400 * time.Millisecond}

// join makes a node on the database at url that listens at the address listen.
func join(t *testing.T, url, listen string, opts pgnotify.Options) *peer {
	t.Helper()
	p := open(t, url)
	p.run(listen, opts)
	return p
}

// open makes a node without a bus.
func open(t *testing.T, url string) *peer {
	t.Helper()
	store, err := postgres.Open(t.Context(), url, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &peer{T: t, store: store, rings: rings{store, new(sync.Mutex), new(bool)}, ears: newEars()}
}

func (p *peer) run(listen string, opts pgnotify.Options) {
	p.Helper()
	core, logs := observer.New(zap.InfoLevel)
	opts.Logger = zap.New(core)
	bus, err := pgnotify.New(listen, p.rings, p.ears, opts)
	if err != nil {
		p.Fatal(err)
	}
	p.bus, p.logs = bus, logs
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.Errorf("Run: %v", err)
		}
	})
	p.Cleanup(p.stop)
}

// publish commits n messages and returns the last offset.
func (p *peer) publish(stream string, n int) uint64 {
	p.Helper()
	batch := make([]sequencer.Request, n)
	for i := range batch {
		batch[i] = sequencer.Request{{Stream: stream, Data: []byte("1")}}
	}
	results, err := p.store.Append(context.Background(), batch)
	if err != nil || results[n-1].Err != nil {
		p.Fatalf("append: %v %v", err, results)
	}
	return results[n-1].Placed[0].Offset
}

func (p *peer) await(within time.Duration, what string, cond func() bool) {
	p.Helper()
	deadline, tick := time.NewTimer(within), time.NewTicker(2*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			p.Fatalf("not within %v: %s\n%v", within, what, p.logs.All())
		case <-tick.C:
		}
	}
}

func (p *peer) listening() {
	p.Helper()
	p.await(5*time.Second, "listening", func() bool { return p.bus.State() == pgnotify.Listening })
}

// through is url with another host and port.
func through(t *testing.T, address, hostport string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = hostport
	return u.String()
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
