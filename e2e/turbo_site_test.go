package e2e

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// site is an application with pages that Turbo drives: each shows the list
// that a stream's messages make, rendered by the server up to a position, and
// goes on from there by itself. It stands at an origin of its own.
type site struct {
	t     testing.TB
	s     *server
	p     *publisher
	cable string
	http  *httptest.Server

	mu    sync.Mutex          // guards what follows
	items map[string][]string // what the database of the application holds
	pages int
	token func() string // what the application lets a page be; nil refuses
}

// openSite starts an application for a server. Its pages reach the server
// through cable, which may be a proxy.
func openSite(t testing.TB, s *server, cable string) *site {
	t.Helper()
	needPackages(t)
	a := &site{t: t, s: s, p: newPublisher(t, s.url("")), cable: cable, items: map[string][]string{}}
	mux := http.NewServeMux()
	packages := http.StripPrefix("/npm/", http.FileServer(http.Dir("node_modules/@hotwired")))
	mux.HandleFunc("/npm/", func(w http.ResponseWriter, r *http.Request) {
		if ms, err := strconv.Atoi(r.URL.Query().Get("late")); err == nil {
			pause(time.Duration(ms) * time.Millisecond)
		}
		packages.ServeHTTP(w, r)
	})
	mux.HandleFunc("/page", a.page)
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.token == nil {
			http.Error(w, "sign in first", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, a.token())
	})
	a.http = httptest.NewServer(mux)
	t.Cleanup(a.http.Close)
	return a
}

// add appends an item to the list of a stream and broadcasts it.
func (a *site) add(stream, item string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addLocked(stream, item)
}

func (a *site) addLocked(stream, item string) {
	a.items[stream] = append(a.items[stream], item)
	a.p.must(stream, jsonText(appended(item)))
}

func (a *site) addSome(stream string, n int) {
	a.t.Helper()
	for range n {
		a.mu.Lock()
		a.addLocked(stream, itoa(len(a.items[stream])+1))
		a.mu.Unlock()
	}
}

// steadily adds an item every so often, until stop is called.
func (a *site) steadily(stream string, every time.Duration) (stop func()) {
	done := make(chan struct{})
	var adding sync.WaitGroup
	adding.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				a.addSome(stream, 1)
			}
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() { close(done) })
		adding.Wait()
	}
	a.t.Cleanup(stop)
	return stop
}

func (a *site) all(stream string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.items[stream]...)
}

// forget is for when the server begins with an empty database.
func (a *site) forget(stream string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.items, stream)
}

// appended is the Turbo Stream that appends an item. It has no id, so that an
// item that comes twice is seen twice.
func appended(item string) string {
	return `<turbo-stream action="append" target="list"><template><li>` + html.EscapeString(item) + `</li></template></turbo-stream>`
}

