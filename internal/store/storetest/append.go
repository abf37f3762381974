package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func testContiguous(t *testing.T, e *env) {
	next := map[string]uint64{}
	r := rand.New(rand.NewPCG(1, 2))
	var at int64
	for range 60 {
		var batch []sequencer.Request
		for range 1 + r.IntN(90) {
			var request sequencer.Request
			for range 1 + r.IntN(4) {
				request = append(request, one(fmt.Sprintf("s%d", r.IntN(7)), "1")...)
			}
			batch = append(batch, request)
		}
		e.pass(time.Millisecond)
		for i, result := range e.append(batch...) {
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			for j, p := range result.Placed {
				s := batch[i][j].Stream
				if next[s]++; p.Offset != next[s] || p.Repeat || p.Epoch == 0 || p.At < at {
					t.Fatalf("stream %s: got %+v where offset %d was due, not before %d", s, p, next[s], at)
				}
				at = p.At
			}
		}
	}
	for s, last := range next {
		if got := len(e.all(s, 0)); got != int(last) {
			t.Errorf("stream %s: %d messages, want %d", s, got, last)
		}
	}
}

func testAtomic(t *testing.T, e *env) {
	e.place(keyed("a", "1", "k"))
	results := e.append(
		one("b", `"before"`),
		sequencer.Request{{Stream: "b", Data: []byte(`"half"`)}, {Stream: "c", Data: []byte(`"half"`)}, {Stream: "a", Data: []byte("2"), Key: "k"}},
		one("b", `"after"`),
	)
	if !errors.Is(results[1].Err, sequencer.ErrKeyConflict) {
		t.Fatalf("got %v, want a conflict", results[1].Err)
	}
	if results[0].Err != nil || results[2].Err != nil || results[0].Placed[0].Offset != 1 || results[2].Placed[0].Offset != 2 {
		t.Fatalf("the neighbours of a refused request: %+v, %+v", results[0], results[2])
	}
	for stream, want := range map[string]uint64{"a": 1, "b": 2, "c": 0} {
		if got := e.head(stream).Last; got != want {
			t.Errorf("head of %s is %d, want %d", stream, got, want)
		}
	}

	var large sequencer.Request
	for i := range 1000 {
		large = append(large, one(fmt.Sprintf("large%d", i%3), fmt.Sprint(i))...)
	}
	result := e.append(large)[0]
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	for i, p := range result.Placed {
		if p.Offset != uint64(i/3+1) {
			t.Fatalf("broadcast %d of a large request has offset %d", i, p.Offset)
		}
	}
	if got := e.all("large0", 0); string(got[333].Data) != "999" {
		t.Errorf("last message of large0 is %s", got[333].Data)
	}
}

func testNeverUsed(t *testing.T, e *env) {
	before := e.head("quiet")
	if before.Epoch == 0 || before.First != 1 || before.Last != 0 {
		t.Fatalf("span of a stream that was never used: %+v", before)
	}
	if page := e.page("quiet", 0, 10, 1000); page.Span != before || len(page.Messages) != 0 {
		t.Fatalf("page of a stream that was never used: %+v", page)
	}
	e.reopen()
	if got := e.head("quiet"); got != before {
		t.Fatalf("after a reopening: %+v, before: %+v", got, before)
	}
	if p := e.place(one("quiet", "1")); p.Position != (protocol.Position{Epoch: before.Epoch, Offset: 1}) {
		t.Fatalf("first position %v does not continue %v", p.Position, before.Head())
	}
}

func testHeads(t *testing.T, e *env) {
	e.fill("two", 2)
	e.fill("five", 5)
	names := []string{"five", "none", "two", "five"}
	var many []string
	for i := range 1000 {
		many = append(many, names[i%len(names)])
	}
	spans, err := e.store.Heads(t.Context(), many)
	if err != nil || len(spans) != len(many) {
		t.Fatalf("%d spans, %v", len(spans), err)
	}
	for i, span := range spans {
		if want := map[string]uint64{"five": 5, "two": 2, "none": 0}[many[i]]; span.Last != want || span.First != 1 || span.Epoch != spans[0].Epoch {
			t.Fatalf("span %d of %s: %+v", i, many[i], span)
		}
	}
	if spans, err := e.store.Heads(t.Context(), nil); err != nil || len(spans) != 0 {
		t.Fatalf("heads of nothing: %v, %v", spans, err)
	}
}

