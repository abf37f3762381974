package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// openReader opens a page that reads a stream through cable, which may be a
// proxy. The page is of the same origin, and one that the browser may keep when
// it is left: most answers of the server say no-store.
func openReader(t testing.TB, s *server, cable, stream, options string) *tab {
	t.Helper()
	b := openTabWith(t, strings.Replace(strings.Replace(cable, "ws:", "http:", 1), "/cable", "/demo/text", 1), map[string]any{"init": readerScript(t)})
	b.read(cable, stream, options)
	return b
}

func readerScript(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("js/reader.js")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (b *tab) read(cable, stream, options string) {
	b.t.Helper()
	if options == "" {
		options = "{}"
	}
	b.eval(fmt.Sprintf(`startReader("a", %s, %s, "start", %s)`, jsonText(cable), jsonText(stream), options), nil)
	b.until(20*time.Second, `readers.a.stream.state === "live"`)
}

// got returns what the page's handle was given.
func (b *tab) got() []message {
	b.t.Helper()
	var rows [][5]any
	b.eval("readers.a.got", &rows)
	var out []message
	for _, m := range rows {
		got := message{}
		got.stream, _ = m[0].(string)
		got.Epoch, _ = m[1].(string)
		offset, _ := m[2].(float64)
		got.Offset = uint64(offset)
		got.data, _ = m[3].(string)
		got.replay, _ = m[4].(bool)
		out = append(out, got)
	}
	return out
}

func (b *tab) awaitLast(offset uint64, within time.Duration) {
	b.t.Helper()
	b.until(within, fmt.Sprintf("readers.a.got.length > 0 && readers.a.got.at(-1)[2] >= %d", offset))
}

// exact checks that a page was given the whole stream, once and in order.
func (b *tab) exact(s *server, stream string) {
	b.t.Helper()
	last := s.head(stream).Last
	b.awaitLast(last, 30*time.Second)
	judge(s.log(stream), false).delivered("browser", b.got(), 0, true).report(b.t)
	if !b.t.Failed() {
		throughOurClient.Add(int64(last))
	}
}

// B65: the browser is offline for 10 s at 50 msg/s; the sockets that were open
// hear nothing any more, nor an end. Exact.
func TestB65_BrowserOffline10s(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	held, opening := holdups(t), time.Now()
	b := openReader(t, s, px.ws(), "offline", "")
	opened := time.Since(opening)
	ctx, stop := context.WithCancel(context.Background())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		p.steadily(ctx, "offline", 50, 0, func(i int) string { return fmt.Sprintf(`{"n":%d}`, i+1) })
	})
	b.until(10*time.Second, "readers.a.got.length > 50")
	b.call("offline", map[string]any{"on": true}, nil)
	px.blackhole()
	pause(10 * time.Second)
	var during int
	b.eval("readers.a.got.length", &during)
	b.call("offline", map[string]any{"on": false}, nil)
	began := time.Now()
	b.awaitLast(s.head("offline").Last, 20*time.Second)
	took := time.Since(began)
	stop()
	publishing.Wait()
	b.exact(s, "offline")
	// A busy machine takes its time for a page, and no less for a reconnect.
	if bound := 5*time.Second + 3*opened + held(); took > bound {
		t.Errorf("it took %v after the network was back, more than %v; opening the page took %v", took, bound, opened)
	}
	figure(t, "B65: Chromium offline for 10 s at 50 msg/s: exact, caught up %v after the network was back", took.Round(time.Millisecond))
}

// B157: a tab is frozen for longer than the client takes for a dead link, while
// its socket is healthy. It goes on with what has waited, on the same socket.
func TestB157_AFrozenTabKeepsItsHealthySocket(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	b := openReader(t, s, s.ws(), "frozen", "")
	p.numbered("frozen", 3)
	b.awaitLast(3, 10*time.Second)
	b.call("life", map[string]any{"state": "frozen"}, nil)
	until := time.Now().Add(time.Duration(scale(13, 60)) * time.Second)
	n := 3
	for time.Now().Before(until) {
		n++
		p.must("frozen", fmt.Sprintf(`{"n":%d}`, n))
		pause(250 * time.Millisecond)
	}
	b.call("life", map[string]any{"state": "active"}, nil)
	p.must("frozen", `{"n":0}`)
	b.exact(s, "frozen")
	pause(4 * time.Second) // longer than one look at the silence
	b.exact(s, "frozen")
	if dials := len(b.n.all("dial", b.id)); dials != 1 {
		t.Errorf("%d connections for one that was healthy throughout", dials)
	}
	b.noComplaints(false)
}

