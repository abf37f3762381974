package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The acceptance of the bundled client: 400 msg/s on each stream, every TCP
// connection cut every 600 ms, some in mid-frame; lost 0, doubled 0, disordered
// 0.
func TestClient_CutEvery600msLosesDoublesAndDisordersNothing(t *testing.T) {
	streams := []string{"llm/1", "llm/2"}
	const processes, clientsEach, perSecond = 3, 2, 400
	total := scale(400*21, 400*120) // messages a stream
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))

	type reader struct {
		n  *node
		id string // prefix of its handles
	}
	var readers []reader
	var proxies []*proxy
	for range processes {
		n := startNode(t, "ours.mjs")
		for c := range clientsEach {
			px := newProxy(t, s.addr)
			proxies = append(proxies, px)
			id := fmt.Sprintf("c%d", c)
			n.do("client", map[string]any{"client": id, "url": px.ws(), "minDelay": 20, "maxDelay": 200})
			for _, name := range streams {
				n.do("stream", map[string]any{"client": id, "id": id + " " + name, "name": name, "after": "start", "quiet": true})
			}
			readers = append(readers, reader{n, id})
		}
	}

	ctx, stop := context.WithCancel(context.Background())
	var cuts, mid atomic.Int64
	var cutting, publishing sync.WaitGroup
	for i, px := range proxies {
		cutting.Go(func() {
			pause(time.Duration(i) * 100 * time.Millisecond)
			for round := 0; ctx.Err() == nil; round++ {
				pause(600 * time.Millisecond)
				if (round+i)%3 == 0 {
					mid.Add(int64(px.cutMidFrame()))
				} else {
					cuts.Add(int64(px.cut()))
				}
			}
		})
	}
	for _, name := range streams {
		publishing.Go(func() {
			p.steadily(context.Background(), name, perSecond, total, func(i int) string {
				return fmt.Sprintf(`{"s":%q,"n":%d,"text":"token %d of a long answer"}`, name, i+1, i+1)
			})
		})
	}
	publishing.Wait()
	stop()
	cutting.Wait()

	delivered := 0
	for _, name := range streams {
		log := s.log(name)
		v := judge(log, true).acknowledged(p.ledger.of(name))
		if len(log) != total {
			t.Errorf("%s holds %d of %d", name, len(log), total)
		}
		for i, r := range readers {
			r.n.awaitLast(r.id+" "+name, log[len(log)-1].Offset, 30*time.Second)
			got := r.n.messages(r.id + " " + name)
			v.delivered(fmt.Sprintf("client %d %s", i, name), got, 0, true)
			delivered += len(got)
		}
		v.report(t)
	}
	for _, r := range readers {
		if resets := r.n.all("reset", ""); len(resets) != 0 {
			t.Errorf("%d resets: %s", len(resets), resets[0].raw)
		}
	}
	if !t.Failed() {
		throughOurClient.Add(int64(delivered))
		figure(t, "bundled client: %d clients, %d streams at %d msg/s, %d cuts and %d in mid-frame: %d delivered, lost 0, doubled 0, disordered 0",
			len(readers), len(streams), perSecond, cuts.Load(), mid.Load(), delivered)
	}
}

// B16: the page carries a position; three are published before the socket
// opens. They are delivered, then live ones.
func TestB16_APageIsNeverBornStale(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	page := p.numbered("page", 10)
	p.numbered("page", 3)
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": s.ws()})
	cl.do("stream", map[string]any{"id": "a", "name": "page", "after": map[string]any{"epoch": page.Epoch, "offset": page.Offset}})
	cl.awaitCount("a", 3, 10*time.Second)
	p.numbered("page", 3)
	cl.awaitCount("a", 6, 10*time.Second)
	judge(s.log("page"), false).delivered("bundled client", cl.messages("a"), page.Offset, true).report(t)
}

