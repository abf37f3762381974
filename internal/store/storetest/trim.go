package storetest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

var noLimits history.Retention

func testTrimCount(t *testing.T, e *env) {
	e.fill("s", 1800)
	e.fill("small", 5)
	keep := history.Retention{Default: history.Limits{Count: 300}}
	if steps := e.trim(keep); steps < 3 {
		t.Errorf("1,500 messages went in %d steps; they should be small", steps)
	}
	if got := e.head("s"); got.First != 1501 || got.Last != 1800 {
		t.Fatalf("span %+v", got)
	}
	if got := len(e.all("s", 1500)); got != 300 {
		t.Fatalf("%d messages", got)
	}
	if page := e.page("s", 1499, 10, 1000); len(page.Messages) != 0 || page.Check(protocol.Position{Offset: 1499}) != protocol.ReasonTrimmed {
		t.Fatalf("a position just before the floor: %+v", page)
	}
	if got := e.head("small"); got.First != 1 {
		t.Fatalf("span of a stream within its limit: %+v", got)
	}
	e.trim(noLimits)
	e.fill("s", 10)
	e.trim(keep)
	if got := e.head("s"); got.First != 1511 || got.Last != 1810 {
		t.Fatalf("after ten more: %+v", got)
	}
	e.all("s", 1510)
}

func testTrimBytes(t *testing.T, e *env) {
	payload := `"` + strings.Repeat("x", 98) + `"`
	for range 40 {
		e.append(one("s", payload), one("other", "1"))
	}
	for _, c := range []struct {
		bytes int64
		first uint64
	}{{4000, 1}, {3999, 2}, {1000, 31}, {100, 40}, {99, 41}, {1, 41}} {
		e.trim(history.Retention{Default: history.Limits{Bytes: c.bytes}})
		if got := e.head("s"); got.First != c.first || got.Last != 40 {
			t.Fatalf("%d bytes: span %+v, want first %d", c.bytes, got, c.first)
		}
	}
	// The account is still right after all has gone.
	for range 5 {
		e.place(one("s", payload))
	}
	e.trim(history.Retention{Default: history.Limits{Bytes: 300}})
	if got := e.head("s"); got.First != 43 || got.Last != 45 {
		t.Fatalf("five more: %+v", got)
	}
	e.all("s", 42)
}

func testTrimAge(t *testing.T, e *env) {
	for range 10 {
		e.append(one("a", "1"), one("b", "1"), one("a", "1"))
		e.pass(time.Minute)
	}
	keep := history.Retention{Default: history.Limits{Age: 5 * time.Minute}}
	e.trim(keep) // the 7th commit is 4 minutes old, the 6th 5 minutes
	if a, b := e.head("a"), e.head("b"); a.First != 13 || a.Last != 20 || b.First != 7 || b.Last != 10 {
		t.Fatalf("spans %+v, %+v", a, b)
	}
	e.all("a", 12)
	e.pass(time.Minute - time.Microsecond)
	e.trim(keep)
	if a := e.head("a"); a.First != 13 {
		t.Fatalf("a microsecond early: %+v", a)
	}
	e.pass(time.Microsecond)
	e.trim(keep)
	if a := e.head("a"); a.First != 15 {
		t.Fatalf("in time: %+v", a)
	}
	e.pass(time.Hour)
	e.trim(keep)
	if a := e.head("a"); a.First != 21 || a.Last != 20 {
		t.Fatalf("all of it: %+v", a)
	}
	if p := e.place(one("a", "1")); p.Offset != 21 {
		t.Fatalf("the numbering began anew: %+v", p)
	}
	if a := e.head("a"); a.First != 21 || a.Last != 21 {
		t.Fatalf("one more: %+v", a)
	}
}

