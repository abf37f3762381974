package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// B16: three items are added after a page was rendered and before it is even
// sent. They arrive once, and so does what follows, with our element, with that
// of turbo-rails read by us, and with that of turbo-rails as it is; also when the
// connection is cut afterwards, again and again.
func TestB16_APageIsNotBornStale(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, kind := range []string{"ours", "takeover", "ordered", "stock"} {
		px := newProxy(t, s.addr)
		a := openSite(t, s, px.ws())
		stream := "born/" + kind
		t.Logf("the element is %s", kind)
		a.addSome(stream, 5)
		b := a.open(kind, stream, "born", "3")
		b.connected()
		b.shows(a.all(stream), 10*time.Second)
		a.addSome(stream, 2)
		b.shows(a.all(stream), 10*time.Second)
		for range 2 {
			px.set(func(p *proxy) { p.refuse = true })
			px.cut()
			b.until(10*time.Second, `!source().hasAttribute("connected")`)
			a.addSome(stream, 2)
			px.set(func(p *proxy) { p.refuse = false })
			b.until(40*time.Second, `source().hasAttribute("connected")`)
			b.shows(a.all(stream), 10*time.Second)
		}
		a.addSome(stream, 1)
		b.shows(a.all(stream), 10*time.Second)
		b.noComplaints(true)
	}
}

// Turbo comes after our module, and later than the first messages: they wait for
// it. Every time of coming is tried, since what is lost is lost in between.
func TestTurbo_MessagesWaitForTurbo(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	for late := 0; late < 400; late += 400 / scale(16, 80) {
		stream := fmt.Sprint("late/", late)
		a.addSome(stream, 2)
		b := a.open("takeover", stream, "born", "3", "late", itoa(late))
		b.connected()
		b.shows(a.all(stream), 10*time.Second)
		b.noComplaints(false)
	}
}

// B26: a page without a position begins with what is published once it is
// connected, and gets nothing old.
func TestB26_TurboAPageWithoutAPositionGetsNothingOld(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	for _, kind := range []string{"ours", "takeover", "stock"} {
		stream := "old/" + kind
		a.addSome(stream, 5)
		b := a.open(kind, stream, "at", "none")
		b.connected()
		b.shows(a.all(stream), 5*time.Second)
		a.addSome(stream, 3)
		b.shows(a.all(stream), 10*time.Second)
		b.noComplaints(false)
	}
}

// B04: frames arrive as 1, 3, 2, each a replacement. The page shows 1, 2 and 3 in
// turn and ends with 3.
func TestB04_AnOlderReplacementDoesNotWin(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	b := a.open("ours", "status")
	b.connected()
	b.eval(`globalThis.seen = []; new MutationObserver(() => { const v = document.querySelector("#status").textContent; if (seen.at(-1) !== v) seen.push(v) })
		.observe(document.body, { childList: true, subtree: true });
		globalThis.reversed = 0; globalThis.holdBack = text => text.includes("version 2") && ++reversed > 0; 0`, nil)
	for v := 1; v <= 3; v++ {
		a.p.must("status", jsonText(fmt.Sprintf(`<turbo-stream action="replace" target="status"><template><p id="status">version %d</p></template></turbo-stream>`, v)))
	}
	b.until(10*time.Second, `seen.at(-1) === "version 3"`)
	pause(200 * time.Millisecond)
	var got struct {
		Seen     []string
		Reversed int
	}
	b.eval(`({ seen, reversed })`, &got)
	if fmt.Sprint(got.Seen) != "[version 1 version 2 version 3]" || got.Reversed != 1 {
		t.Errorf("the page showed %q, with %d frames reversed", got.Seen, got.Reversed)
	}
}

