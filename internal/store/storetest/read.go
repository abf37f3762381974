package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func testPages(t *testing.T, e *env) {
	e.fill("s", 5000)
	e.fill("other", 10)
	after := uint64(0)
	for range 100 {
		page := e.page("s", after, 50, 1<<20)
		if len(page.Messages) != 50 || page.First != 1 || page.Last != 5000 {
			t.Fatalf("page after %d: %d messages, span %+v", after, len(page.Messages), page.Span)
		}
		for _, m := range page.Messages {
			if after++; m.Offset != after || string(m.Data) != fmt.Sprint(after) {
				t.Fatalf("offset %d with payload %s where %d was due", m.Offset, m.Data, after)
			}
		}
	}
	// B34: ten behind is ten messages, however many lie before them.
	if page := e.page("s", 4990, 1000, 1<<20); len(page.Messages) != 10 || page.Messages[0].Offset != 4991 {
		t.Fatalf("ten behind: %d messages", len(page.Messages))
	}
	for _, after := range []uint64{5000, 5001, protocol.MaxOffset} {
		if page := e.page("s", after, 10, 1<<20); len(page.Messages) != 0 || page.Last != 5000 {
			t.Fatalf("after %d: %+v", after, page)
		}
	}
}

// testRanges interleaves streams so that their rows lie in runs of any length,
// and compares any range with a model.
func testRanges(t *testing.T, e *env) {
	r := rand.New(rand.NewPCG(5, 6))
	model := map[string][]string{}
	for range 80 {
		var batch []sequencer.Request
		for range 1 + r.IntN(12) {
			s := fmt.Sprintf("s%d", r.IntN(3))
			for range 1 + r.IntN(5) {
				data := fmt.Sprint(r.Uint32())
				batch = append(batch, one(s, data))
				model[s] = append(model[s], data)
			}
		}
		e.append(batch...)
	}
	for range 400 {
		s := fmt.Sprintf("s%d", r.IntN(3))
		want := model[s]
		after, limit := r.IntN(len(want)+2), 1+r.IntN(40)
		page := e.page(s, uint64(after), limit, 1<<20)
		expect := want[min(after, len(want)):min(after+limit, len(want))]
		if len(page.Messages) != len(expect) || page.Last != uint64(len(want)) {
			t.Fatalf("%s after %d, limit %d: %d messages of %+v, want %d", s, after, limit, len(page.Messages), page.Span, len(expect))
		}
		for i, m := range page.Messages {
			if m.Offset != uint64(after+i+1) || string(m.Data) != expect[i] {
				t.Fatalf("%s after %d: offset %d with payload %s, want %s", s, after, m.Offset, m.Data, expect[i])
			}
		}
	}
}

func testPagesOfOne(t *testing.T, e *env) {
	e.fill("s", 100) // one commit, one time
	for after := range uint64(100) {
		page := e.page("s", after, 1, 1<<20)
		if len(page.Messages) != 1 || page.Messages[0].Offset != after+1 {
			t.Fatalf("after %d: %+v", after, page.Messages)
		}
	}
}

func testPageBytes(t *testing.T, e *env) {
	for range 4 {
		e.place(one("s", `"`+strings.Repeat("x", 98)+`"`))
	}
	for _, c := range []struct{ limit, maxBytes, want int }{
		{10, 399, 3}, {10, 400, 4}, {10, 100, 1}, {10, 99, 1}, {10, 0, 1}, {2, 1000, 2}, {0, 1000, 0},
	} {
		if page := e.page("s", 0, c.limit, c.maxBytes); len(page.Messages) != c.want || page.Last != 4 {
			t.Errorf("limit %d, %d bytes: %d messages of %+v, want %d", c.limit, c.maxBytes, len(page.Messages), page.Span, c.want)
		}
	}
}

// testReaders reads in a tight loop while 16 publishers append: whatever a
// reader has seen, the next page goes on at the offset after it, and a head
// never shows what cannot be read.
func testReaders(t *testing.T, e *env) {
	const publishers, each = 16, 25
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for after := uint64(0); after < publishers*each && !t.Failed(); {
				page, err := e.store.Range(t.Context(), "s", after, 7, 1<<20)
				if err != nil {
					t.Error(err)
					return
				}
				if after < page.Last && len(page.Messages) == 0 {
					t.Errorf("an empty page after %d, the head is %d", after, page.Last)
					return
				}
				for _, m := range page.Messages {
					if after++; m.Offset != after {
						t.Errorf("offset %d where %d was due", m.Offset, after)
						return
					}
				}
			}
		})
	}
	e.publishers(e.store, "s", publishers, each)
	wg.Wait()
	checkOrder(t, e.all("s", 0), publishers, each)
}