func testTrimRule(t *testing.T, e *env) {
	for range 20 {
		e.append(one("x", "1"), one("chat/1", "1"), one("chat/vip/1", "1"), one("log/1", "1"))
		e.pass(time.Minute)
	}
	keep := history.Retention{
		Default: history.Limits{Count: 10},
		Rules: []history.Rule{
			{Prefix: "chat/", Limits: history.Limits{Age: 5*time.Minute + time.Second}},
			{Prefix: "chat/vip/"},
			{Prefix: "log/", Limits: history.Limits{Age: 10*time.Minute + time.Second, Count: 7}},
		},
	}
	e.trim(keep)
	for stream, first := range map[string]uint64{"x": 11, "chat/1": 16, "chat/vip/1": 1, "log/1": 14} {
		if got := e.head(stream); got.First != first || got.Last != 20 {
			t.Errorf("%s: %+v, want first %d", stream, got, first)
		}
		e.all(stream, first-1)
	}
}

// testTrimStarvesNothing: one stream is over its limit again at every step;
// the expired messages of another go all the same, and so do expired keys.
func testTrimStarvesNothing(t *testing.T, e *env) {
	for i := range 20 {
		e.append(one("old", "1"), keyed("busy", "1", fmt.Sprint("key", i)))
	}
	e.pass(2 * keyWindow)
	keep := history.Retention{Default: history.Limits{Age: time.Hour}, Rules: []history.Rule{{Prefix: "busy", Limits: history.Limits{Count: 5}}}}
	for range 12 {
		e.fill("busy", 600)
		if _, err := e.store.Trim(t.Context(), keep); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.head("old"); got.First != 21 {
		t.Errorf("the old stream after twelve steps: %+v", got)
	}
	if got := e.head("busy"); got.First == 1 {
		t.Errorf("the busy stream after twelve steps: %+v", got)
	}
	// A retention without rules, written differently each time, is the same.
	for range 5 {
		e.trim(history.Retention{Default: history.Limits{Count: 5}, Rules: []history.Rule{}})
	}
}

// testTrimWhilePaging reads pages while the floor rises past the reader. Each
// page continues the last one or says trimmed: never a hole, never an empty
// page below the head.
func testTrimWhilePaging(t *testing.T, e *env) {
	e.fill("s", 3000)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for keep := 2900; keep > 0; keep -= 100 {
			if _, err := e.store.Trim(t.Context(), history.Retention{Default: history.Limits{Count: keep}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	after, trimmed := uint64(0), 0
	for open := true; open && !t.Failed(); {
		select {
		case <-done:
			open = false
		default:
		}
		page, err := e.store.Range(t.Context(), "s", after, 3, 1<<20)
		if err != nil {
			t.Error(err)
			break
		}
		if page.Last != 3000 {
			t.Errorf("the head moved: %+v", page.Span)
		}
		switch reason := page.Check(protocol.Position{Epoch: page.Epoch, Offset: after}); {
		case reason == protocol.ReasonTrimmed:
			if len(page.Messages) > 0 {
				t.Errorf("messages after a trimmed position %d", after)
			}
			trimmed++
			after = page.First - 1
			continue
		case reason != "":
			t.Errorf("after %d: %s of %+v", after, reason, page.Span)
		case len(page.Messages) == 0 && after < page.Last:
			t.Errorf("an empty page after %d of %+v", after, page.Span)
		}
		for _, m := range page.Messages {
			if after++; m.Offset != after || string(m.Data) != fmt.Sprint(after) {
				t.Errorf("offset %d with payload %s where %d was due", m.Offset, m.Data, after)
			}
		}
		if after == page.Last {
			after = page.First - 1
		}
	}
	wg.Wait()
	if trimmed == 0 {
		t.Error("the reader was never overtaken: the test has tested nothing")
	}
}

// testTrimWhilePublishing: whatever trimming does beside the publishers, the
// offsets stay contiguous and the newest messages stay readable.
func testTrimWhilePublishing(t *testing.T, e *env) {
	keep := history.Retention{Default: history.Limits{Count: 50}}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := e.store.Trim(t.Context(), keep); err != nil {
				t.Error(err)
				return
			}
		}
	})
	e.publishers(e.store, "s", 8, 60)
	close(done)
	wg.Wait()
	e.trim(keep)
	if got := e.head("s"); got.Last != 480 || got.First != 431 {
		t.Fatalf("span %+v", got)
	}
	e.all("s", 430)
}