// B05: two publishers save the same record again and again at the same time.
// Three browsers end with the state of the highest offset.
func TestB05_TwoPublishersThreePagesOneEnd(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	var tabs []*tab
	for _, kind := range []string{"ours", "takeover", "ordered"} {
		b := a.open(kind, "record")
		b.connected()
		tabs = append(tabs, b)
	}
	var saving sync.WaitGroup
	for who := range 2 {
		p := newPublisher(t, s.url(""))
		saving.Go(func() {
			for i := range scale(200, 1000) {
				p.must("record", jsonText(fmt.Sprintf(`<turbo-stream action="update" target="status"><template>saved by %d: %d</template></turbo-stream>`, who, i)))
			}
		})
	}
	saving.Wait()
	log := s.log("record")
	_, want, _ := strings.Cut(log[len(log)-1].data, "template>")
	want, _, _ = strings.Cut(want, "<")
	want, _, _ = strings.Cut(want, `\u003c`)
	for i, b := range tabs {
		b.until(20*time.Second, `document.querySelectorAll("turbo-stream").length === 0 && document.querySelector("#status").textContent === `+jsonText(want))
		pause(100 * time.Millisecond)
		b.until(time.Second, `document.querySelector("#status").textContent === `+jsonText(want))
		if i == 0 {
			b.until(time.Second, fmt.Sprintf(`source().getAttribute("offset") === "%d"`, len(log)))
		}
	}
}

// B20: two elements of one stream share a subscription, and each message is
// rendered once; one of them goes, and the other still has every message. A
// preview of Turbo subscribes to nothing, and the page that follows it goes on
// with the subscription of the page before.
func TestB20_ElementsOfOneStreamShareASubscription(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	for _, kind := range []string{"ours", "takeover"} {
		stream := "shared/" + kind
		a.addSome(stream, 3)
		b := a.open(kind, stream, "elements", "2")
		b.connected()
		a.addSome(stream, 3)
		b.shows(a.all(stream), 10*time.Second)
		b.eval(`source().remove()`, nil)
		a.addSome(stream, 3)
		b.shows(a.all(stream), 10*time.Second)
		// There and back again, with a preview at the second visit.
		b.eval(`globalThis.previews = globalThis.alive = 0; addEventListener("turbo:render", () => {
			if (!document.documentElement.hasAttribute("data-turbo-preview")) return
			previews++
			if (source().hasAttribute("state") || source().hasAttribute("connected")) alive++
		}); 0`, nil)
		for range 3 {
			b.visit(a.url(kind, stream))
			b.visit(a.url(kind, stream, "elements", "2"))
		}
		b.connected()
		a.addSome(stream, 3)
		b.shows(a.all(stream), 10*time.Second)
		var got struct {
			Commands []string
			Previews int
			Alive    int
		}
		b.eval(`({ commands: wire.map(c => c.command).filter(c => c !== "history"), previews, alive })`, &got)
		if fmt.Sprint(got.Commands) != "[subscribe]" || got.Previews == 0 || got.Alive != 0 {
			t.Errorf("%s: commands %v, %d previews, of which %d were connected", kind, got.Commands, got.Previews, got.Alive)
		}
		b.eval(`document.querySelectorAll("chronocast-stream-source, turbo-cable-stream-source").forEach(e => e.remove())`, nil)
		b.until(10*time.Second, `wire.at(-1).command === "unsubscribe"`)
		b.noComplaints(false)
	}
}

// visit has Turbo go to a page and waits until it is there.
func (b *tab) visit(url string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`new Promise(done => { addEventListener("turbo:load", () => done(), { once: true }); Turbo.visit(%s) })`, jsonText(url)), nil)
}

// B44: what is published at the moment the element says it is connected is
// received, every time.
func TestB44_TurboConnectedMeansThatMessagesArrive(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	b := a.open("none", "b44")
	rounds := scale(100, 2000)
	var missed []int
	b.eval(fmt.Sprintf(`(async () => {
		const missed = []
		for (let i = 0; i < %d; i++) {
			const e = document.createElement("chronocast-stream-source")
			e.setAttribute("stream", "b44/" + i)
			const connected = new Promise(go => new MutationObserver(() => e.hasAttribute("connected") && go()).observe(e, { attributes: true }))
			const received = new Promise(go => e.addEventListener("message", m => go(m.data)))
			document.body.append(e)
			await connected
			fetch(%s + i + "/messages", { method: "POST", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body: "round " + i })
			const got = await Promise.race([received, new Promise(go => setTimeout(go, 5000, "nothing"))])
			if (got !== "round " + i) missed.push(i)
			e.remove()
		}
		return missed
	})()`, rounds, jsonText(s.url("/streams/b44%2F"))), &missed)
	if len(missed) > 0 {
		t.Errorf("%d of %d messages published at the moment of connecting were missed: %v", len(missed), rounds, missed)
	}
}

