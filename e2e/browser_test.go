package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is the one Chromium of the test run.
var browser struct {
	once sync.Once
	n    *node
	bad  string
}

// theBrowser starts Chromium when it is first needed.
func theBrowser(t testing.TB) *node {
	t.Helper()
	browser.once.Do(func() {
		path := os.Getenv("CHROMIUM")
		if path == "" {
			path = "/usr/bin/chromium"
		}
		if _, err := os.Stat(path); err != nil {
			browser.bad = "Chromium is missing at " + path + ": run `make test`, which installs what the tests need"
			return
		}
		browser.n = launchNode(t, "browser.mjs")
		browser.n.wait(60*time.Second, "ready", "")
	})
	if browser.n == nil {
		t.Fatal(browser.bad)
	}
	return browser.n
}

func closeBrowser() {
	if n := browser.n; n != nil {
		n.tryCall("quit", 10*time.Second)
		n.stop()
	}
}

// tryCall sends a command and waits for its end without judging it.
func (n *node) tryCall(what string, within time.Duration) {
	b, _ := json.Marshal(map[string]any{"do": what, "call": "last"})
	n.stdin.Write(append(b, '\n'))
	n.tryUntil(within, func() bool {
		last := len(n.events) - 1
		return last >= 0 && n.events[last].T == "result" && n.events[last].ID == "last"
	})
}

// tab is one page in the browser.
type tab struct {
	t  testing.TB
	n  *node
	id string
}

// openTab opens a page in a new tab. It closes with the test, which fails on
// anything the page complained about.
func openTab(t testing.TB, url string) *tab { return openTabWith(t, url, nil) }

func openTabWith(t testing.TB, url string, more map[string]any) *tab {
	t.Helper()
	b := &tab{t: t, n: theBrowser(t), id: "tab" + itoa(int(runs.Add(1)))}
	args := map[string]any{"id": b.id, "url": url}
	for k, v := range more {
		args[k] = v
	}
	b.call("open", args, nil)
	t.Cleanup(func() { b.call("close", map[string]any{"id": b.id}, nil) })
	return b
}

func (b *tab) call(what string, args map[string]any, into any) {
	b.t.Helper()
	all := map[string]any{"id": b.id}
	for k, v := range args {
		all[k] = v
	}
	b.n.callFor(b.t, 120*time.Second, what, all, into)
}

func (b *tab) eval(expression string, into any) {
	b.t.Helper()
	b.call("eval", map[string]any{"expression": expression}, into)
}

func (b *tab) until(within time.Duration, expression string) {
	b.t.Helper()
	b.call("until", map[string]any{"expression": expression, "within": within.Milliseconds()}, nil)
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.call("click", map[string]any{"selector": selector}, nil)
}

// complaints are console errors, exceptions and policy violations, without
// those that a cut network makes the browser itself print.
func (b *tab) complaints(cut bool) []string {
	var out []string
	for _, e := range b.n.all("complaint", b.id) {
		var c struct{ Kind, Text, URL string }
		e.into(&c)
		if strings.HasSuffix(c.URL, "/favicon.ico") {
			continue // asked for by the browser where a page names no icon
		}
		if cut && (strings.Contains(c.Text, "WebSocket connection to") || strings.Contains(c.Text, "net::ERR_")) {
			continue
		}
		out = append(out, c.Kind+": "+c.Text)
	}
	return out
}

func (b *tab) noComplaints(cut bool) {
	b.t.Helper()
	for _, c := range b.complaints(cut) {
		b.t.Errorf("the page complained: %s", c)
	}
}
