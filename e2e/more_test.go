package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// B07: B publishes only after it was given A's message. Whoever reads the
// stream sees A's before B's, every time.
func TestB07_AReactionNeverComesBeforeItsCause(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := newPublisher(t, s.url("")), newPublisher(t, s.url(""))
	reactor, reader := dial(t, s.ws(), extended), dial(t, s.ws(), plain)
	reactor.subscribe("talk")
	reader.subscribe("talk")
	rounds := scale(500, 5000)
	for i := range rounds {
		cause := a.must("talk", fmt.Sprintf(`{"cause":%d}`, i))
		reactor.awaitOffset("talk", cause.Offset, 5*time.Second)
		if effect := b.must("talk", fmt.Sprintf(`{"effect":%d}`, i)); effect.Offset <= cause.Offset {
			t.Fatalf("round %d: the reaction stands at %v, its cause at %v", i, effect, cause)
		}
	}
	reader.awaitOffset("talk", uint64(2*rounds), 10*time.Second)
	judge(s.log("talk"), true).delivered("reader", reader.messages("talk"), 0, true).report(t)
}

// B13: atomic batches to {A,B} and {B,C} in parallel: every stream is
// contiguous, and a batch is there as a whole.
func TestB13_OverlappingBatchesKeepEveryStreamWhole(t *testing.T) {
	t.Parallel()
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	socks := map[string]*socket{}
	for _, name := range []string{"A", "B", "C"} {
		socks[name] = dial(t, s.ws(), extended)
		socks[name].subscribe(name)
	}
	pairs := [][2]string{{"A", "B"}, {"B", "C"}, {"C", "A"}, {"B", "A"}}
	const workers, each = 16, 40
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				pair := pairs[(w+i)%len(pairs)]
				data := fmt.Sprintf(`{"w":%d,"i":%d}`, w, i)
				b, _ := json.Marshal([]map[string]string{{"stream": pair[0], "data": data}, {"stream": pair[1], "data": data}})
				resp, err := p.client.Post(s.url("/broadcast"), "application/json", bytes.NewReader(b))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode/100 != 2 {
					t.Errorf("a batch: %d", resp.StatusCode)
				}
			}
		})
	}
	wg.Wait()
	copies := map[string]int{}
	for name, sock := range socks {
		log := s.log(name)
		sock.awaitOffset(name, log[len(log)-1].Offset, 10*time.Second)
		judge(log, true).delivered(name, sock.messages(name), 0, true).report(t)
		for _, m := range log {
			copies[m.data]++
		}
	}
	for data, n := range copies {
		if n != 2 {
			t.Errorf("the batch %s is there %d times, in two streams", data, n)
		}
	}
	if len(copies) != workers*each {
		t.Errorf("%d batches of %d", len(copies), workers*each)
	}
}

// B29: catching up with a long log while pings fly every 100 ms, live messages
// come and retention is at work: exact.
func TestB29_ALongCatchUpUnderPingsAndLiveMessages(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--ping-interval", "100ms", "--retain-count", "1000000", "--retain", "trimmed/=count:10")
	p := newPublisher(t, s.url(""))
	n := scale(10000, 100000)
	p.bulk("long", n)
	ctx, stop := context.WithCancel(context.Background())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		p.steadily(ctx, "long", 100, 0, func(i int) string { return fmt.Sprintf(`{"n":%d}`, n+i+1) })
	})
	publishing.Go(func() {
		p.steadily(ctx, "trimmed/1", 50, 0, func(i int) string { return fmt.Sprintf(`{"n":%d}`, i+1) })
	})
	cl := ours(t, s.ws(), "start", "long")
	sock := dial(t, s.ws(), extended)
	sock.resume("long", place{s.head("long").Epoch, 0})
	cl.awaitLast("long", uint64(n), 60*time.Second)
	sock.awaitOffset("long", uint64(n), 60*time.Second)
	stop()
	publishing.Wait()
	last := s.head("long").Last
	cl.awaitLast("long", last, 20*time.Second)
	sock.awaitOffset("long", last, 20*time.Second)
	judge(s.log("long"), false).delivered("bundled client", cl.messages("long"), 0, true).
		delivered("socket", sock.messages("long"), 0, true).report(t)
	if !t.Failed() {
		throughOurClient.Add(int64(last))
	}
}