// B17, B19: an element that comes and goes as fast as it can ends subscribed, and
// the next message comes once.
func TestB17_B19_AFlickeringElementEndsSubscribed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	a.addSome("flicker", 2)
	b := a.open("ours", "flicker")
	b.connected()
	b.eval(`(async () => {
		const e = source(), names = ["flicker", "other"]
		for (let i = 0; i < 1000; i++) {
			if (i % 3 === 0) e.remove()
			e.setAttribute("stream", names[i % 2])
			if (i % 3 !== 0) document.body.append(e)
			if (i % 7 === 0) await new Promise(go => setTimeout(go, 0))
		}
		e.setAttribute("stream", "flicker")
		document.body.append(e)
	})()`, nil)
	b.connected()
	a.addSome("flicker", 3)
	b.shows(a.all("flicker"), 10*time.Second)
}

// B83: the element says offline, resuming, live and reset. After a reset it has
// Turbo refresh the page, which is then right again; a page that says so is left
// as it is.
func TestB83_TheElementTellsHowItIs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	a := openSite(t, s, px.ws())
	a.addSome("told", 5)
	morph := `<meta name="turbo-refresh-method" content="morph">`
	refreshed := a.open("ours", "told", "head", morph)
	left := a.open("ours", "told", "head", `<meta name="chronocast-reset" content="none">`)
	for _, b := range []*tab{refreshed, left} {
		b.connected()
		b.until(5*time.Second, `source().getAttribute("state") === "live"`)
	}
	px.set(func(p *proxy) { p.refuse = true })
	px.cut()
	for _, b := range []*tab{refreshed, left} {
		b.until(10*time.Second, `source().getAttribute("state") === "offline" && !source().hasAttribute("connected")`)
	}
	a.addSome("told", 5)
	px.set(func(p *proxy) { p.refuse = false })
	for _, b := range []*tab{refreshed, left} {
		b.until(40*time.Second, `source().getAttribute("state") === "live"`)
		b.shows(a.all("told"), 10*time.Second)
	}
	var told [][2]any
	left.eval(`told`, &told)
	if got := fmt.Sprint(told); !strings.Contains(got, "[state offline] [state resuming]") || !strings.Contains(got, "[recovered map[count:5") {
		t.Errorf("told: %s", got)
	}

	s.terminate(12 * time.Second)
	removeAll(t, s.dir, filepath.Base(s.db)+"*")
	a.forget("told")
	s.start()
	a.addSome("told", 2)
	left.until(40*time.Second, `source().getAttribute("state") === "reset" && told.some(([name, detail]) => name === "reset" && detail.reason === "epoch_changed")`)
	refreshed.until(40*time.Second, `told.some(([name]) => name === "reset")`)
	refreshed.until(10*time.Second, `list().length === 2`)
	a.addSome("told", 2)
	refreshed.shows(a.all("told"), 10*time.Second)
	refreshed.until(5*time.Second, `source().getAttribute("state") === "live"`)
	left.until(10*time.Second, `list().length === 12`)
	var alone string
	left.eval(`source().getAttribute("state")`, &alone)
	if alone != "reset" {
		t.Errorf("a page that is left as it is says %q", alone)
	}
	for _, b := range []*tab{refreshed, left} {
		b.noComplaints(true)
	}
}

// A page is refreshed by morphing while items are added: it shows each once,
// whatever was rendered, received or on its way at that moment.
func TestTurbo_AMorphRefreshKeepsThePageExact(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, kind := range []string{"ours", "takeover"} {
		a := openSite(t, s, s.ws())
		stream := "morph/" + kind
		a.addSome(stream, 10)
		b := a.open(kind, stream, "born", "2", "head", `<meta name="turbo-refresh-method" content="morph"><meta name="turbo-refresh-scroll" content="preserve">`)
		b.connected()
		stop := a.steadily(stream, 20*time.Millisecond)
		for range scale(5, 20) {
			b.eval(`globalThis.marked = source(); Turbo.session.refresh(document.baseURI); 0`, nil)
			pause(400 * time.Millisecond)
		}
		stop()
		b.shows(a.all(stream), 10*time.Second)
		var same bool
		if b.eval(`marked === source() && source().hasAttribute("connected")`, &same); !same {
			t.Errorf("%s: the element was not kept, so that morphing was not tried, or it is not connected", kind)
		}
		b.noComplaints(false)
	}
}

