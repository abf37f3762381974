package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// quickTail is runTail with quick retries.
func quickTail(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	t, code := parseTail(args, stdout, stderr)
	if code >= 0 {
		return code
	}
	t.backoff = quick
	return t.runUntilInterrupted(ctx)
}

// publishAll publishes each of lines on a real server.
func publishAll(t *testing.T, n *node, stream, lines string) string {
	t.Helper()
	r := cli(t, runPublish, strings.NewReader(lines), stream, "--lines", "--server", n.url())
	wantCode(t, r, exitOK)
	return r.stdout
}

func numbered(from, to int) (lines, printed string) {
	var in, out strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&in, "{\"n\":%d}\n", i)
		fmt.Fprintf(&out, "%d\t{\"n\":%d}\n", i, i)
	}
	return in.String(), out.String()
}

func TestTail_PrintsEachMessageOnceInOrderThroughAProxyThatCuts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	random := rand.New(rand.NewPCG(1, 2))
	p := startProxy(t, n.addr, false, func(int) int { return 1500 + random.IntN(10_000) })
	const count = 3000
	lines, want := numbered(1, count)
	done := make(chan result)
	go func() {
		var stdout, stderr bytes.Buffer
		code := quickTail(t.Context(), []string{"chat/42", "--after", "start", "--count", fmt.Sprint(count), "--server", p.addr}, nil, &stdout, &stderr)
		done <- result{code, stdout.String(), stderr.String()}
	}()
	publishAll(t, n, "chat/42", lines)
	r := <-done
	wantCode(t, r, exitOK)
	if r.stdout != want {
		t.Errorf("printed %d lines, not 1 to %d once each in order", strings.Count(r.stdout, "\n"), count)
	}
	if p.connections() < 10 {
		t.Errorf("only %d connections: the proxy did not cut", p.connections())
	}
	wantText(t, "stderr", r.stderr, "connecting again")
	t.Logf("%d connections", p.connections())
}

func TestTail_FollowsLiveFromNowAndAfterAPosition(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	old, _ := numbered(1, 3)
	positions := strings.Fields(publishAll(t, n, "a b/ü", old))
	next, want := numbered(4, 6)

	follow := func(args ...string) (following *signalWriter, done chan result) {
		following, done = &signalWriter{want: "following", seen: make(chan struct{})}, make(chan result, 1)
		go func() {
			var stdout bytes.Buffer
			code := quickTail(t.Context(), append([]string{"a b/ü", "--server", n.url()}, args...), nil, &stdout, following)
			done <- result{code, stdout.String(), following.String()}
		}()
		<-following.seen
		return following, done
	}
	_, now := follow("--count", "3")
	_, after := follow("--count", "4", "--after", positions[1])
	publishAll(t, n, "a b/ü", next)
	r := <-now
	wantCode(t, r, exitOK)
	if r.stdout != want {
		t.Errorf("from now on printed %q, want %q", r.stdout, want)
	}
	r = <-after
	wantCode(t, r, exitOK)
	if r.stdout != "3\t{\"n\":3}\n"+want {
		t.Errorf("after %s printed %q", positions[1], r.stdout)
	}
}

// signalWriter closes seen once it has been written want.
type signalWriter struct {
	want string
	seen chan struct{}

	mu  sync.Mutex // guards what follows
	buf bytes.Buffer
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	had := strings.Contains(w.buf.String(), w.want)
	w.buf.Write(p)
	if !had && strings.Contains(w.buf.String(), w.want) {
		close(w.seen)
	}
	return len(p), nil
}

func (w *signalWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func TestTail_SurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "chronocast.db")
	n := startNode(t, path, "127.0.0.1:0")
	first, printed := numbered(1, 100)
	second, more := numbered(101, 200)
	done := make(chan result, 1)
	following := &signalWriter{want: "following", seen: make(chan struct{})}
	go func() {
		var stdout bytes.Buffer
		code := quickTail(t.Context(), []string{"s", "--count", "200", "--server", n.url()}, nil, &stdout, following)
		done <- result{code, stdout.String(), following.String()}
	}()
	<-following.seen
	publishAll(t, n, "s", first)
	n.stop()
	n = startNode(t, path, n.addr)
	publishAll(t, n, "s", second)
	r := <-done
	wantCode(t, r, exitOK)
	if r.stdout != printed+more {
		t.Errorf("printed %d lines, not 1 to 200 once each in order", strings.Count(r.stdout, "\n"))
	}
	wantText(t, "stderr", r.stderr, "connecting again")
}

// Another database under the same address: an explicit reset, never a mix.
func TestTail_AReplacedDatabaseIsToldAsAReset(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first, printed := numbered(1, 5)
	second, more := numbered(1, 7)
	publishAll(t, n, "s", first)
	done := make(chan result, 1)
	fifth := &signalWriter{want: "5\t", seen: make(chan struct{})}
	var stderr bytes.Buffer
	go func() {
		code := quickTail(t.Context(), []string{"s", "--after", "start", "--count", "12", "--server", n.url()}, nil, fifth, &stderr)
		done <- result{code, fifth.String(), stderr.String()}
	}()
	<-fifth.seen
	n.stop()
	n = startNode(t, filepath.Join(t.TempDir(), "another.db"), n.addr)
	position := strings.Fields(publishAll(t, n, "s", second))[0]
	r := <-done
	wantCode(t, r, exitOK)
	if r.stdout != printed+more {
		t.Errorf("printed %q", r.stdout)
	}
	wantText(t, "stderr", r.stderr, "reset: cannot continue after", "(epoch_changed)", "going on after "+strings.TrimSuffix(position, "1"))

	r = cli(t, quickTail, nil, "s", "--after", "5:5", "--server", n.url())
	wantCode(t, r, exitReset)
	r = cli(t, runHistory, nil, "s", "--after", "5:5", "--server", n.url())
	wantCode(t, r, exitReset)
}

