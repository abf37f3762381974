package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// TestSubscriptions_AsAMap: few or many, in any order of coming and going.
func TestSubscriptions_AsAMap(t *testing.T) {
	h := hub.New(hubtest.NewLog(1), hub.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	codec, sink := protocol.Codecs()[0], hubtest.NewSink(1<<10)
	rnd := rand.New(rand.NewPCG(1, 2))
	var s subscriptions
	want := make(map[string]*subscription)
	for step := range 5000 {
		most := 4 + step%30
		id := fmt.Sprint("id ", rnd.IntN(most))
		switch have := want[id]; {
		case s.get(id) != have:
			t.Fatalf("step %d: %q is %p, want %p", step, id, s.get(id), have)
		case have == nil && rnd.IntN(3) > 0:
			of, _, err := h.Subscribe(ctx, "a", protocol.NewAddress(id, "a"), codec, sink)
			if err != nil {
				t.Fatal(err)
			}
			sub := &subscription{Subscription: of}
			s.put(sub)
			want[id] = sub
		default:
			if got := s.take(id); got != have {
				t.Fatalf("step %d: took %p of %q, want %p", step, got, id, have)
			}
			if have != nil {
				have.Close()
			}
			delete(want, id)
		}
		if len(s.list) != len(want) || s.byID != nil && len(s.byID) != len(want) {
			t.Fatalf("step %d: %d in the list, %d in the map, want %d", step, len(s.list), len(s.byID), len(want))
		}
	}
}
