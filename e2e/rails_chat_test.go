package e2e

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// chat is the example application on one PostgreSQL with its Chronocast server,
// which browsers reach through a proxy.
type chat struct {
	*railsApp
	s   *server
	px  *proxy
	url string
}

func newChat(t testing.TB) *chat {
	t.Helper()
	return openChat(t, freePort(t), nil)
}

// newSecuredChat is newChat with a secret on both sides: names of streams are
// signed by Rails, publishing takes the key, and pages of the application alone
// may connect.
func newSecuredChat(t testing.TB) *chat {
	t.Helper()
	const secret, base = "a-secret-of-the-tests-of-thirty-two-bytes", "a-secret-key-base-of-the-tests-which-is-rather-longer-than-that"
	addr := freePort(t)
	c := openChat(t, addr, []string{"CHRONOCAST_SECRET=" + secret, "SECRET_KEY_BASE=" + base},
		"--secret", secret, "--secret-key-base", base, "--origins", "http://"+addr)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("broadcast-cable"))
	c.s.http.Transport = bearer{hex.EncodeToString(mac.Sum(nil)), c.s.http.Transport}
	return c
}

// bearer sends a key with every request.
type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.next.RoundTrip(r)
}

func (b bearer) CloseIdleConnections() { b.next.(*http.Transport).CloseIdleConnections() }

func openChat(t testing.TB, addr string, env []string, flags ...string) *chat {
	t.Helper()
	c := &chat{url: pgtest.Database(t), s: unstartedServer(t, append(flags, "--retain-count", "100000")...)}
	c.s.db = c.url
	c.s.start()
	c.px = newProxy(t, c.s.addr)
	c.railsApp = rails(t, addr, "../examples/rails-chat", "js/rails_stock.ru",
		append(env, "DATABASE_URL="+c.url, "CHRONOCAST_URL="+c.s.url(""), "CABLE_URL="+c.px.ws(), "SHOWN=100000")...)
	return c
}

// watchStreams keeps what Turbo Streams render, in the order in which they do.
const watchStreams = `
	globalThis.rendered = []
	addEventListener("turbo:before-stream-render", event => {
		const { render } = event.detail
		event.detail.render = async stream => {
			const id = stream.templateElement.content.firstElementChild?.id
			await render(stream)
			rendered.push(id)
		}
	}, { capture: true })`

// speaker is a process of the application, such as one that runs jobs. It says
// things in room 1, each in a transaction with its broadcast.
type speaker struct {
	c     *chat
	in    io.Writer
	lines *bufio.Scanner
}

func (c *chat) speaker() *speaker {
	c.t.Helper()
	in, out := c.process(`
		room = Room.find(1)
		while (line = $stdin.gets)
			name, count, pause = line.split
			count.to_i.times { |n| room.say(name, "#{name} #{n}"); sleep pause.to_f }
			puts "said"
			$stdout.flush
		end`)
	return &speaker{c, in, bufio.NewScanner(out)}
}

// say says n things and returns when all are committed.
func (p *speaker) say(name string, n int, pause time.Duration) {
	p.c.t.Helper()
	fmt.Fprintf(p.in, "%s %d %f\n", name, n, pause.Seconds())
	if !p.lines.Scan() {
		p.c.t.Error("a process of the application has ended")
	}
}

func (c *chat) room() *tab {
	c.t.Helper()
	b := openTabWith(c.t, c.railsApp.url("/rooms/1"), map[string]any{"init": watchStreams})
	b.live()
	return b
}

// live waits until the room's stream is connected.
func (b *tab) live() {
	b.t.Helper()
	b.until(30*time.Second, `!!document.querySelector("[signed-stream-name], chronocast-stream-source")?.hasAttribute("connected")`)
}

// ids are the messages that the page shows, from top to bottom.
func (b *tab) ids() []int {
	b.t.Helper()
	var ids []int
	b.eval(`[...document.querySelectorAll("#messages > li")].map(li => Number(li.id.slice("message_".length)))`, &ids)
	return ids
}