// B160: the network comes back during a long back-off: the next attempt is made
// within a second.
func TestB160_ComingOnlineEndsTheBackoff(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	b := openReader(t, s, px.ws(), "backoff", `{"minDelay":20000,"maxDelay":30000}`)
	p.numbered("backoff", 3)
	b.awaitLast(3, 10*time.Second)
	px.set(func(p *proxy) { p.refuse = true })
	px.cut()
	b.until(10*time.Second, `readers.a.client.state === "waiting"`)
	b.call("offline", map[string]any{"on": true}, nil)
	px.set(func(p *proxy) { p.refuse = false })
	p.numbered("backoff", 3)
	pause(time.Second)
	began := time.Now()
	b.call("offline", map[string]any{"on": false}, nil)
	b.exact(s, "backoff")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("back after %v", took)
	}
}

// B155: eight tabs of one origin all become live and all are served.
func TestB155_EightTabs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	var tabs []*tab
	for range 8 {
		tabs = append(tabs, openReader(t, s, s.ws(), "tabs", ""))
	}
	p.numbered("tabs", 20)
	for _, b := range tabs {
		b.exact(s, "tabs")
		b.noComplaints(false)
	}
}

// B161 in the browser: a long text, the link cut every 200 ms, two tabs. The
// text is the source in both.
func TestB161_TwoTabsUnderCutsHoldTheText(t *testing.T) {
	t.Parallel()
	toks := tokens(longText(t))[:2000]
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	tabs := []*tab{openReader(t, s, px.ws(), "doc", ""), openReader(t, s, px.ws(), "doc", "")}
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
			if i%2 == 0 {
				px.cut()
			} else {
				px.cutMidFrame()
			}
		}
	})
	pace := time.NewTicker(time.Second / 400)
	defer pace.Stop()
	for _, tok := range toks {
		<-pace.C
		p.must("doc", jsonText(tok))
	}
	close(stop)
	cutting.Wait()
	for i, b := range tabs {
		b.exact(s, "doc")
		if sha(joined(b.got())) != sha(strings.Join(toks, "")) {
			t.Errorf("tab %d holds another text", i)
		}
		for _, c := range b.complaints(true) {
			t.Errorf("the page complained: %s", c)
		}
	}
}

// Back and forward: the page goes away and comes back, from the browser's cache
// or anew, and is whole either way. Out of the cache it goes on at once, without
// waiting for its dead socket to be noticed.
func TestBrowser_BackAndForwardKeepsThePageWhole(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	b := openReader(t, s, s.ws(), "history", "")
	p.numbered("history", 10)
	b.awaitLast(10, 10*time.Second)
	kept := 0
	for round := range 3 {
		b.call("goto", map[string]any{"url": s.url("/readyz")}, nil)
		p.numbered("history", 5)
		pause(time.Second)
		b.call("back", nil, nil)
		began := time.Now()
		b.until(10*time.Second, `document.readyState === "complete"`)
		var alive bool
		b.eval(`Boolean(globalThis.readers?.a)`, &alive)
		if alive {
			kept++
		} else {
			b.read(s.ws(), "history", "")
		}
		b.exact(s, "history")
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("round %d: whole after %v", round, took)
		}
		var state json.RawMessage
		b.eval(`readers.a.stream.state`, &state)
		if string(state) != `"live"` {
			t.Errorf("round %d: the handle is %s", round, state)
		}
	}
	if kept == 0 {
		t.Error("the browser kept the page in no round: the case was not tried")
	}
	figure(t, "back and forward: whole after each of 3 rounds, %d of them out of the browser's cache", kept)
}
