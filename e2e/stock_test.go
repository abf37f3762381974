package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func pubsub(stream string) map[string]any {
	return map[string]any{"channel": "$pubsub", "stream_name": stream}
}

// fromStart is the identifier of a page that was rendered before the stream's
// first message: the position travels inside the identifier.
func fromStart(s *server, stream string) map[string]any {
	h := s.head(stream)
	p := pubsub(stream)
	p["epoch"], p["offset"] = h.Epoch, "0"
	return p
}

// The acceptance of the stock Rails client: 200 broadcasts in order.
func TestStockRails_200BroadcastsArriveInOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	n := startNode(t, "rails.mjs")
	n.do("connect", map[string]any{"url": s.ws()})
	n.do("subscribe", map[string]any{"id": "a", "params": pubsub("chat/42")})
	n.wait(10*time.Second, "connected", "a")
	p.numbered("chat/42", 200)
	n.awaitCount("a", 200, 20*time.Second)
	for i, m := range n.messages("a") {
		if want := fmt.Sprintf(`{"n":%d}`, i+1); m.data != want {
			t.Fatalf("message %d is %s, want %s", i+1, m.data, want)
		}
	}
}

// The stock Rails client reconnects by itself after a cut and after a server
// restart. It has no memory of positions: what was published meanwhile comes
// again only because the page carried a position in the identifier, and it
// comes in order.
func TestStockRails_CutsAndAServerRestartKeepTheOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	n := startNode(t, "rails.mjs")
	n.do("connect", map[string]any{"url": px.ws(), "stale": 4})
	n.do("subscribe", map[string]any{"id": "a", "params": pubsub("live"), "name": "live"})
	n.do("subscribe", map[string]any{"id": "b", "params": fromStart(s, "live"), "name": "live"})
	n.wait(10*time.Second, "connected", "a")
	n.wait(10*time.Second, "connected", "b")
	p.numbered("live", 20)
	n.awaitCount("a", 20, 10*time.Second)

	px.cut()
	n.wait(10*time.Second, "disconnected", "a")
	p.must("live", `{"n":21}`)
	n.wait(30*time.Second, "connected", "a")
	n.wait(30*time.Second, "connected", "b")
	p.must("live", `{"n":22}`)
	n.until(10*time.Second, "22 on both", func() bool { return lastN(n.got["a"]) == 22 && lastN(n.got["b"]) == 22 })

	s.terminate(15 * time.Second)
	s.start()
	n.wait(40*time.Second, "connected", "a")
	n.wait(40*time.Second, "connected", "b")
	p.must("live", `{"n":23}`)
	n.until(10*time.Second, "23 on both", func() bool { return lastN(n.got["a"]) == 23 && lastN(n.got["b"]) == 23 })

	// Without a position: ascending, each at most once.
	last := 0
	for _, m := range n.messages("a") {
		if got := numberOf(m.data); got <= last {
			t.Errorf("%d came after %d", got, last)
		} else {
			last = got
		}
	}
	// With one: every reconnect gives the whole run from the page's position
	// on; an application that drops indexes it has seen holds all of it.
	seen := 0
	for _, m := range n.messages("b") {
		switch got := numberOf(m.data); {
		case got == seen+1:
			seen++
		case got > seen+1:
			t.Fatalf("%d came while %d was missing", got, seen+1)
		}
	}
	if seen != 23 {
		t.Errorf("the page with a position holds %d of 23", seen)
	}
}

func numberOf(data string) int {
	var n int
	fmt.Sscanf(data, `{"n":%d`, &n)
	return n
}

func lastN(got []message) int {
	if len(got) == 0 {
		return 0
	}
	return numberOf(got[len(got)-1].data)
}

// The acceptance of the stock AnyCable client: a cut socket, two messages
// published meanwhile, all arrive once and in order.
func TestStockAnyCable_ACutSocketMissesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	n := startNode(t, "anycable.mjs")
	n.do("connect", map[string]any{"url": px.ws()})
	n.do("subscribe", map[string]any{"id": "a", "name": "chat/42"})
	n.wait(10*time.Second, "connected", "a")
	p.numbered("chat/42", 3)
	n.awaitCount("a", 3, 10*time.Second)

	px.cut()
	n.wait(10*time.Second, "disconnect", "")
	p.must("chat/42", `{"n":4}`)
	p.must("chat/42", `{"n":5}`)
	n.awaitCount("a", 5, 40*time.Second)
	p.must("chat/42", `{"n":6}`)
	n.awaitCount("a", 6, 10*time.Second)
	judge(s.log("chat/42"), true).acknowledged(p.ledger.of("chat/42")).
		delivered("@anycable/core", n.messages("a"), 0, true).report(t)
}

// Many cuts under load: the stock AnyCable client resumes from the position of
// its last message each time, because what the server sends on one socket is
// already whole and in order.
func TestStockAnyCable_ManyCutsUnderLoadMissNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	n := startNode(t, "anycable.mjs")
	n.do("connect", map[string]any{"url": px.ws(), "reconnect": 50})
	n.do("subscribe", map[string]any{"id": "a", "name": "load"})
	n.wait(10*time.Second, "connected", "a")

	cuts := scale(10, 40)
	ctx, cancel := context.WithCancel(context.Background())
	cutting := make(chan struct{})
	go func() {
		defer close(cutting)
		defer cancel()
		for i := range cuts {
			pause(600 * time.Millisecond)
			n.subscribed("a", 20*time.Second)
			if i%2 == 0 {
				px.cut()
			} else {
				px.cutMidFrame()
			}
		}
	}()
	sent := p.steadily(ctx, "load", 200, 0, func(i int) string { return fmt.Sprintf(`{"n":%d,"text":"token %d"}`, i+1, i+1) })
	<-cutting
	n.awaitLast("a", uint64(sent), 30*time.Second)
	judge(s.log("load"), true).acknowledged(p.ledger.of("load")).
		delivered("@anycable/core", n.messages("a"), 0, true).report(t)
	figure(t, "@anycable/core, %d cuts, %d messages: 0 lost, 0 doubled, 0 disordered", cuts, sent)
}
