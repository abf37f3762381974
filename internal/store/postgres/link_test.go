package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/sequencer"
)

// The link breaks around every third batch: before it, after it, and with the
// batch still on its way. The journal tells each time, so that without any key
// nothing is stored twice, nothing lost, and nobody hears that the outcome is
// unknown.
func TestB89_LinkCutAroundTheCommit(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	link := startProxy(t, url)
	faults := func(batch int64) fault {
		if batch%3 != 0 {
			return intact
		}
		return []fault{dropRequest, dropAnswer, late}[batch/3%3]
	}
	n := startNode(t, link.URL, Options{ResolveTimeout: 5 * time.Second, StatementTimeout: 10 * time.Second})
	n.publish(t, "first", `1`)
	link.fault.Store(&faults)
	l := &load{nodes: []*node{n}, publishers: 8, count: 80, streams: 3, keyed: func(p int) bool { return p%4 == 3 }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.run(ctx, t)
	link.fault.Store(nil)
	if batches := link.batches.Load(); batches < 90 {
		t.Errorf("only %d batches were seen", batches)
	}
	if len(l.unknown) > 0 {
		t.Errorf("%d outcomes were not learned", len(l.unknown))
	}
	l.check(t, mustOpen(t, url, Options{}))
	t.Logf("%d batches", link.batches.Load())
}

// Backends are ended while three nodes serve 64 publishers.
func TestBackendsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	l := &load{publishers: 64, count: 40, streams: 5, keyed: func(p int) bool { return p%2 == 0 }}
	for range 3 {
		l.nodes = append(l.nodes, startNode(t, url, Options{}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	killed := 0
	killer := outsider(t, url)
	var wg sync.WaitGroup
	wg.Go(func() {
		for next := int64(0); ; {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if l.progress.Load() < next {
				continue
			}
			next = l.progress.Load() + 100
			var n int
			if err := killer.QueryRow(context.Background(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'chronocast %' AND random() < 0.3`).Scan(&n); err != nil {
				t.Error(err)
				return
			}
			killed += n
		}
	})
	l.run(ctx, t)
	close(done)
	wg.Wait()
	if killed < 10 {
		t.Errorf("only %d backends were ended", killed)
	}
	l.check(t, mustOpen(t, url, Options{}))
	t.Logf("%d backends ended", killed)
}

// The server crashes ten times under load. What was acknowledged is there, and
// the numbering goes on in the same epoch.
func TestServerCrashes(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, "max_connections = 60", "fsync = off") // the server crashes, not the machine
	url := c.URL("postgres")
	l := &load{publishers: 16, count: 240, streams: 3, keyed: func(p int) bool { return p%2 == 0 }}
	for range 2 {
		l.nodes = append(l.nodes, startNode(t, url, Options{}))
	}
	before := head(t, l.nodes[0].Store, "s0").Epoch
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan struct{})
	var wg sync.WaitGroup
	crashes := 0
	wg.Go(func() {
		for next := int64(50); crashes < 10; {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
			if l.progress.Load() < next {
				continue
			}
			if err := errors.Join(c.Stop("immediate"), c.Start()); err != nil {
				t.Error(err)
				return
			}
			crashes++
			next = l.progress.Load() + 50
		}
	})
	l.run(ctx, t)
	close(done)
	wg.Wait()
	if crashes < 5 { // how many fit in depends on how quick the publishers are
		t.Errorf("%d crashes", crashes)
	}
	s := mustOpen(t, url, Options{})
	l.check(t, s)
	for _, n := range l.nodes {
		if got := head(t, n.Store, "s0").Epoch; got != before {
			t.Errorf("the epoch went from %v to %v", before, got)
		}
	}
}

// With the database down everything fails fast, and works again by itself.
func TestOutage_FailsFastAndHeals(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, "max_connections = 40")
	n := startNode(t, c.URL("postgres"), Options{})
	first := n.publish(t, "s", `1`)
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		began := time.Now()
		_, err := n.seq.Append(t.Context(), one("s", `2`))
		if !errors.Is(err, sequencer.ErrBusy) || !errors.Is(err, sequencer.ErrNotStored) {
			t.Fatalf("a publish without a database: %v", err)
		}
		if _, err := n.Range(t.Context(), "s", 0, 10, 1000); !errors.Is(err, history.ErrUnavailable) {
			t.Fatalf("a read without a database: %v", err)
		}
		if _, err := n.Heads(t.Context(), []string{"s"}); !errors.Is(err, history.ErrUnavailable) {
			t.Fatalf("heads without a database: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("failing took %v", took)
		}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		placed, err := n.seq.Append(t.Context(), one("s", `2`))
		if err == nil {
			if want := first.Offset + 1; placed[0].Offset != want || placed[0].Epoch != first.Epoch {
				t.Errorf("after the outage: %v, before it %v", placed[0].Position, first.Position)
			}
			break
		}
		if time.Since(began) > 5*time.Second {
			t.Fatalf("not healed: %v", err)
		}
		wait(t.Context(), 5*time.Millisecond)
	}
	contents(t, n.Store, "s")
}

// The link swallows everything without a word. Callers are answered within the
// bounds of the options, not within the patience of TCP.
func TestOutage_Blackhole(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	link := startProxy(t, url)
	o := Options{StatementTimeout: 400 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond, ResolveTimeout: 300 * time.Millisecond}
	n := startNode(t, link.URL, o)
	n.publish(t, "s", `1`)
	var wg sync.WaitGroup
	for range 8 { // all of the pool's connections are open
		wg.Go(func() { _, _ = n.Range(t.Context(), "s", 0, 10, 1000) })
	}
	wg.Wait()
	link.blackhole()
	for i := range 12 {
		wg.Go(func() {
			began := time.Now()
			_, err := n.seq.Append(t.Context(), one("s", fmt.Sprint(i)))
			if !errors.Is(err, sequencer.ErrNotStored) && !errors.Is(err, sequencer.ErrOutcomeUnknown) {
				t.Errorf("a publish into a black hole: %v", err)
			}
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("publish: answered after %v", took)
			}
		})
		wg.Go(func() {
			began := time.Now()
			if _, err := n.Range(t.Context(), "s", 0, 10, 1000); !errors.Is(err, history.ErrUnavailable) {
				t.Errorf("a read from a black hole: %v", err)
			}
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("read: answered after %v", took)
			}
		})
	}
	wg.Wait()
	// Nobody waits for a dial of his own, and few are made.
	before, answers := link.opened.Load(), 0
	for began := time.Now(); time.Since(began) < 1500*time.Millisecond; answers++ {
		if _, err := n.seq.Append(t.Context(), one("s", `3`)); err == nil {
			t.Fatal("a publish came through a black hole")
		}
	}
	if dials := link.opened.Load() - before; dials > 4 || answers < 50 {
		t.Errorf("%d dials and %d answers in 1.5 s", dials, answers)
	}
	link.heal()
	began := time.Now()
	for {
		if _, err := n.seq.Append(t.Context(), one("s", `4`)); err == nil {
			break
		} else if time.Since(began) > 5*time.Second {
			t.Fatalf("not healed: %v", err)
		}
		wait(t.Context(), 5*time.Millisecond)
	}
	contents(t, n.Store, "s")
}

func TestB107_MoreCallersThanConnections(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{Readers: 3})
	n.publish(t, "s", `1`)
	var wg sync.WaitGroup
	for i := range 13 {
		wg.Go(func() {
			for j := range 100 {
				began := time.Now()
				var err error
				switch (i + j) % 4 {
				case 0:
					_, err = n.seq.Append(t.Context(), one("s", `2`))
				case 1:
					_, err = n.Range(t.Context(), "s", 0, 10, 1000)
				case 2:
					_, err = n.Heads(t.Context(), []string{"s", "t"})
				case 3:
					_, err = n.Trim(t.Context(), history.Retention{})
				}
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("caller %d waited %v", i, took)
				}
			}
		})
	}
	wg.Wait()
}