// rows are the ids of the room's messages in the order of the database.
func (c *chat) rows() []int {
	c.t.Helper()
	rows, err := psql(c.t, c.url).Query(context.Background(), "SELECT id FROM messages WHERE room_id = 1 ORDER BY id")
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	var ids []int
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			c.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

var messageID = regexp.MustCompile(`id=.{1,2}message_(\d+)`)

// streamed are the ids in the log of the room's stream, in its order.
func (c *chat) streamed() []int {
	c.t.Helper()
	var ids []int
	for _, m := range c.s.log("room:1") {
		found := messageID.FindStringSubmatch(m.data)
		if found == nil {
			c.t.Fatalf("no message in %.200s", m.data)
		}
		var id int
		fmt.Sscan(found[1], &id)
		ids = append(ids, id)
	}
	return ids
}

// Two processes of the Rails example broadcast Turbo appends, each inside its
// transaction. Three browsers end on the identical page, which is in the order
// of the commits: through cut sockets, restarts of the server, a frozen tab,
// pages that are left and come back from the browser's cache, and fast flips.
func TestB05_RailsChat_ThreeBrowsersEndOnTheIdenticalPage(t *testing.T) {
	t.Parallel()
	c := newSecuredChat(t)
	each := scale(250, 2500)
	pace := time.Duration(scale(15, 20)) * time.Millisecond
	steady, left, flipped := c.room(), c.room(), c.room()
	first := len(c.rows())

	var publishing sync.WaitGroup
	for _, name := range []string{"Ada", "Grace"} {
		p := c.speaker()
		publishing.Go(func() { p.say(name, each, pace) })
	}

	cuts, restarts, returns, flips := 0, 0, 0, 0
	wantCuts, wantRestarts, wantFlips := scale(6, 20), scale(1, 3), scale(15, 50)
	frozen := false
	var thaw *time.Timer
	thawed := make(chan struct{})
	for round := 0; cuts < wantCuts || restarts < wantRestarts || flips < wantFlips || returns < scale(2, 4); round++ {
		if !frozen && round == 1 {
			frozen = true
			steady.call("life", map[string]any{"state": "frozen"}, nil)
			thaw = time.AfterFunc(time.Duration(scale(4, 60))*time.Second, func() { close(thawed) })
		}
		if cuts < wantCuts {
			if cuts%2 == 0 {
				c.px.cut()
			} else {
				c.px.cutMidFrame()
			}
			cuts++
		}
		if round%3 == 0 && returns < scale(2, 4) {
			left.call("goto", map[string]any{"url": c.railsApp.url("/chat.css")}, nil)
			pause(300 * time.Millisecond)
			left.call("back", nil, nil)
			returns++
		}
		for range 4 {
			if flips < wantFlips {
				path := []string{"/", "/rooms/1", "/rooms/2", "/rooms/1"}[flips%4]
				flipped.eval(fmt.Sprintf("Turbo.visit(%q), null", path), nil)
				pause(time.Duration(60+40*(flips%5)) * time.Millisecond)
				flips++
			}
		}
		if round%4 == 2 && restarts < wantRestarts {
			flipped.until(20*time.Second, `document.readyState === "complete"`)
			if restarts%2 == 0 {
				c.s.kill()
			} else {
				c.s.terminate(15 * time.Second)
			}
			c.s.start()
			restarts++
		}
		pause(500 * time.Millisecond)
	}
	<-thawed
	thaw.Stop()
	steady.call("life", map[string]any{"state": "active"}, nil)
	flipped.eval(`Turbo.visit("/rooms/1"), null`, nil)
	flipped.until(20*time.Second, `location.pathname === "/rooms/1"`)
	publishing.Wait()

	rows := c.rows()
	if got := c.streamed(); !slices.Equal(got, rows) {
		t.Fatalf("the stream has %d messages, the database %d, or they differ in order", len(got), len(rows))
	}
	if len(rows) != first+2*each {
		t.Fatalf("%d messages, want %d", len(rows), first+2*each)
	}
	for i, b := range []*tab{steady, left, flipped} {
		name := []string{"the steady tab", "the tab that was left", "the tab that was flipped"}[i]
		last := fmt.Sprintf("message_%d", rows[len(rows)-1])
		eventually(t, 2*time.Minute, name+" shows the newest message", func() bool {
			var id string
			b.eval(`document.querySelector("#messages > li:last-child")?.id ?? ""`, &id)
			return id == last
		})
		if got := b.ids(); !slices.Equal(got, rows) {
			t.Errorf("%s shows %d of %d messages, or in another order: %s", name, len(got), len(rows), firstDifference(got, rows))
		}
		for _, said := range b.complaints(true) {
			if !strings.Contains(said, "AbortError") { // Turbo lets go of a visit that another one overtakes
				t.Errorf("%s complained: %s", name, said)
			}
		}
	}
	// The steady tab was never loaded again: each message was rendered once.
	var rendered []string
	steady.eval("rendered", &rendered)
	var want []string
	for _, id := range rows[first:] {
		want = append(want, fmt.Sprintf("message_%d", id))
	}
	if !slices.Equal(rendered, want) {
		t.Errorf("the steady tab rendered %d times for %d messages: %s", len(rendered), len(want), firstDifference(rendered, want))
	}
	if !t.Failed() {
		throughOurClient.Add(int64(3 * len(rows)))
	}
	figure(t, "Rails chat: 2 processes, %d Turbo appends inside transactions, three browsers identical and in commit order through %d cuts, %d server restarts, a freeze of %d s, %d returns, %d page flips: 0 missing, 0 doubled",
		2*each, cuts, restarts, scale(4, 60), returns, flips)
}

func firstDifference[T comparable](got, want []T) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("at %d %v, want %v", i, got[i], want[i])
		}
	}
	return "one ends before the other"
}
