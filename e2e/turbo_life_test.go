package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// B158 with real throttling: a hidden tab whose timers run once a second, or once
// a minute in the long run, keeps its connection and its page is exact.
func TestB158_AHiddenTabDoesNotReconnect(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	n := openTabs(t)
	b := inTab(t, n, a.url("ours", "throttled"))
	other := inTab(t, n, "about:blank")
	b.connected()
	b.eval(`globalThis.ticks = 0; setInterval(() => ticks++, 20); globalThis.since = performance.now(); 0`, nil)
	other.call("front", nil, nil)
	b.until(10*time.Second, `document.hidden`)
	b.eval(`ticks = 0; since = performance.now(); 0`, nil)
	until := time.Now().Add(time.Duration(scale(15, 420)) * time.Second)
	for time.Now().Before(until) {
		a.addSome("throttled", 1)
		pause(500 * time.Millisecond)
	}
	b.shows(a.all("throttled"), 10*time.Second)
	var got struct {
		Rate     float64
		Commands int
		Hidden   bool
	}
	b.eval(`({ rate: ticks / (performance.now() - since) * 1000, commands: wire.length, hidden: document.hidden })`, &got)
	if !got.Hidden || got.Rate > 5 {
		t.Fatalf("hidden: %t, %.1f ticks a second: the tab was not throttled", got.Hidden, got.Rate)
	}
	if got.Commands != 1 {
		t.Errorf("%d commands, want the one subscribe of a connection that was never given up", got.Commands)
	}
}

// B164 in pages: threads are switched again and again while all of them are
// written. No page shows an item of another thread, and each is exact.
func TestB164_SwitchingThreadsNeverMixesThem(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	threads := []string{"thread/1", "thread/2", "thread/3"}
	add := func(thread string) { a.add(thread, fmt.Sprintf("%s #%d", thread, len(a.all(thread))+1)) }
	for _, thread := range threads {
		add(thread)
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
				add(threads[i%len(threads)])
			}
		}
	}()
	b := a.open("ours", threads[0])
	for i := range scale(60, 1000) {
		thread := threads[(i+1)%len(threads)]
		b.visit(a.url("ours", thread))
		var foreign []string
		b.eval(fmt.Sprintf(`list().filter(item => !item.startsWith(%s + " "))`, jsonText(thread)), &foreign)
		if len(foreign) > 0 {
			t.Errorf("%s shows %v", thread, foreign)
		}
	}
	close(done)
	<-ended
	for _, thread := range threads {
		b.visit(a.url("ours", thread))
		b.until(10*time.Second, `source()?.hasAttribute("connected")`)
		add(thread)
		b.shows(a.all(thread), 10*time.Second)
	}
}

// B166 in pages: a stream element that cannot be rendered, and a listener that
// throws, stop nothing that comes after them, nor the position.
func TestB166_ARenderingThatFailsStopsNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	b := a.open("ours", "fails")
	b.connected()
	b.eval(`source().addEventListener("message", () => { throw new Error("a listener of the application") }); 0`, nil)
	a.addSome("fails", 1)
	a.p.must("fails", jsonText(`<turbo-stream action="no-such-action" target="list"></turbo-stream>`))
	a.p.must("fails", jsonText(`no stream at all`))
	a.p.must("fails", `{"not":"a text"}`)
	a.addSome("fails", 2)
	b.shows(a.all("fails"), 10*time.Second)
	b.until(5*time.Second, `source().getAttribute("offset") === "6" && source().getAttribute("state") === "live"`)
	complaints := strings.Join(b.complaints(false), "\n")
	if !strings.Contains(complaints, "unknown action") || !strings.Contains(complaints, "a listener of the application") {
		t.Errorf("the page complained of %q, want both faults told", complaints)
	}
}

// B167 in pages: the clock of the browser is a day ahead or behind, and the
// connection is cut. Nothing is missing or doubled.
func TestB167_TheClockOfTheBrowserPlaysNoPart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, shift := range []string{"864e5", "-864e5"} {
		px := newProxy(t, s.addr)
		a := openSite(t, s, px.ws())
		stream := "clock" + shift
		a.addSome(stream, 3)
		b := openTabWith(t, a.url("ours", stream, "born", "2"), map[string]any{"init": turboScript(t) + `
			const now = Date.now; Date.now = () => now() + ` + shift + `
			globalThis.Date = class extends Date { constructor(...args) { args.length ? super(...args) : super(now() + ` + shift + `) } }`})
		b.connected()
		px.set(func(p *proxy) { p.refuse = true })
		px.cut()
		b.until(10*time.Second, `source().getAttribute("state") === "offline"`)
		a.addSome(stream, 4)
		px.set(func(p *proxy) { p.refuse = false })
		b.until(40*time.Second, `source().getAttribute("state") === "live"`)
		a.addSome(stream, 1)
		b.shows(a.all(stream), 10*time.Second)
		b.noComplaints(true)
	}
}
