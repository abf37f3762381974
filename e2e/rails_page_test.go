package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// B16: the page is rendered, three messages are broadcast, and only then does
// its socket open. They arrive, each once; and not again after the next cuts.
// Both with our element and with the unmodified one of turbo-rails.
func TestB16_RailsPage_IsNeverBornStale(t *testing.T) {
	t.Parallel()
	c := newSecuredChat(t)
	p := c.speaker()
	for _, page := range []string{"/rooms/1", "/stock/1"} {
		p.say("before", 2, 0)
		c.px.set(func(p *proxy) { p.refuse = true })
		b := openTabWith(t, c.railsApp.url(page), map[string]any{"init": watchStreams})
		shown := b.ids()
		if want := c.rows(); !slices.Equal(shown, want) {
			t.Fatalf("%s was rendered with %v, want %v", page, shown, want)
		}
		p.say("between", 3, 0)
		c.px.set(func(p *proxy) { p.refuse = false })
		b.live()
		b.until(30*time.Second, fmt.Sprintf(`document.querySelectorAll("#messages > li").length === %d`, len(shown)+3))
		for range 2 {
			c.px.cut()
			b.until(10*time.Second, `!document.querySelector("[signed-stream-name]").hasAttribute("connected")`)
			b.live()
		}
		p.say("after", 2, 0)
		rows := c.rows()
		b.until(30*time.Second, fmt.Sprintf(`document.querySelector("#messages > li:last-child").id === "message_%d"`, rows[len(rows)-1]))
		if got := b.ids(); !slices.Equal(got, rows) {
			t.Errorf("%s shows %v, want %v", page, got, rows)
		}
		var rendered []string
		b.eval("rendered", &rendered)
		var want []string
		for _, id := range rows[len(shown):] {
			want = append(want, fmt.Sprintf("message_%d", id))
		}
		if !slices.Equal(rendered, want) {
			t.Errorf("%s rendered %v, want each of %v once", page, rendered, want)
		}
		b.noComplaints(true)
	}
}

// B91: a payload of a mebibyte is broadcast inside a transaction of Active
// Record. What the browser's socket is given holds the very bytes.
func TestB91_RailsAMebibyteIsByteEqualInTheBrowser(t *testing.T) {
	t.Parallel()
	c := newChat(t)
	var text strings.Builder
	text.WriteString(`{ "b" : 1.0, "a":"\u003c\/b\u003e 😀 \ud83d\ude00", "k":1, "k":2, "fill" : "`)
	for i := 0; text.Len() < 1<<20-64; i++ {
		fmt.Fprintf(&text, `%d ä\n\"<&>\u2028 `, i)
	}
	text.WriteString(`" }`)
	payload := text.String()
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte(payload), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTabWith(t, strings.Replace(strings.Replace(c.px.ws(), "ws:", "http:", 1), "/cable", "/demo/text", 1), map[string]any{"init": readerScript(t) + `
		globalThis.frames = []
		globalThis.WebSocket = class extends WebSocket {
			constructor(...args) { super(...args); this.addEventListener("message", event => frames.push(event.data)) }
		}`})
	b.read(c.px.ws(), "big", "")
	_, out := c.process(`
		Room.transaction do
			Chronocast.broadcast("big", json: File.read(ARGV[0]))
			raise ActiveRecord::Rollback
		end
		Room.transaction { Chronocast.broadcast("big", json: File.read(ARGV[0])) }`, file)
	if said, err := io.ReadAll(out); err != nil || len(said) > 0 {
		t.Fatalf("the process said %q, %v", said, err)
	}
	b.awaitLast(1, 20*time.Second)
	var hash string
	b.eval(`(async () => {
		const frame = frames.find(f => f.includes('"message":{ "b"'))
		const payload = frame.slice(frame.indexOf('"message":') + 10, frame.lastIndexOf(',"stream_id":'))
		const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(payload))
		return [...new Uint8Array(digest)].map(b => b.toString(16).padStart(2, "0")).join("")
	})()`, &hash)
	if hash != sha(payload) {
		t.Errorf("the browser was given other bytes: SHA-256 %s, want %s", hash, sha(payload))
	}
	if log := c.s.log("big"); len(log) != 1 || log[0].Offset != 1 || log[0].data != payload {
		t.Errorf("the log has %d messages, or another payload", len(log))
	}
	figure(t, "a payload of %d bytes through an Active Record transaction: byte-equal in Chromium", len(payload))
}