func testRepeat(t *testing.T, e *env) {
	first := e.place(keyed("s", "1", "key"))
	e.fill("s", 3)
	for range 3 {
		e.pass(time.Minute)
		again := e.place(keyed("s", "1", "key"))
		if want := (sequencer.Placed{Position: first.Position, At: first.At, Repeat: true}); again != want || first.Repeat {
			t.Fatalf("got %+v, want %+v", again, want)
		}
	}
	e.reopen()
	if again := e.place(keyed("s", "1", "key")); again.Position != first.Position || !again.Repeat {
		t.Fatalf("after a reopening: %+v, first %+v", again, first)
	}
	if got := e.head("s").Last; got != 4 {
		t.Fatalf("the head moved to %d", got)
	}
	e.all("s", 0)
	// A request may hold both something new and a repeat.
	mixed := e.append(sequencer.Request{{Stream: "s", Data: []byte("2"), Key: "new"}, {Stream: "s", Data: []byte("1"), Key: "key"}})[0]
	if mixed.Err != nil || mixed.Placed[0].Offset != 5 || mixed.Placed[0].Repeat || mixed.Placed[1].Offset != 1 || !mixed.Placed[1].Repeat {
		t.Fatalf("a mixed request: %+v", mixed)
	}
}

func testRepeatInBatch(t *testing.T, e *env) {
	results := e.append(
		one("s", "0"),
		keyed("s", "1", "k"),
		keyed("s", "1", "k"),
		keyed("s", "2", "k"),
		sequencer.Request{{Stream: "s", Data: []byte("1"), Key: "k"}, {Stream: "s", Data: []byte("3"), Key: "l"}, {Stream: "s", Data: []byte("3"), Key: "l"}},
		sequencer.Request{{Stream: "s", Data: []byte("4"), Key: "m"}, {Stream: "s", Data: []byte("5"), Key: "m"}},
		keyed("s", "5", "m"),
	)
	type place struct {
		offset uint64
		repeat bool
	}
	for i, want := range [][]place{{{1, false}}, {{2, false}}, {{2, true}}, nil, {{2, true}, {3, false}, {3, true}}, nil, {{4, false}}} {
		if want == nil {
			if !errors.Is(results[i].Err, sequencer.ErrKeyConflict) {
				t.Errorf("request %d: %+v, want a conflict", i, results[i])
			}
			continue
		}
		for j, w := range want {
			if p := results[i].Placed[j]; p.Offset != w.offset || p.Repeat != w.repeat {
				t.Errorf("request %d: broadcast %d is at %+v, want %+v", i, j, p, w)
			}
		}
	}
	var data []string
	for _, m := range e.all("s", 0) {
		data = append(data, string(m.Data))
	}
	if fmt.Sprint(data) != "[0 1 3 5]" {
		t.Errorf("stored %v", data)
	}
}

func testConflict(t *testing.T, e *env) {
	e.place(keyed("s", "1", "key"))
	result := e.append(keyed("s", "2", "key"))[0]
	if !errors.Is(result.Err, sequencer.ErrKeyConflict) || result.Placed != nil {
		t.Fatalf("another body under a key: %+v", result)
	}
	if got := e.head("s").Last; got != 1 {
		t.Fatalf("the head moved to %d", got)
	}
	if p := e.place(keyed("s", "1", "key")); !p.Repeat {
		t.Fatalf("the first body: %+v", p)
	}
}

func testRefusedKey(t *testing.T, e *env) {
	e.place(keyed("s", "1", "used"))
	refused := sequencer.Request{{Stream: "s", Data: []byte("2"), Key: "fresh"}, {Stream: "s", Data: []byte("other"), Key: "used"}}
	if result := e.append(refused)[0]; !errors.Is(result.Err, sequencer.ErrKeyConflict) {
		t.Fatalf("%+v", result)
	}
	if p := e.place(keyed("s", "2", "fresh")); p.Repeat || p.Offset != 2 {
		t.Fatalf("a key of a refused request was noted: %+v", p)
	}
	results := e.append(
		sequencer.Request{{Stream: "s", Data: []byte("3"), Key: "later"}, {Stream: "s", Data: []byte("other"), Key: "used"}},
		keyed("s", "4", "later"),
	)
	if results[1].Err != nil || results[1].Placed[0].Repeat {
		t.Fatalf("a key of a request refused in the same batch was noted: %+v", results[1])
	}
}

func testNoKey(t *testing.T, e *env) {
	a, b := e.place(one("s", "1")), e.place(one("s", "1"))
	if a.Offset != 1 || b.Offset != 2 || b.Repeat {
		t.Fatalf("two broadcasts without a key: %+v, %+v", a, b)
	}
	c, d := e.place(keyed("x", "1", "key")), e.place(keyed("y", "1", "key"))
	if c.Repeat || d.Repeat || c.Offset != 1 || d.Offset != 1 {
		t.Fatalf("one key on two streams: %+v, %+v", c, d)
	}
	// Where stream and key meet must not be guessed from their text alone.
	f, g := e.place(keyed("ab", "1", "c")), e.place(keyed("a", "1", "bc"))
	if f.Repeat || g.Repeat {
		t.Fatalf("ab+c and a+bc: %+v, %+v", f, g)
	}
}