// B77: many sockets are cut at once and all come back 100 behind: nobody is
// reset, everybody is whole, and the server's memory is back soon.
func TestB77_AHerdThatReturnsIsServedWhole(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	p.bulk("herd", 200)
	at := place{s.head("herd").Epoch, 100}
	herd := scale(400, 2000)
	v := judge(s.log("herd"), true)
	var base int64
	began := time.Now()
	for round := range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		socks := make([]*socket, 0, herd)
		slots := make(chan struct{}, 64)
		for i := range herd {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				sock, _, err := tryDial(t, s.ws(), dialOptions{}, subprotocols[1+i%2])
				if err != nil {
					t.Error(err)
					return
				}
				sock.resume("herd", at)
				mu.Lock()
				socks = append(socks, sock)
				mu.Unlock()
			})
		}
		wg.Wait()
		for i, sock := range socks {
			sock.awaitMessages(100, 20*time.Second)
			if got := sock.messages("herd"); i%20 == 0 || inversions(got) != 0 || len(got) != 100 {
				v.delivered(fmt.Sprintf("round %d, %d", round, i), got, 100, true)
			}
		}
		for _, sock := range socks {
			reset(sock.conn.UnderlyingConn())
		}
		if round == 0 {
			base = s.rss()
		}
	}
	v.report(t)
	eventually(t, 20*time.Second, "all of the herd are gone", func() bool {
		n, ok := s.metric("chronocast_connections")
		return ok && n == 0
	})
	if grown := s.rss() - base; grown > 64<<20 {
		t.Errorf("memory grew by %d MiB over two more herds", grown>>20)
	}
	figure(t, "B77: 3 herds of %d sockets resumed 100 behind in %v, 0 resets", herd, time.Since(began).Round(time.Millisecond))
}

// B88: the window of a key is fixed from its first use: within it a repeat is
// recognized, after it the key is new, however often it was repeated between.
func TestB88_TheKeyWindowDoesNotSlide(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--key-window", "3s")
	p := newPublisher(t, s.url(""))
	first := time.Now()
	status := func() int {
		t.Helper()
		a, err := p.once(t.Context(), "window", "k", "application/json", []byte(`1`))
		if err != nil {
			t.Fatal(err)
		}
		return a.status
	}
	if got := status(); got != http.StatusCreated {
		t.Fatalf("the first use: %d", got)
	}
	for time.Since(first) < 2500*time.Millisecond {
		if got := status(); got != http.StatusOK && time.Since(first) < 3*time.Second {
			t.Fatalf("a repeat after %v: %d, want 200", time.Since(first), got)
		}
		pause(250 * time.Millisecond)
	}
	pause(time.Until(first.Add(3500 * time.Millisecond)))
	if got := status(); got != http.StatusCreated {
		t.Errorf("after the window: %d, want 201", got)
	}
	if h := s.head("window"); h.Last != 2 {
		t.Errorf("%d stored, want 2", h.Last)
	}
}

// B118: the connection is cut right after a ping, again and again. B119: it is
// cut before any message of a resume comes, ten times. Exact.
func TestB118_B119_CutsAfterPingsAndBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--ping-interval", "100ms")
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 10, "maxDelay": 50})
	p.numbered("cursor", 5)
	at := place{s.head("cursor").Epoch, 2}
	var pings, early atomic.Int64
	px.set(func(p *proxy) {
		p.filter = func(b []byte) bool {
			switch text := string(b); {
			case strings.Contains(text, `"message":{"n"`) && early.Add(1) <= 10:
				p.cutLater()
				return false
			case strings.Contains(text, `"type":"ping"`) && early.Load() > 10 && pings.Add(1)%3 == 0 && pings.Load() <= 30:
				p.cutLater()
			}
			return true
		}
	})
	cl.do("stream", map[string]any{"id": "a", "name": "cursor", "after": at, "quiet": true})
	eventually(t, 20*time.Second, "ten resumes were cut before a message", func() bool { return early.Load() > 10 })
	for i := 0; pings.Load() < 30; i++ {
		p.must("cursor", fmt.Sprintf(`{"n":%d}`, i+6))
	}
	last := s.head("cursor").Last
	cl.awaitLast("a", last, 20*time.Second)
	judge(s.log("cursor"), true).delivered("bundled client", cl.messages("a"), 2, true).report(t)
	if n := px.accepted.Load(); n < 20 {
		t.Errorf("%d connections: the cuts did not happen", n)
	}
}

