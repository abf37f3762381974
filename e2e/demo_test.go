package e2e

import (
	"fmt"
	"testing"
	"time"
)

// demoState is what the page's hook tells.
type demoState struct {
	Phase      string
	Stream     string
	Connection string
	Verdict    *struct {
		Identical                            bool
		Tokens, Missing, Doubled, Disordered int
	}
	Counters struct {
		Position, Received, Delivered, Held, Duplicates, OutOfPlace int
		Doubled, Disordered, Gaps, Recovered, Dropped, Tokens       int
	}
	Ordered, Raw, Source string
}

func (b *tab) demo() demoState {
	b.t.Helper()
	var d demoState
	b.eval(`(() => { const d = chronocastDemo; return { phase: d.phase, stream: d.stream, connection: d.connection, verdict: d.verdict,
		counters: d.counters, ordered: d.orderedText, raw: d.rawText, source: d.sourceText } })()`, &d)
	return d
}

// openDemo opens the page, sets its speed by its own control and waits until
// tokens come.
func openDemo(t testing.TB, url string, speed int) *tab {
	t.Helper()
	b := openTab(t, url)
	b.until(20*time.Second, `globalThis.chronocastDemo?.counters.delivered > 0`)
	b.speed(speed)
	return b
}

func (b *tab) speed(tokens int) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(() => { const s = document.getElementById("speed"); s.value = %d; s.dispatchEvent(new Event("input", { bubbles: true })) })()`, tokens), nil)
}

func (b *tab) at(offset int, within time.Duration) {
	b.t.Helper()
	b.until(within, fmt.Sprintf(`globalThis.chronocastDemo?.counters.position >= %d`, offset))
}

// identical waits for the end of the answer and checks the page's verdict, and
// the text itself, against the source.
func (b *tab) identical(within time.Duration) demoState {
	b.t.Helper()
	b.until(within, `globalThis.chronocastDemo?.phase === "complete" && chronocastDemo.verdict !== null`)
	d := b.demo()
	if v := d.Verdict; !v.Identical || v.Missing != 0 || v.Doubled != 0 || v.Disordered != 0 || v.Tokens != d.Counters.Tokens {
		b.t.Errorf("the page's verdict is %+v", *v)
	}
	if len(d.Source) < 5000 || sha(d.Ordered) != sha(d.Source) {
		b.t.Errorf("the ordered pane holds %d characters, the source %d, and they differ", len(d.Ordered), len(d.Source))
	}
	if d.Counters.Doubled != 0 || d.Counters.Disordered != 0 || d.Counters.Held != 0 {
		b.t.Errorf("counters %+v", d.Counters)
	}
	b.until(5*time.Second, `document.getElementById("verdict-title").textContent.startsWith("Identical")`)
	if !b.t.Failed() {
		throughOurClient.Add(int64(d.Counters.Tokens))
	}
	return d
}

// The demo page as a newcomer meets it: it streams to the end, its ordered
// pane is the source, and the pane of raw arrivals scrambles visibly.
func TestDemo_StreamsToTheEndAndIsIdentical(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := openDemo(t, s.url("/"), 400)
	d := b.identical(60 * time.Second)
	if d.Counters.OutOfPlace == 0 || d.Raw == d.Ordered {
		t.Errorf("the raw pane is in order although frames are shuffled: %+v", d.Counters)
	}
	b.noComplaints(false)
	// A second tab on the same answer shows the same text.
	second := openTab(t, s.url("/#"+d.Stream))
	if other := second.identical(30 * time.Second); other.Stream != d.Stream {
		t.Errorf("the second tab watches %q, the first %q", other.Stream, d.Stream)
	}
	second.noComplaints(false)
	// Without trouble the raw pane is in order too, because the server's own wire
	// is: only what was live before the history was asked for comes early.
	second.eval(`chronocastDemo.shuffle(false)`, nil)
	second.speed(400)
	second.click("#again")
	second.until(10*time.Second, fmt.Sprintf(`chronocastDemo.stream !== %q`, d.Stream))
	second.at(50, 20*time.Second)
	joined := second.demo().Counters.OutOfPlace
	if calm := second.identical(60 * time.Second); calm.Counters.OutOfPlace != joined || joined > 10 {
		t.Errorf("without shuffling %d tokens were out of place, %d of them while joining", calm.Counters.OutOfPlace, joined)
	}
	figure(t, "demo page: identical with %d of %d raw arrivals out of place under shuffling, and with 0 without", d.Counters.OutOfPlace, d.Counters.Received)
}

// All the trouble at once: shuffled, delayed and dropped frames, its own button,
// cuts of the TCP connection, some in mid-frame, and a reload in the middle.
func TestDemo_CutsDropsShufflingAndAReloadStayIdentical(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	b := openDemo(t, px.url("/"), 100)
	b.click("label:has(#drop)")
	b.at(60, 20*time.Second)
	b.click("#cut")
	b.until(10*time.Second, `chronocastDemo.connection !== "connected"`)
	b.until(20*time.Second, `chronocastDemo.connection === "connected"`)
	px.cut()
	b.at(200, 30*time.Second)
	px.cutMidFrame()
	b.at(300, 30*time.Second)
	before := b.demo()
	b.click("#reload")
	b.until(20*time.Second, fmt.Sprintf(`globalThis.chronocastDemo?.stream === %q && chronocastDemo.counters.position >= %d`, before.Stream, before.Counters.Position))
	px.cut()
	b.speed(400)
	b.click("#cut")
	d := b.identical(90 * time.Second)
	// A reload begins to count anew.
	gaps, dropped := before.Counters.Gaps+d.Counters.Gaps, before.Counters.Dropped+d.Counters.Dropped
	if gaps == 0 || dropped == 0 {
		t.Errorf("all that trouble made %d gaps and dropped %d frames", gaps, dropped)
	}
	b.noComplaints(true)
	figure(t, "demo page: cuts by button and proxy, drops, shuffling, a reload: identical, %d gaps healed, %d frames dropped", gaps, dropped)
}

// The server is killed while an answer is being written: the page comes back,
// has the rest written, and is identical.
func TestDemo_AKilledServerInTheMiddleStaysIdentical(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := openDemo(t, s.url("/"), 100)
	b.at(100, 20*time.Second)
	s.kill()
	b.until(10*time.Second, `chronocastDemo.connection !== "connected"`)
	s.start()
	b.speed(400)
	b.identical(90 * time.Second)
	b.noComplaints(true)
}

// The tab is frozen and thawed, left for another page and returned to by the
// back button, with the network off for a while.
func TestDemo_FrozenLeftAndOfflineStaysIdentical(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := openDemo(t, s.url("/"), 100)
	b.at(60, 20*time.Second)
	b.call("life", map[string]any{"state": "frozen"}, nil)
	pause(4 * time.Second)
	b.call("life", map[string]any{"state": "active"}, nil)
	b.at(250, 20*time.Second)
	stream := b.demo().Stream
	b.call("goto", map[string]any{"url": s.url("/healthz")}, nil)
	pause(time.Second)
	b.call("back", nil, nil)
	b.until(20*time.Second, fmt.Sprintf(`globalThis.chronocastDemo?.stream === %q`, stream))
	b.at(300, 20*time.Second)
	b.call("offline", map[string]any{"on": true}, nil)
	pause(3 * time.Second)
	b.call("offline", map[string]any{"on": false}, nil)
	b.speed(400)
	b.identical(90 * time.Second)
	b.noComplaints(true)
}

// The basics of access: landmarks, names and labels, keyboard, contrast in both
// schemes, and no sideways scrolling on a small screen.
func TestDemo_IsAccessibleInLightAndDark(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, scheme := range []string{"light", "dark"} {
		b := openTabWith(t, s.url("/"), map[string]any{"scheme": scheme})
		b.until(20*time.Second, `globalThis.chronocastDemo?.counters.delivered > 0`)
		var faults []string
		b.eval(`(() => {
			const faults = []
			const must = (ok, what) => ok || faults.push(what)
			must(document.documentElement.lang, "no language")
			must(document.title, "no title")
			for (const landmark of ["header", "main", "footer"]) must(document.querySelectorAll("body > " + landmark).length === 1, "landmark " + landmark)
			must(document.querySelectorAll("h1").length === 1, "one h1")
			let level = 0
			for (const h of document.querySelectorAll("h1,h2,h3,h4")) {
				const next = Number(h.tagName[1])
				must(next <= level + 1, "heading level jumps at " + h.textContent)
				level = next
			}
			const name = e => (e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") ?? "").split(" ").map(id => document.getElementById(id)?.textContent ?? "").join(" ")
				|| [...(e.labels ?? [])].map(l => l.textContent).join(" ") || e.textContent || e.title || "").trim()
			for (const e of document.querySelectorAll("button, input, select, a[href], [role=region], progress, [role=group]")) must(name(e), "no name: " + e.outerHTML.slice(0, 80))
			for (const e of document.querySelectorAll("img")) must(e.hasAttribute("alt"), "no alt: " + e.src)
			for (const e of document.querySelectorAll("[tabindex]")) must(e.tabIndex <= 0, "tab order forced: " + e.id)
			for (const e of document.querySelectorAll("[id]")) must(document.querySelectorAll("#" + CSS.escape(e.id)).length === 1, "id twice: " + e.id)
			must(document.querySelector("[role=status], [aria-live]"), "nothing is announced")
			for (const e of document.querySelectorAll("*")) {
				if (["auto", "scroll"].includes(getComputedStyle(e).overflowY) && e.scrollHeight > e.clientHeight + 1 && e !== document.documentElement && e !== document.body)
					must(e.tabIndex === 0, "scrolls and cannot be focused: " + e.className)
			}
			return faults
		})()`, &faults)
		for _, f := range faults {
			t.Errorf("%s: %s", scheme, f)
		}
		var low []string
		b.eval(contrastScript, &low)
		for _, f := range low {
			t.Errorf("%s: contrast %s", scheme, f)
		}
		// The first Tab finds the skip link, which leads to the answer.
		b.call("press", map[string]any{"key": "Tab"}, nil)
		var focus struct{ Tag, Href, Outline string }
		b.eval(`(() => { const e = document.activeElement, s = getComputedStyle(e); return { tag: e.tagName, href: e.getAttribute("href") ?? "", outline: s.outlineStyle } })()`, &focus)
		if focus.Tag != "A" || focus.Href != "#stage" {
			t.Errorf("%s: the first Tab goes to %+v", scheme, focus)
		}
		if focus.Outline == "none" {
			t.Errorf("%s: the focus cannot be seen", scheme)
		}
		b.call("press", map[string]any{"key": "Enter"}, nil)
		b.until(5*time.Second, `document.activeElement.id === "stage"`)
		b.call("size", map[string]any{"width": 360, "height": 740}, nil)
		var overflow int
		b.eval(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &overflow)
		if overflow > 0 {
			t.Errorf("%s: the page is %d pixels too wide for a small screen", scheme, overflow)
		}
		b.noComplaints(false)
	}
}

// contrastScript lists texts whose contrast with what is behind them is below
// WCAG AA.
const contrastScript = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true })
	const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return { r, g, b, a: a / 255 } }
	const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 })
	const light = ({ r, g, b }) => { const f = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b) }
	const behind = e => { const stack = []; for (; e; e = e.parentElement) { const s = getComputedStyle(e); if (s.backgroundImage !== "none" && s.backgroundImage.includes("gradient")) return null; stack.push(rgb(s.backgroundColor)) }
		return stack.reverse().reduce((under, top) => over(top, under), rgb(matchMedia("(prefers-color-scheme: dark)").matches ? "#000" : "#fff")) }
	const low = new Set()
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue
		const s = getComputedStyle(e), box = e.getBoundingClientRect()
		if (s.visibility === "hidden" || s.display === "none" || box.width < 2 || box.height < 2 || s.clipPath !== "none" || e.closest("[disabled]")) continue
		const back = behind(e)
		if (!back) continue
		const text = over(rgb(s.color), back)
		const [a, b] = [light(text), light(back)].sort((x, y) => y - x)
		const ratio = (a + 0.05) / (b + 0.05)
		const big = parseFloat(s.fontSize) >= 24 || (parseFloat(s.fontSize) >= 18.6 && Number(s.fontWeight) >= 700)
		if (ratio < (big ? 3 : 4.5)) low.add(ratio.toFixed(2) + " for " + e.tagName.toLowerCase() + (e.id ? "#" + e.id : "." + e.className) + " " + JSON.stringify(e.textContent.trim().slice(0, 30)))
	}
	return [...low].slice(0, 12)
})()`