// url is the address of a page. kind says what reads the stream:
//
//	ours      our element
//	takeover  the element of turbo-rails, read by our bundle
//	ordered   the element and the client of turbo-rails, unmodified; our bundle beside it
//	stock     the element and the client of turbo-rails, unmodified, alone
//	none      nothing: a page without the stream
func (a *site) url(kind, stream string, more ...string) string {
	q := url.Values{"kind": {kind}, "stream": {stream}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return a.http.URL + "/page?" + q.Encode()
}

// page renders. Besides kind and stream it knows: at=none, a page without a
// position; born=N, where N items are added after the page was rendered and
// before it is sent; elements=N; head, put into the head; late, how many ms Turbo
// itself takes to come, for takeover.
func (a *site) page(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	kind, stream := q.Get("kind"), q.Get("stream")
	number := func(name string, n int) int {
		if v, err := strconv.Atoi(q.Get(name)); err == nil {
			return v
		}
		return n
	}
	a.mu.Lock()
	a.pages++
	page := a.pages
	at := a.s.head(stream)
	items := a.items[stream]
	var list strings.Builder
	for _, item := range items {
		list.WriteString("<li>" + html.EscapeString(item) + "</li>")
	}
	for range number("born", 0) {
		a.addLocked(stream, itoa(len(a.items[stream])+1))
	}
	a.mu.Unlock()

	scripts := map[string]string{
		"ours":     module(`/npm/turbo/dist/turbo.es2017-esm.js`) + module(a.s.url("/turbo.min.js")),
		"takeover": module(a.s.url("/turbo.min.js")) + module(`/npm/turbo-rails/app/assets/javascripts/turbo.js?late=`+q.Get("late")),
		"ordered":  module(`/npm/turbo-rails/app/assets/javascripts/turbo.js`) + module(a.s.url("/turbo.min.js")),
		"stock":    module(`/npm/turbo-rails/app/assets/javascripts/turbo.js`),
		"none":     module(`/npm/turbo/dist/turbo.es2017-esm.js`) + module(a.s.url("/turbo.min.js")),
	}
	head := `<meta name="action-cable-url" content="` + html.EscapeString(a.cable) + `">`
	if kind == "takeover" {
		head += `<meta name="chronocast-takeover" content="true">`
	}
	head += q.Get("head")
	if q.Get("token") != "" {
		head += `<script type="module">
			import { configure } from "` + a.s.url("/turbo.min.js") + `"
			globalThis.asked = 0
			configure({ token: async () => {
				asked++
				const answer = await fetch("/token")
				if (!answer.ok) throw new Error("the application gives no token")
				return await answer.text()
			} })
		</script>`
	}
	// The same for a signed name as Rails renders it, and for a public stream.
	prefix, element := "", fmt.Sprintf(`<chronocast-stream-source stream="%s"`, html.EscapeString(stream))
	signed := fmt.Sprintf(` channel="Turbo::StreamsChannel" signed-stream-name="%s"`, html.EscapeString(q.Get("name")))
	switch name := q.Get("name"); {
	case kind == "ours" && name != "":
		element = `<chronocast-stream-source` + signed
	case kind != "ours" && name != "":
		prefix, element = "data-", `<turbo-cable-stream-source`+signed
	case kind != "ours":
		prefix, element = "data-", fmt.Sprintf(`<turbo-cable-stream-source channel="$pubsub" data-stream-name="%s"`, html.EscapeString(stream))
	}
	if q.Get("at") != "none" {
		element += fmt.Sprintf(` %sepoch="%s" %soffset="%d"`, prefix, at.Epoch, prefix, at.Last)
		if prefix != "" {
			element += fmt.Sprintf(` data-page="page-%d-%d"`, page, time.Now().UnixNano())
		}
	}
	element += "></" + element[1:strings.IndexByte(element, ' ')] + ">"
	if kind == "none" {
		element = ""
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	// What a browser may keep for going back, as an application's pages are.
	w.Header().Set("Cache-Control", "max-age=0, private, must-revalidate")
	fmt.Fprintf(w, `<!doctype html><html lang="en"><head><title>%s</title>%s%s</head><body data-page="%d"><ul id="list">%s</ul><p id="status"></p>%s</body></html>`,
		html.EscapeString(stream), head, scripts[kind], page, list.String(), strings.Repeat(element, number("elements", 1)))
}

func module(src string) string { return `<script type="module" src="` + src + `"></script>` }

// open opens a page in a tab of the browser that Playwright drives.
func (a *site) open(kind, stream string, more ...string) *tab {
	a.t.Helper()
	return openTabWith(a.t, a.url(kind, stream, more...), map[string]any{"init": turboScript(a.t)})
}

func turboScript(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("js/turbo-page.js")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// connected waits until the page's stream is.
func (b *tab) connected() {
	b.t.Helper()
	b.until(20*time.Second, `globalThis.source?.()?.hasAttribute("connected")`)
}

func (b *tab) list() []string {
	b.t.Helper()
	var out []string
	b.eval("list()", &out)
	return out
}

// shows waits until the page has the items, and checks that it has nothing
// else: none missing, none twice, in order.
func (b *tab) shows(want []string, within time.Duration) {
	b.t.Helper()
	if len(want) > 0 {
		defer func() {
			if b.t.Failed() {
				var now any
				b.call("eval", map[string]any{"expression": `({ list: list().slice(-12), told, wire: wire.slice(-8), element: source()?.outerHTML, waiting: document.querySelectorAll("turbo-stream").length })`}, &now)
				b.t.Logf("the page: %v", now)
			}
		}()
		b.until(within, fmt.Sprintf(`globalThis.list && (list().at(-1) === %s || list().length >= %d)`, jsonText(want[len(want)-1]), len(want)))
	}
	if got := b.list(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		b.t.Errorf("the page shows %d items, want %d:\n%s", len(got), len(want), difference(got, want))
	}
}

func difference(got, want []string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	cut := func(list []string) []string { return list[max(0, min(i-3, len(list))):min(len(list), i+12)] }
	return fmt.Sprintf("from item %d on, got  %v\n                  want %v", i+1, cut(got), cut(want))
}
