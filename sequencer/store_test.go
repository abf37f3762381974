package sequencer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chronocast/chronocast/internal/store/sqlite"
	"github.com/chronocast/chronocast/protocol"
	. "github.com/chronocast/chronocast/sequencer"
)

// TestRace_OrderOnTheRealStore: 32 publishers each publish their numbers one
// after the other, to one stream that they share and to one of a few others;
// some give up before they are answered. The invariants: what Committed is told
// has consecutive offsets in every stream, and so has what is read back, with
// the same bytes; and each publisher's numbers ascend.
func TestRace_OrderOnTheRealStore(t *testing.T) {
	const publishers, each = 32, 25
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "race.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()

	told := map[string][]protocol.Message{} // touched by the committing goroutine only
	s, stop := start(t, store, Options{MaxBatch: 20, Committed: func(batches []protocol.Batch) {
		for _, b := range batches {
			told[b.Stream] = append(told[b.Stream], b.Messages...)
		}
	}})
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for i := range each {
				data := fmt.Appendf(nil, "[%d,%d]", p, i)
				r := Request{{Stream: "shared", Data: data}, {Stream: fmt.Sprintf("some/%d", (p+i)%5), Data: data}}
				if p%8 == 7 && i == each-1 {
					go cancel()
				}
				placed, err := s.Append(ctx, r)
				if err != nil && ctx.Err() == nil {
					t.Errorf("publisher %d: %v", p, err)
				}
				if err == nil && len(placed) != 2 {
					t.Errorf("publisher %d: %v", p, placed)
				}
			}
		})
	}
	wg.Wait()
	stop()

	for stream, messages := range told {
		next := map[int]int{}
		page, err := store.Range(t.Context(), stream, 0, publishers*each, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Messages) != len(messages) {
			t.Errorf("%s: told of %d messages, stored are %d", stream, len(messages), len(page.Messages))
			continue
		}
		for i, m := range messages {
			if m.Offset != uint64(i+1) {
				t.Fatalf("%s: told of offset %d where %d was due", stream, m.Offset, i+1)
			}
			if got := page.Messages[i]; got.Offset != m.Offset || string(got.Data) != string(m.Data) || got.At != m.At {
				t.Fatalf("%s: told of %v, stored is %v", stream, m, got)
			}
			var id [2]int
			if err := json.Unmarshal(m.Data, &id); err != nil {
				t.Fatal(err)
			}
			if stream == "shared" && id[1] != next[id[0]] || id[1] < next[id[0]] {
				t.Fatalf("%s: publisher %d's number %d came after %d", stream, id[0], id[1], next[id[0]]-1)
			}
			next[id[0]] = id[1] + 1
		}
	}
	if len(told) != 6 {
		t.Errorf("told of %d streams", len(told))
	}
}