// B25: the proxy swallows the first three confirmations. The client asks again
// and ends with exactly one subscription.
func TestB25_SwallowedConfirmationsAreAskedForAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	var confirms, messages atomic.Int64
	px.set(func(p *proxy) {
		p.filter = func(b []byte) bool {
			text := string(b)
			if strings.Contains(text, `"confirm_subscription"`) {
				return confirms.Add(1) > 3
			}
			if strings.Contains(text, `"marker"`) {
				messages.Add(1)
			}
			return true
		}
	})
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 20, "maxDelay": 300})
	cl.do("stream", map[string]any{"id": "a", "name": "deaf", "after": "start"})
	cl.live("a", 60*time.Second)
	at := p.must("deaf", `{"marker":1}`)
	cl.awaitLast("a", at.Offset, 10*time.Second)
	p.must("deaf", `{"marker":2}`)
	cl.awaitCount("a", 2, 10*time.Second)
	judge(s.log("deaf"), true).delivered("bundled client", cl.messages("a"), 0, true).report(t)
	if n := messages.Load(); n != 2 {
		t.Errorf("two messages crossed the wire %d times: more than one subscription", n)
	}
	if n := confirms.Load(); n < 4 {
		t.Errorf("%d confirmations", n)
	}
}

// B37, I9: the last frame of a burst is dropped, then silence. The client learns
// from the heads that a ping carries, within two heartbeats.
func TestB37_ALostLastFrameIsNoticedWithoutTraffic(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	var dropped atomic.Int64
	px.set(func(p *proxy) {
		p.filter = func(b []byte) bool {
			if strings.Contains(string(b), `"lastword"`) && dropped.Add(1) == 1 {
				return false
			}
			return true
		}
	})
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws()})
	cl.do("stream", map[string]any{"id": "a", "name": "burst", "after": "start"})
	cl.live("a", 10*time.Second)
	p.numbered("burst", 20)
	cl.awaitCount("a", 20, 10*time.Second)
	at := p.must("burst", `"lastword"`)
	began := time.Now()
	eventually(t, 5*time.Second, "the frame was dropped", func() bool { return dropped.Load() > 0 })
	cl.awaitLast("a", at.Offset, 9*time.Second)
	if took := time.Since(began); took > 7*time.Second {
		t.Errorf("noticed after %v, more than two heartbeats", took)
	}
	judge(s.log("burst"), true).delivered("bundled client", cl.messages("a"), 0, true).report(t)
}

// B37 in the middle: a frame is dropped and later ones come; the client holds
// them, asks, and delivers in order.
func TestB37_ALostFrameInTheMiddleIsFilled(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	var n atomic.Int64
	px.set(func(p *proxy) {
		p.filter = func(b []byte) bool {
			// Frames of messages, live ones: every seventh is lost.
			return !strings.Contains(string(b), `"text"`) || strings.Contains(string(b), `"replay":true`) || n.Add(1)%7 != 0
		}
	})
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws()})
	cl.do("stream", map[string]any{"id": "a", "name": "holes", "after": "start"})
	cl.live("a", 10*time.Second)
	p.steadily(t.Context(), "holes", 100, 300, func(i int) string { return fmt.Sprintf(`{"n":%d,"text":"x"}`, i+1) })
	last := s.head("holes").Last
	cl.awaitLast("a", last, 15*time.Second)
	judge(s.log("holes"), true).acknowledged(p.ledger.of("holes")).delivered("bundled client", cl.messages("a"), 0, true).report(t)
	if len(cl.all("gap", "a")) == 0 {
		t.Errorf("%d frames were dropped and no gap was told", n.Load()/7)
	}
	throughOurClient.Add(int64(last))
}