func testSince(t *testing.T, e *env) {
	since := func(stream string, at time.Time) (protocol.Span, uint64) {
		t.Helper()
		span, after, err := e.store.Since(t.Context(), stream, at.UnixMicro())
		if err != nil {
			t.Fatalf("since: %v", err)
		}
		return span, after
	}
	began := e.now()
	if span, after := since("s", began); after != 0 || span.Last != 0 || span.First != 1 {
		t.Fatalf("a stream that was never used: %+v, %d", span, after)
	}
	// Offsets 1..3 at 0 s, 4..6 at 1 s, and so on up to 30 at 9 s; another
	// stream in between.
	for range 10 {
		e.append(one("s", "1"), one("other", "1"), one("s", "1"), one("s", "1"))
		e.pass(time.Second)
	}
	for _, c := range []struct {
		at   time.Duration
		want uint64
	}{
		{-time.Hour, 0}, {0, 0}, {time.Microsecond, 3}, {time.Second, 3}, {1500 * time.Millisecond, 6}, {9 * time.Second, 27},
		{9*time.Second + time.Microsecond, 30}, {time.Hour, 30},
	} {
		if _, after := since("s", began.Add(c.at)); after != c.want {
			t.Errorf("since %v: after %d, want %d", c.at, after, c.want)
		}
	}
	e.trim(history.Retention{Default: history.Limits{Count: 20}}) // 11..30 stay; 10 (at 3 s) is gone
	for _, c := range []struct {
		at      time.Duration
		trimmed bool
		want    uint64
	}{
		{0, true, 0}, {3 * time.Second, true, 0}, {3*time.Second + time.Microsecond, false, 12}, {4 * time.Second, false, 12}, {time.Hour, false, 30},
	} {
		span, after := since("s", began.Add(c.at))
		got := span.Check(protocol.Position{Epoch: span.Epoch, Offset: after})
		if c.trimmed && got != protocol.ReasonTrimmed || !c.trimmed && (got != "" || after != c.want) {
			t.Errorf("after trimming, since %v: after %d of %+v: %q", c.at, after, span, got)
		}
	}
	e.trim(history.Retention{Default: history.Limits{Age: time.Second}})
	if span, after := since("s", began.Add(9*time.Second)); span.Check(protocol.Position{Offset: after}) != protocol.ReasonTrimmed {
		t.Errorf("an emptied stream, since its newest message: after %d of %+v", after, span)
	}
	if span, after := since("s", e.now()); after != 30 || span.Check(protocol.Position{Offset: after}) != "" {
		t.Errorf("an emptied stream, since now: after %d of %+v", after, span)
	}
}

// testClockBack sets the clock back by little and by much: order and
// numbering do not care, and Since leaves nothing out.
func testClockBack(t *testing.T, e *env) {
	for _, step := range []time.Duration{time.Second, -2 * time.Second, time.Second, -2 * time.Hour, time.Minute, -48 * time.Hour, time.Second} {
		e.pass(step)
		e.append(one("s", "1"), one("other", "1"), one("s", "1"))
	}
	all := e.all("s", 0)
	if len(all) != 14 {
		t.Fatalf("%d messages", len(all))
	}
	for _, m := range all {
		_, after, err := e.store.Since(t.Context(), "s", m.At)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(14)
		for i := len(all) - 1; i >= 0; i-- {
			if all[i].At >= m.At {
				want = all[i].Offset - 1
			}
		}
		if after != want {
			t.Errorf("since the time of offset %d: after %d, want %d", m.Offset, after, want)
		}
	}
	e.reopen()
	if p := e.place(one("s", "1")); p.Offset != 15 {
		t.Errorf("after the reopening: %+v", p)
	}
	// Messages from a time that has not come yet go with those after them.
	e.pass(25 * time.Hour)
	e.place(one("s", "1"))
	e.trim(history.Retention{Default: history.Limits{Age: 24 * time.Hour}})
	if span := e.head("s"); span.First != 16 || span.Last != 16 {
		t.Errorf("after trimming by age: %+v", span)
	}
}