// The network goes silent without ending the connection.
func TestTail_ABlackHoleIsNoticedAndNothingIsLost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := startProxy(t, n.addr, true, func(conn int) int { return 600 + 1000*conn })
	lines, want := numbered(1, 200)
	publishAll(t, n, "s", lines)
	var stdout, stderr bytes.Buffer
	head := cli(t, runHistory, nil, "s", "--limit", "1", "--json", "--server", n.url())
	_, epoch, _ := strings.Cut(head.stdout, `"epoch":"`)
	epoch, _, _ = strings.Cut(epoch, `"`)
	tl, code := parseTail([]string{"s", "--after", epoch + ":0", "--count", "200", "--server", p.addr, "--timeout", "100ms"}, &stdout, &stderr)
	if code >= 0 {
		t.Fatal(stderr.String())
	}
	tl.dial.stale, tl.backoff = 100*time.Millisecond, quick
	code = tl.run(t.Context())
	wantCode(t, result{code, stdout.String(), stderr.String()}, exitOK)
	if stdout.String() != want {
		t.Errorf("printed %q", stdout.String())
	}
	wantText(t, "stderr", stderr.String(), "nothing heard for 100ms")
}

func TestHistory_PrintsWhatARealServerKeeps(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	lines, want := numbered(1, 2345)
	positions := strings.Fields(publishAll(t, n, "..", lines))
	r := cli(t, runHistory, nil, "..", "--server", n.url())
	wantCode(t, r, exitOK)
	if r.stdout != want {
		t.Errorf("printed %d lines", strings.Count(r.stdout, "\n"))
	}
	r = cli(t, runHistory, nil, "..", "--server", n.url(), "--after", positions[2342], "--json")
	wantText(t, "stdout", r.stdout, `{"stream":"..","epoch":"`, `"offset":2344,"data":{"n":2344}}`, `"offset":2345,`)
	r = cli(t, runHistory, nil, "never used", "--server", n.url())
	if wantCode(t, r, exitOK); r.stdout != "" {
		t.Errorf("a stream that was never used printed %q", r.stdout)
	}
}

// B89, B43: connections that break at any byte and a server that restarts in
// the middle; the server's own idempotency keys keep every line stored once.
func TestB89_PublishLinesThroughCutsAndARestartOfARealServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "chronocast.db")
	n := startNode(t, path, "127.0.0.1:0")
	random := rand.New(rand.NewPCG(3, 4))
	p := startProxy(t, n.addr, false, func(int) int { return 200 + random.IntN(20_000) })
	const count = 3000
	lines, want := numbered(1, count)
	stdin, feed := io.Pipe()
	half := &signalWriter{want: ":1000\n", seen: make(chan struct{})}
	done := make(chan result, 1)
	var stderr bytes.Buffer
	go func() {
		code := quickPublish(t.Context(), []string{"s", "--lines", "--retry-for", "2m", "--server", p.addr}, stdin, half, &stderr)
		done <- result{code, half.String(), stderr.String()}
	}()
	go func() {
		_, _ = io.WriteString(feed, lines) // what is lost shows below
		feed.Close()
	}()
	select {
	case <-half.seen:
	case r := <-done:
		t.Fatalf("ended too early, code %d: %s", r.code, r.stderr)
	}
	n.stop()
	n = startNode(t, path, n.addr)
	r := <-done
	wantCode(t, r, exitOK)
	if got := strings.Count(r.stdout, "\n"); got != count {
		t.Errorf("printed %d positions", got)
	}
	r = cli(t, runHistory, nil, "s", "--server", n.url())
	wantCode(t, r, exitOK)
	if r.stdout != want {
		t.Errorf("the stream holds %d messages, not the %d lines once each in order", strings.Count(r.stdout, "\n"), count)
	}
	if p.connections() < 5 {
		t.Errorf("only %d connections: the proxy did not cut", p.connections())
	}
	t.Logf("%d connections", p.connections())
}

func TestPublish_ShowsWhyARealServerRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := cli(t, runPublish, strings.NewReader(strings.Repeat("x", 5<<20)), "s", "--server", n.url())
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "the server answered 413", "1048576")
	r = cli(t, runPublish, strings.NewReader("1\n2\n"+strings.Repeat("x", 2<<20)+"\n3\n"), "s", "--lines", "--server", n.url())
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "line 3: the server answered 413", "published 2 broadcasts")
	wantCode(t, cli(t, runPublish, nil, "s", "1", "--key", "k", "--server", n.url()), exitOK)
	r = cli(t, runPublish, nil, "s", "2", "--key", "k", "--server", n.url())
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "409", "(key_conflict)")
	r = cli(t, runPublish, nil, "s", "\"\\ud800\"", "--server", n.url())
	if r.code == exitOK {
		got := cli(t, runHistory, nil, "s", "--server", n.url(), "--after", "3")
		wantText(t, "history", got.stdout, "\"\\ud800\"")
	}
}