// B47: offline past what retention keeps: one reset, then exact from the new
// base.
func TestB47_SleepPastRetentionIsOneReset(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--retain-count", "100")
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	p.numbered("sleep", 10)
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 20, "maxDelay": 200})
	for _, after := range []string{"start", "now"} {
		cl.do("stream", map[string]any{"id": after, "name": "sleep", "after": after})
		cl.live(after, 10*time.Second)
	}
	cl.awaitCount("start", 10, 10*time.Second)
	p.must("sleep", `"both"`)
	cl.awaitCount("now", 1, 10*time.Second)

	px.set(func(p *proxy) { p.refuse = true })
	px.cut()
	p.bulk("sleep", 1000)
	eventually(t, 20*time.Second, "all but 100 are trimmed", func() bool { return s.head("sleep").First > 900 })
	s.terminate(12 * time.Second) // its memory could serve more than the log keeps
	s.start()
	px.set(func(p *proxy) { p.refuse = false })

	for _, id := range []string{"start", "now"} {
		cl.wait(15*time.Second, "reset", id)
	}
	cl.live("now", 10*time.Second)
	cl.live("start", 10*time.Second)
	last := p.must("sleep", `"end"`)
	log := s.log("sleep")
	for _, id := range []string{"start", "now"} {
		cl.awaitLast(id, last.Offset, 10*time.Second)
		if n := len(cl.all("reset", id)); n != 1 {
			t.Errorf("after %s: %d resets, want one", id, n)
		}
		var tail []message
		for _, m := range cl.messages(id) {
			if m.Offset > 11 {
				tail = append(tail, m)
			}
		}
		judge(log, false).delivered("after "+id, tail, tail[0].Offset-1, true).report(t)
	}
}

// B64: five dead links in a row, each resumed before the server has noticed
// the one before; late time-outs change nothing.
func TestB64_FiveBlackholesInARow(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 20, "maxDelay": 200})
	cl.do("stream", map[string]any{"id": "a", "name": "dark", "after": "start"})
	cl.live("a", 10*time.Second)
	last := p.numbered("dark", 3)
	cl.awaitLast("a", last.Offset, 10*time.Second)
	var worst time.Duration
	for range 5 {
		if px.blackhole() == 0 {
			t.Fatal("no connection to lose")
		}
		last = p.numbered("dark", 3)
		began := time.Now()
		cl.awaitLast("a", last.Offset, 25*time.Second)
		worst = max(worst, time.Since(began))
	}
	// The dead ones end at the server when the links are cut at last.
	px.cut()
	last = p.numbered("dark", 3)
	cl.awaitLast("a", last.Offset, 25*time.Second)
	judge(s.log("dark"), false).delivered("bundled client", cl.messages("a"), 0, true).report(t)
	figure(t, "B64: 5 dead links in a row, exact; the slowest was noticed and resumed after %v", worst.Round(time.Millisecond))
}

// B68: many reconnects under load; a message arrives within a second of each.
func TestB68_EveryReconnectUnderLoadIsFollowedByAMessage(t *testing.T) {
	s := newServer(t, keepAll...)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 1, "maxDelay": 20})
	cl.do("stream", map[string]any{"id": "a", "name": "again", "after": "start", "quiet": true})
	ctx, stop := context.WithCancel(context.Background())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		p.steadily(ctx, "again", 200, 0, func(i int) string { return fmt.Sprintf(`{"n":%d}`, i+1) })
	})
	rounds := scale(150, 10000)
	cl.awaitCount("a", 1, 10*time.Second)
	for i := range rounds {
		eventually(t, 10*time.Second, "a connection", func() bool { return px.open() > 0 })
		began := time.Now()
		px.cut()
		cl.waitFor(5*time.Second, "open", "", func(e event) bool { return e.at.After(began) })
		opened := time.Now()
		before := len(cl.messages("a"))
		cl.awaitCount("a", before+1, 10*time.Second)
		if took := time.Since(opened); took > time.Second {
			t.Errorf("round %d: the first message came %v after the reconnect", i, took)
		}
	}
	stop()
	publishing.Wait()
	last := s.head("again").Last
	cl.awaitLast("a", last, 20*time.Second)
	judge(s.log("again"), true).acknowledged(p.ledger.of("again")).delivered("bundled client", cl.messages("a"), 0, true).report(t)
	throughOurClient.Add(int64(last))
	figure(t, "B68: %d reconnects under load, a message within 1 s after each, %d messages exact", rounds, last)
}