func testNames(t *testing.T, e *env) {
	names := []string{
		"a", "A", "é", "e\u0301", " ", "%", "a/b", "a%2Fb", `"'\`, "日本語",
		strings.Repeat("漢", 22), strings.Repeat("漢", 85), // 66 and 255 bytes
		strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 255),
		strings.Repeat("y", 63) + "1", strings.Repeat("y", 63) + "2",
		"🙂", "\u00a0", "\ufeff",
	}
	for i, name := range names {
		if err := protocol.CheckStream(name); err != nil {
			t.Fatalf("name %d: %v", i, err)
		}
		e.place(one(name, fmt.Sprint(i)))
	}
	e.reopen()
	for i, name := range names {
		all := e.all(name, 0)
		if len(all) != 1 || string(all[0].Data) != fmt.Sprint(i) {
			t.Errorf("stream %q: %d messages, not its one", name, len(all))
		}
	}
}

func testBytes(t *testing.T, e *env) {
	big := bytes.Repeat([]byte(`0123456789abcde<`), 1<<16)
	big[0], big[len(big)-1] = '"', '"'
	payloads := [][]byte{
		[]byte("0"), []byte("null"), []byte(`""`), []byte("false"), []byte(` { "b":1 ,"a":[ 1.0, 1e400 ] } `),
		[]byte(`"\u003c<&>\u2028` + "\u2028\u2029" + `\/"`), []byte(`{"a":1,"a":2}`), []byte(`"` + "日本語🙂" + `"`),
		[]byte(`9007199254740993`), big,
	}
	for _, p := range payloads {
		e.append(sequencer.Request{{Stream: "s", Data: p}})
	}
	check := func() {
		t.Helper()
		for i, m := range e.all("s", 0) {
			if !bytes.Equal(m.Data, payloads[i]) {
				t.Errorf("payload %d of %d bytes came back as %d bytes", i, len(payloads[i]), len(m.Data))
			}
		}
	}
	check()
	e.reopen()
	check()
}

func testReopen(t *testing.T, e *env) {
	e.fill("a", 700)
	e.fill("b", 3)
	e.fill("a", 5)
	e.trim(history.Retention{Default: history.Limits{Count: 500}})
	a, b := e.head("a"), e.head("b")
	for range 3 {
		e.reopen()
		if got := e.head("a"); got != a || got.First != 206 {
			t.Fatalf("span of a: %+v, was %+v", got, a)
		}
		if got := e.head("b"); got != b {
			t.Fatalf("span of b: %+v, was %+v", got, b)
		}
		for i, m := range e.all("a", 205) {
			if string(m.Data) != fmt.Sprint(206+i) {
				t.Fatalf("offset %d holds %s", m.Offset, m.Data)
			}
		}
	}
	if p := e.place(one("a", "1")); p.Position != (protocol.Position{Epoch: a.Epoch, Offset: 706}) {
		t.Fatalf("next position %v", p.Position)
	}
	e.all("a", 205)
	// Trimming all and reopening must not begin the numbering anew.
	e.pass(time.Hour)
	e.trim(history.Retention{Default: history.Limits{Age: time.Minute}})
	e.reopen()
	if got, want := e.head("a"), (protocol.Span{Epoch: a.Epoch, First: 707, Last: 706}); got != want {
		t.Fatalf("span of the emptied stream: %+v, want %+v", got, want)
	}
	if p := e.place(one("a", "1")); p.Offset != 707 {
		t.Fatalf("next position %v", p.Position)
	}
	e.all("a", 706)
}

func testEndedContext(t *testing.T, e *env) {
	e.fill("s", 3)
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, read := range map[string]func(ctx context.Context) error{
		"range": func(ctx context.Context) error { _, err := e.store.Range(ctx, "s", 0, 10, 1000); return err },
		"heads": func(ctx context.Context) error { _, err := e.store.Heads(ctx, []string{"s"}); return err },
		"since": func(ctx context.Context) error { _, _, err := e.store.Since(ctx, "s", 0); return err },
	} {
		if err := read(expired); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("%s past its deadline: %v", name, err)
		}
		if err := read(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("%s when its caller has left: %v", name, err)
		}
	}
	if _, err := e.store.Append(expired, []sequencer.Request{one("s", "1")}); !errors.Is(err, sequencer.ErrNotStored) {
		t.Errorf("append past its deadline: %v", err)
	}
	if got := e.head("s").Last; got != 3 {
		t.Errorf("head %d", got)
	}
}
