package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// skewed is a PostgreSQL server whose clock set moves, at once and while it
// runs: by "+1h", "-1h", "+0".
func skewed(t *testing.T) (c *pgtest.Cluster, set func(offset string)) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		t.Fatal("libfaketime is missing: run `make test`, which installs what the tests need")
	}
	c = pgtest.Start(t)
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	clock := filepath.Join(filepath.Dir(c.Dir), "clock")
	set = func(offset string) {
		t.Helper()
		// Renamed into place, so that nobody reads half of it.
		if err := os.WriteFile(clock+".new", []byte(offset+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	set("+0")
	c.Env = []string{"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, set
}

// B14: the clock of the database goes an hour forward and two hours back under
// load. Order, numbering, epoch and delivery do not care: no gap, no reset.
func TestB14_TheDatabasesClockJumpsOnManyNodes(t *testing.T) {
	t.Parallel()
	c, set := skewed(t)
	url := c.URL("postgres")
	// Keys are forgotten by the clock: their window has to be longer than it jumps.
	nodes := newNodes(t, 2, url, append([]string{"--key-window", "24h"}, keepAll...)...)
	together(t, nodes)
	streams := []string{"clock/a", "clock/b"}
	sp := newSpread(t, nodes)
	var clients []*node
	for _, s := range nodes {
		clients = append(clients, ours(t, s.ws(), "start", streams...))
	}
	if _, err := sp.send(t.Context(), "clock/a", `"the first"`); err != nil {
		t.Fatal(err)
	}
	epoch := nodes[0].head("clock/a").Epoch
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		sp.pool(ctx, 12, 0, func(w, i int) (string, string) {
			return streams[(w+i)%2], fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	})
	conn := psql(t, url)
	jumps := []string{"+1h", "-1h", "+0", "-1h", "+1h", "+0"}
	for _, offset := range jumps {
		before := sp.ledger.total()
		set(offset)
		var off time.Duration
		var now time.Time
		if err := conn.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
			t.Fatal(err)
		}
		if offset != "+0" {
			off, _ = time.ParseDuration(offset)
		}
		if wrong := (time.Until(now) - off).Abs(); wrong > time.Minute {
			t.Fatalf("the database's clock is not at %s: %v off", offset, time.Until(now))
		}
		eventually(t, 20*time.Second, "publishing goes on", func() bool { return sp.ledger.total() >= before+100 })
	}
	stop()
	publishing.Wait()
	delivered := sp.verdict(t, nodes, clients, streams)
	for i, s := range nodes {
		if got := s.head("clock/a").Epoch; got != epoch {
			t.Errorf("node %d: the epoch went from %s to %s", i, epoch, got)
		}
	}
	figure(t, "B14: the database's clock jumped %d times by up to two hours under 12 publishers on 2 nodes: %d acknowledged, %d delivered in order, 0 resets", len(jumps), sp.ledger.total(), delivered)
}