// B73: disconnect on purpose, ten are published, connect again: ten, exact. The
// same by way of a position that the application kept.
func TestB73_LeavingAndComingBackOnPurpose(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": s.ws()})
	cl.do("stream", map[string]any{"id": "a", "name": "leave", "after": "start"})
	p.numbered("leave", 5)
	cl.awaitCount("a", 5, 10*time.Second)
	cl.call(5*time.Second, "disconnect", nil, nil)
	cl.wait(5*time.Second, "shut", "c")
	p.numbered("leave", 10)
	cl.call(5*time.Second, "connect", nil, nil)
	cl.awaitCount("a", 15, 10*time.Second)
	var at place
	cl.call(5*time.Second, "position", map[string]any{"id": "a"}, &at)
	if at.Offset != 15 {
		t.Errorf("the position is %v, want offset 15", at)
	}
	cl.call(5*time.Second, "closeClient", nil, nil)
	p.numbered("leave", 10)
	cl.do("client", map[string]any{"url": s.ws()})
	cl.do("stream", map[string]any{"id": "b", "name": "leave", "after": at})
	cl.awaitCount("b", 10, 10*time.Second)
	judge(s.log("leave"), false).delivered("bundled client", append(cl.messages("a"), cl.messages("b")...), 0, true).report(t)
}

// B44: what is published from the moment the handle says live is always
// received.
func TestB44_LiveMeansThatTheNextMessageArrives(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	cl := startNode(t, "ours.mjs")
	const each = 500 // streams of one connection, whose number is limited
	rounds := scale(300, 2000)
	for first := 0; first < rounds; first += each {
		client := fmt.Sprintf("c%d", first/each)
		cl.do("client", map[string]any{"client": client, "url": s.ws()})
		names := make([]string, min(each, rounds-first))
		for i := range names {
			names[i] = fmt.Sprintf("ready/%d", first+i)
			cl.do("publishWhenLive", map[string]any{"client": client, "id": names[i], "name": names[i],
				"url": s.url(messagesPath(names[i])), "payload": fmt.Sprintf(`{"n":%d}`, i)})
		}
		for _, name := range names {
			cl.awaitCount(name, 1, 20*time.Second)
		}
		cl.do("closeClient", map[string]any{"client": client})
	}
}

// B163: a provider's retry sends the generation again from token 0, with keys
// made of generation and index: no token twice.
func TestB163_ARestartedGenerationDoublesNoToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	cl := ours(t, s.ws(), "start", "answer")
	tokens := strings.SplitAfter("A restarted generation sends every token again and the reader must not notice at all. ", " ")
	for _, upTo := range []int{5, 9, len(tokens)} {
		for i := range upTo {
			if _, err := p.sendKeyed(t.Context(), "answer", fmt.Sprintf("generation-1/%d", i), jsonText(tokens[i])); err != nil {
				t.Fatal(err)
			}
		}
	}
	cl.awaitCount("answer", len(tokens), 10*time.Second)
	var text strings.Builder
	for _, m := range cl.messages("answer") {
		text.WriteString(unquote(m.data))
	}
	if text.String() != strings.Join(tokens, "") {
		t.Errorf("the reader has %q", text.String())
	}
	judge(s.log("answer"), false).delivered("bundled client", cl.messages("answer"), 0, true).report(t)
}

// B164: many switches between streams while ten answers are being generated:
// no message of another stream ever.
func TestB164_SwitchingStreamsMixesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("answer/%d", i))
	}
	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, 5, 0, func(w, i int) (string, string) {
			name := names[(2*w+i)%10]
			pause(2 * time.Millisecond)
			return name, fmt.Sprintf(`{"s":%q,"p":%d,"n":%d}`, name, w, i)
		})
	}()
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": s.ws()})
	times := scale(400, 1000)
	var result struct{ Foreign, Seen int }
	cl.call(120*time.Second, "switching", map[string]any{"names": names, "times": times, "every": 10}, &result)
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	if result.Foreign != 0 || result.Seen == 0 {
		t.Errorf("%d foreign messages of %d", result.Foreign, result.Seen)
	}
	figure(t, "B164: %d switches during 10 generations: %d messages, %d foreign", times, result.Seen, result.Foreign)
}
