package pgnotify_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/bus/pgnotify"
	"github.com/chronocast/chronocast/internal/pgtest"
)

// TestBus_TellReachesEveryNode: this one and the others, within two seconds.
func TestBus_TellReachesEveryNode(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	heard := make([]chan string, 2)
	var nodes []*peer
	for i := range heard {
		heard[i] = make(chan string, 8)
		opts := quick
		opts.Told = func(text []byte) { heard[i] <- string(text) }
		nodes = append(nodes, join(t, url, url, opts))
	}
	for _, n := range nodes {
		deadline := time.NewTimer(10 * time.Second)
		defer deadline.Stop()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n.bus.State() != pgnotify.Listening {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatal("a node does not listen")
			}
		}
	}
	const text = `{"sub":"alice * 1:2","reconnect":true}`
	if err := nodes[0].bus.Tell(t.Context(), []byte(text)); err != nil {
		t.Fatal(err)
	}
	for i := range heard {
		select {
		case got := <-heard[i]:
			if got != text {
				t.Errorf("node %d heard %q", i, got)
			}
		case <-time.After(2 * time.Second):
			t.Errorf("node %d heard nothing", i)
		}
	}
	if err := nodes[0].bus.Tell(t.Context(), []byte(strings.Repeat("x", pgnotify.MaxTell+1))); err == nil {
		t.Error("a text was told that PostgreSQL would refuse")
	}
	if err := nodes[0].bus.Tell(t.Context(), []byte(strings.Repeat("x", pgnotify.MaxTell))); err != nil {
		t.Errorf("the longest text: %v", err)
	}
}