func testKeyWindow(t *testing.T, e *env) {
	first := e.place(keyed("s", "1", "key"))
	e.pass(keyWindow - time.Microsecond)
	if p := e.place(keyed("s", "1", "key")); !p.Repeat || p.Position != first.Position {
		t.Fatalf("just inside the window: %+v", p)
	}
	e.pass(time.Microsecond) // the use just now does not make the window longer
	second := e.place(keyed("s", "2", "key"))
	if second.Repeat || second.Offset != 2 {
		t.Fatalf("at the end of the window: %+v", second)
	}
	e.pass(keyWindow - time.Microsecond)
	if p := e.place(keyed("s", "2", "key")); !p.Repeat || p.Position != second.Position {
		t.Fatalf("inside the second window: %+v", p)
	}
	e.trim(noLimits)
	if p := e.place(keyed("s", "2", "key")); !p.Repeat {
		t.Fatalf("pruning took a key inside its window: %+v", p)
	}
	e.pass(time.Second)
	e.trim(noLimits)
	if p := e.place(keyed("s", "3", "key")); p.Repeat || p.Offset != 3 {
		t.Fatalf("past the second window: %+v", p)
	}
	if got := len(e.all("s", 0)); got != 3 {
		t.Fatalf("%d messages", got)
	}
}

// testRetries publishes with keys and behaves as if half of the answers were
// lost and the store were restarted now and then.
func testRetries(t *testing.T, e *env) {
	r := rand.New(rand.NewPCG(3, 4))
	open := map[int]bool{}
	for i := range 400 {
		open[i] = true
	}
	for len(open) > 0 {
		var batch []sequencer.Request
		var which []int
		for i := range open {
			batch = append(batch, keyed(fmt.Sprintf("s%d", i%3), fmt.Sprint(i), fmt.Sprint("key ", i)))
			if which = append(which, i); len(batch) == 40 {
				break
			}
		}
		for j, result := range e.append(batch...) {
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			if r.IntN(2) == 0 {
				delete(open, which[j])
			}
		}
		if r.IntN(10) == 0 {
			e.reopen()
		}
	}
	seen := map[string]int{}
	for s := range 3 {
		for _, m := range e.all(fmt.Sprintf("s%d", s), 0) {
			seen[string(m.Data)]++
		}
	}
	for i := range 400 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Errorf("broadcast %d is stored %d times", i, n)
		}
	}
}

func testFull(t *testing.T, e *env) {
	e.place(one("old", "1"))
	e.db.SetLast(t, "old", protocol.MaxOffset-2)
	results := e.append(
		one("old", "1"),
		one("young", "1"),
		sequencer.Request{{Stream: "young", Data: []byte("2")}, {Stream: "old", Data: []byte("2")}, {Stream: "old", Data: []byte("3")}},
		one("old", "4"),
		one("old", "5"),
		one("young", "3"),
	)
	for i, want := range []uint64{protocol.MaxOffset - 1, 1, 0, protocol.MaxOffset, 0, 2} {
		switch {
		case want == 0 && !errors.Is(results[i].Err, sequencer.ErrStreamFull):
			t.Errorf("request %d: %+v, want a full stream", i, results[i])
		case want != 0 && (results[i].Err != nil || results[i].Placed[0].Offset != want):
			t.Errorf("request %d: %+v, want offset %d", i, results[i], want)
		}
	}
	if result := e.append(one("old", "6"))[0]; !errors.Is(result.Err, sequencer.ErrStreamFull) {
		t.Errorf("a full stream: %+v", result)
	}
	if head := e.head("old").Last; head != protocol.MaxOffset {
		t.Errorf("head %d", head)
	}
}

// testTwoWriters races two writers on one stream and another. Offsets stay
// contiguous and each writer's broadcasts keep their order.
func testTwoWriters(t *testing.T, e *env) {
	second := e.store
	if e.db.Shared {
		second = e.db.Open(t, Options{Now: e.now, KeyWindow: keyWindow})
		defer second.Close()
	}
	var wg sync.WaitGroup
	for w, store := range []Store{e.store, second} {
		wg.Go(func() {
			for i := range 60 {
				batch := []sequencer.Request{one("shared", fmt.Sprintf("[%d,%d]", w, 2*i)), one(fmt.Sprint("own", w), "1"), one("shared", fmt.Sprintf("[%d,%d]", w, 2*i+1))}
				if w == 1 {
					batch[0], batch[1] = batch[1], batch[0]
				}
				if _, err := store.Append(t.Context(), batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	checkOrder(t, e.all("shared", 0), 2, 120)
	e.all("own0", 0)
	e.all("own1", 0)
}

// checkOrder checks that each of n publishers has count messages in the order
// in which it published them. Payloads are [publisher,number].
func checkOrder(t *testing.T, messages []protocol.Message, n, count int) {
	t.Helper()
	next := make([]int, n)
	for _, m := range messages {
		var id [2]int
		if err := json.Unmarshal(m.Data, &id); err != nil {
			t.Fatalf("payload %s: %v", m.Data, err)
		}
		if id[1] != next[id[0]] {
			t.Fatalf("offset %d: publisher %d's message %d where %d was due", m.Offset, id[0], id[1], next[id[0]])
		}
		next[id[0]]++
	}
	for p, got := range next {
		if got != count {
			t.Errorf("publisher %d has %d messages, want %d", p, got, count)
		}
	}
}