// B149: a token in the address ends in no log, whatever goes wrong with it, and
// neither do payloads.
func TestB149_SecretsStayOutOfTheLogs(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--log-level", "debug")
	p := newPublisher(t, s.url(""))
	const secret = "s3cr3t-t0k3n"
	for _, path := range []string{"/cable?token=" + secret, "/cable?jid=" + secret} {
		sock, _, err := tryDial(t, "ws://"+s.addr+path, dialOptions{header: http.Header{"Authorization": {"Bearer " + secret}}}, chronocast, "anycable-token."+secret)
		if err == nil {
			sock.subscribe("quiet")
			sock.sendRaw(`{"command":"` + secret + `","identifier":"` + secret + `","data":"` + secret + `"}`)
			sock.next(5*time.Second, "error", "disconnect")
			sock.close()
		}
	}
	p.must("quiet", `{"password":"`+secret+`"}`)
	for _, path := range []string{"/nowhere?token=" + secret, "/streams/quiet/messages?after=x&token=" + secret, "/streams/quiet/messages?after=" + secret} {
		resp, err := p.client.Get(s.url(path))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	p.once(t.Context(), "quiet", secret, "application/json", []byte(`{"broken":"`+secret))
	s.terminate(12 * time.Second)
	if log := s.out.String(); strings.Contains(log, secret) {
		i := strings.Index(log, secret)
		t.Errorf("the log holds the secret: …%s", log[max(0, i-200):i+len(secret)])
	}
}

// B167, B14: the browser's clock is a day off in either direction: exact.
func TestB167_AWrongBrowserClockChangesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	var tabs []*tab
	for _, off := range []int{-86400000, 86400000} {
		b := openTabWith(t, px.url("/demo/text"), map[string]any{"init": readerScript(t) + fmt.Sprintf("\n;{ const now = Date.now; Date.now = () => now() + %d }", off)})
		b.read(px.ws(), "clock", "")
		tabs = append(tabs, b)
	}
	for range 5 {
		p.numbered("clock", 20)
		px.cut()
		p.numbered("clock", 20)
	}
	for _, b := range tabs {
		b.exact(s, "clock")
		var resets int
		if b.eval("readers.a.resets", &resets); resets != 0 {
			t.Errorf("%d resets", resets)
		}
	}
}

// The command line under kill -9: lines go in through publish, come out of
// tail, and both are the same, once and in order.
func TestCLI_PublishLinesAndTailSurviveKills(t *testing.T) {
	t.Parallel()
	s := newServer(t, keepAll...)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, serverBinary, append(args, "--server", s.url(""), "--quiet")...)
		cmd.Stderr = s.out
		return cmd
	}
	n := scale(1500, 20000)
	tail := run("tail", "cli", "--after", "start", "--count", itoa(n))
	out, err := tail.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	publish := run("publish", "cli", "--lines")
	in, err := publish.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{tail, publish} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	seen := make(chan struct{}, n)
	read := make(chan struct{})
	go func() {
		defer close(read)
		r := bufio.NewScanner(out)
		for r.Scan() {
			lines = append(lines, r.Text())
			seen <- struct{}{}
		}
	}()
	kill := n / 6
	for i := range n {
		if _, err := fmt.Fprintf(in, "{\"line\":%d}\n", i+1); err != nil {
			t.Fatalf("publish ended early: %v", err)
		}
		if i%kill == kill-1 {
			<-seen // some have come through since
			s.kill()
			s.start()
		}
	}
	in.Close()
	if err := publish.Wait(); err != nil {
		t.Errorf("publish: %v", err)
	}
	<-read
	if err := tail.Wait(); err != nil {
		t.Errorf("tail: %v", err)
	}
	for i, line := range lines {
		if want := fmt.Sprintf("%d\t{\"line\":%d}", i+1, i+1); line != want {
			t.Fatalf("line %d of tail is %q, want %q", i+1, line, want)
		}
	}
	if len(lines) != n {
		t.Errorf("tail printed %d of %d", len(lines), n)
	}
	if h := s.head("cli"); h.Last != uint64(n) {
		t.Errorf("%d stored, %d published", h.Last, n)
	}
}
