package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// openTabs starts a Chromium whose tabs are hidden when another is in front.
func openTabs(t testing.TB) *node {
	t.Helper()
	path := os.Getenv("CHROMIUM")
	if path == "" {
		path = "/usr/bin/chromium"
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal("Chromium is missing at " + path + ": run `make test`, which installs what the tests need")
	}
	n := startNode(t, "turbo-tabs.mjs")
	n.wait(60*time.Second, "ready", "")
	t.Cleanup(func() { n.tryCall("quit", 10*time.Second) })
	return n
}

// inTab opens a page in a tab of such a browser.
func inTab(t testing.TB, n *node, url string) *tab {
	t.Helper()
	b := &tab{t: t, n: n, id: "tab" + itoa(int(runs.Add(1)))}
	b.call("open", map[string]any{"url": url, "init": turboScript(t)}, nil)
	t.Cleanup(func() { b.call("close", nil, nil) })
	return b
}

// hiddenBetween has A arrive in a page on show, hides the page before Turbo has
// rendered A, has B and C arrive, and returns what the page shows: while it is
// hidden, and when it is looked at again.
func hiddenBetween(t *testing.T, n *node, a *site, kind string) (hidden, shown string) {
	t.Helper()
	stream := "hidden-" + kind
	b := inTab(t, n, a.url(kind, stream))
	other := inTab(t, n, "about:blank")
	b.call("front", nil, nil)
	b.until(10*time.Second, `!document.hidden`)
	b.connected()
	b.eval(`stopDrawing()`, nil)
	a.add(stream, "A")
	b.until(2*time.Second, `document.querySelectorAll("turbo-stream").length === 1`)
	other.call("front", nil, nil)
	b.until(10*time.Second, `document.hidden && list().length === 0`)
	a.add(stream, "B")
	a.add(stream, "C")
	b.until(10*time.Second, `list().includes("C")`)
	var still bool
	b.eval(`document.hidden`, &still)
	hidden = strings.Join(b.list(), " ")
	if !still {
		t.Fatalf("%s: the page was shown again too early", kind)
	}
	b.call("front", nil, nil)
	b.until(10*time.Second, `!document.hidden && document.querySelectorAll("turbo-stream").length === 0`)
	return hidden, strings.Join(b.list(), " ")
}

// Turbo renders B and C, and A when the page is looked at again: its waiting for
// a frame does not end while the page is hidden. With our bundle the order of
// arrival holds, also for the element of turbo-rails, and nothing waits.
func TestTurbo_AHiddenTabRendersInOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := openSite(t, s, s.ws())
	n := openTabs(t)
	for _, c := range []struct{ kind, hidden, shown string }{
		{"stock", "B C", "B C A"}, // Turbo's own fault, which shows that the others are tried
		{"ordered", "A B C", "A B C"},
		{"ours", "A B C", "A B C"},
		{"takeover", "A B C", "A B C"},
	} {
		if hidden, shown := hiddenBetween(t, n, a, c.kind); hidden != c.hidden || shown != c.shown {
			t.Errorf("%s: hidden the page shows %q and then %q, want %q and %q", c.kind, hidden, shown, c.hidden, c.shown)
		}
	}
	figure(t, "hidden between A and B: Turbo alone ends with B C A, with our bundle A B C")
}