// Fifty fast page flips, some by links and some by the back and forward buttons,
// so that pages come from the server, out of Turbo's cache and as previews, while
// items are added and the connection is cut: the last page is exact, and so is
// every page that is looked at for long enough.
func TestTurbo_FiftyPageFlipsStayExact(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, kind := range []string{"ours", "takeover"} {
		px := newProxy(t, s.addr)
		a := openSite(t, s, px.ws())
		stream := "flips/" + kind
		a.addSome(stream, 5)
		b := a.open(kind, stream, "n", "0")
		b.connected()
		stop := a.steadily(stream, 15*time.Millisecond)
		for i := range 50 {
			switch {
			case i%5 == 3:
				b.eval(`history.back()`, nil)
			case i%10 == 9:
				b.eval(`history.forward()`, nil)
			case i%7 == 6:
				b.eval(fmt.Sprintf(`Turbo.visit(%s); 0`, jsonText(a.url("none", stream))), nil)
			default:
				b.eval(fmt.Sprintf(`Turbo.visit(%s); 0`, jsonText(a.url(kind, stream, "n", itoa(i%4), "born", itoa(i%3)))), nil)
			}
			pause(time.Duration(20+i%4*40) * time.Millisecond)
			if i%20 == 10 {
				px.cut()
			}
		}
		stop()
		b.until(10*time.Second, `!document.documentElement.hasAttribute("aria-busy") && !document.documentElement.hasAttribute("data-turbo-preview")`)
		b.eval(`history.back()`, nil)
		pause(time.Second)
		for round := range 4 {
			b.visit(a.url(kind, stream, "n", itoa(round)))
			b.until(10*time.Second, `source()?.hasAttribute("connected")`)
			b.shows(a.all(stream), 10*time.Second)
			a.addSome(stream, 2)
			b.shows(a.all(stream), 10*time.Second)
		}
		// Back in time: the pages are Turbo's snapshots, which lack what came since.
		for range 3 {
			b.eval(`new Promise(done => { addEventListener("turbo:load", () => done(), { once: true }); history.back() })`, nil)
			b.until(10*time.Second, `source()?.hasAttribute("connected")`)
			b.shows(a.all(stream), 10*time.Second)
			a.addSome(stream, 1)
			b.shows(a.all(stream), 10*time.Second)
		}
		for _, c := range b.complaints(true) {
			if !strings.Contains(c, "AbortError") { // Turbo lets go of a visit that another one overtakes
				t.Errorf("%s: the page complained: %s", kind, c)
			}
		}
	}
}

// The page is left for another site and comes back out of the browser's own
// cache, and it is frozen for longer than the client takes for a dead link.
func TestTurbo_BackForwardCacheAndFreezeKeepThePageExact(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	a.addSome("kept", 5)
	b := a.open("ours", "kept")
	b.connected()
	kept := 0
	for range 3 {
		b.call("goto", map[string]any{"url": s.url("/readyz")}, nil)
		a.addSome("kept", 5)
		pause(500 * time.Millisecond)
		b.call("back", nil, nil)
		b.until(10*time.Second, `globalThis.source?.()?.hasAttribute("connected")`)
		b.shows(a.all("kept"), 10*time.Second)
		var persisted bool
		if b.eval(`globalThis.cameBackFromCache === true`, &persisted); persisted {
			kept++
		}
	}
	if kept == 0 {
		t.Error("the browser kept the page in no round: the case was not tried")
	}
	b.call("life", map[string]any{"state": "frozen"}, nil)
	until := time.Now().Add(time.Duration(scale(12, 60)) * time.Second)
	for time.Now().Before(until) {
		a.addSome("kept", 1)
		pause(200 * time.Millisecond)
	}
	b.call("life", map[string]any{"state": "active"}, nil)
	b.shows(a.all("kept"), 10*time.Second)
	a.addSome("kept", 1)
	b.shows(a.all("kept"), 10*time.Second)
	b.noComplaints(false)
}

// The bundle is the one that the server was built with.
func TestTurbo_TheServerServesTheBundle(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want, err := os.ReadFile("../client-js/dist/chronocast-turbo.min.js")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.http.Get(s.url("/turbo.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != string(want) {
		t.Error("/turbo.min.js is not that of the tree")
	}
}
