package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func at(offset int) string { return fmt.Sprintf("%v:%d\n", fakeEpoch, offset) }

func TestPublish_TellsJSONFromTextAndPrintsThePosition(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	for i, c := range []struct {
		stdin string
		args  []string
		kind  string
		body  string
	}{
		{"", []string{`{"a": 1}`}, "application/json", `{"a": 1}`},
		{"", []string{`hello world`}, "text/plain; charset=utf-8", `hello world`},
		{"", []string{`"quoted"`}, "application/json", `"quoted"`},
		{"", []string{"--", "-5"}, "application/json", `-5`},
		{"", []string{""}, "text/plain; charset=utf-8", ``},
		{"[1]\n", []string{"-"}, "application/json", "[1]\n"},
		{"two\nlines\n", nil, "text/plain; charset=utf-8", "two\nlines\n"},
		{"", []string{`{"a":1`}, "text/plain; charset=utf-8", `{"a":1`},
		{"", []string{`false`, "--json"}, "application/json", `false`},
	} {
		r := cli(t, runPublish, strings.NewReader(c.stdin), append([]string{"--server", url, "chat/42 ü"}, c.args...)...)
		wantCode(t, r, exitOK)
		seen := f.seen()[i]
		if seen.path != "/streams/chat%2F42%20%C3%BC/messages" || seen.kind != c.kind || seen.body != c.body || seen.key == "" {
			t.Errorf("%q %q sent %+v", c.args, c.stdin, seen)
		}
		if r.stdout != at(i+1) || r.stderr != "" {
			t.Errorf("%q printed %q and %q, want %q", c.args, r.stdout, r.stderr, at(i+1))
		}
	}
}

func TestPublish_RefusesWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", []string{"{", "--json"}, "not valid JSON"},
		{"a\xff", []string{"-"}, "not valid UTF-8"},
		{"", nil, "standard input is empty"},
	} {
		r := cli(t, runPublish, strings.NewReader(c.stdin), append([]string{"s", "--server", url}, c.args...)...)
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, c.want)
	}
	if n := len(f.seen()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestPublish_RepeatsARequestUnderOneKeyUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	faults := []fault{answerBusy, cutReply, lostOutcome, cutHalfway, cutRequest, noFault}
	url := serve(t, faulty(f, func(n int, _ *http.Request) fault { return faults[n] }))
	r := cli(t, quickPublish, nil, "s", "1", "--server", url)
	wantCode(t, r, exitOK)
	if got := f.messages("s"); !slices.Equal(got, []string{"1"}) || r.stdout != at(1) {
		t.Errorf("stored %q, printed %q", got, r.stdout)
	}
	wantText(t, "stderr", r.stderr, "trying again for")
	for _, seen := range f.seen() {
		if seen.key != f.seen()[0].key {
			t.Errorf("keys differ: %q and %q", seen.key, f.seen()[0].key)
		}
	}
}

func TestPublish_GivesUpAndSaysThatTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	url := serve(t, faulty(newFakeServer(), func(int, *http.Request) fault { return cutReply }))
	r := cli(t, quickPublish, nil, "s", "1", "--server", url, "--retry-for", "30ms")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "gave up after 30ms", "unknown whether the broadcast was stored")

	url = serve(t, faulty(newFakeServer(), func(int, *http.Request) fault { return answerBusy }))
	r = cli(t, quickPublish, nil, "s", "1", "--server", url, "--retry-for", "30ms")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "the server answered 503: told by the server (busy); gave up after 30ms")
	if strings.Contains(r.stderr, "unknown whether") {
		t.Errorf("a busy server has stored nothing: %s", r.stderr)
	}

	r = cli(t, quickPublish, nil, "s", "1", "--server", "127.0.0.1:1", "--retry-for", "30ms")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "no answer from 127.0.0.1:1: connection refused")
	if strings.Contains(r.stderr, "unknown whether") {
		t.Errorf("a server that was never reached leaves nothing unknown: %s", r.stderr)
	}
}

func TestPublish_EveryAttemptHasADeadline(t *testing.T) {
	t.Parallel()
	url := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is seen
		<-r.Context().Done()
	}))
	r := cli(t, quickPublish, nil, "s", "1", "--server", url, "--timeout", "20ms", "--retry-for", "0s")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "gave no answer within 20ms", "unknown")
}

func TestPublish_ShowsTheServersRefusalAndDoesNotRepeatIt(t *testing.T) {
	t.Parallel()
	n := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		fakeError(w, http.StatusConflict, "key_conflict")
	}))
	r := cli(t, runPublish, nil, "s", "1", "--server", url, "--key", "k")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "the server answered 409: told by the server (key_conflict)")
	if n != 1 || strings.Contains(r.stderr, "unknown") {
		t.Errorf("%d requests, stderr %q", n, r.stderr)
	}
}

func TestPublish_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	other := newFakeServer()
	url := serve(t, http.RedirectHandler(serve(t, other)+"/streams/s/messages", http.StatusTemporaryRedirect))
	r := cli(t, runPublish, nil, "s", "1", "--server", url)
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "answered 307", "--server")
	if len(other.seen()) > 0 {
		t.Error("the broadcast went to a server that nobody named")
	}
}

func TestPublish_SomethingElseThanAServerIsAnError(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"<html>", `{}`, `{"epoch":"-1","offset":1}`} {
		url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		r := cli(t, runPublish, nil, "s", "1", "--server", url)
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, "is --server right?")
	}
}

// B43, B89: retries neither double nor lose, whatever breaks.
func TestB89_PublishLinesStoresEachLineOnceWhileHalfOfTheRepliesAreLost(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	random := rand.New(rand.NewPCG(89, 43))
	url := serve(t, faulty(f, func(int, *http.Request) fault {
		if random.IntN(2) == 0 {
			return noFault
		}
		return fault(1 + random.IntN(int(numFaults)-1))
	}))
	const n = 5000
	var input strings.Builder
	var want []string
	for i := range n {
		fmt.Fprintf(&input, `{"n":%d,"pad":"%s"}`+"\n", i, strings.Repeat("x", i%700))
		want = append(want, fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i, strings.Repeat("x", i%700)))
	}
	r := cli(t, quickPublish, strings.NewReader(input.String()), "s", "--lines", "--server", url)
	wantCode(t, r, exitOK)
	if got := f.messages("s"); !slices.Equal(got, want) {
		t.Fatalf("stored %d messages for %d lines, or others", len(got), n)
	}
	var positions strings.Builder
	for i := range n {
		positions.WriteString(at(i + 1))
	}
	if r.stdout != positions.String() {
		t.Error("the positions printed are not those of the lines, in order")
	}
	wantText(t, "stderr", r.stderr, fmt.Sprintf("published %d broadcasts, last position %v:%d\n", n, fakeEpoch, n))
}

func TestPublishLines_SendsALongInputInFewRequestsOverOneConnection(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	var mu sync.Mutex
	peers := map[string]bool{}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		peers[r.RemoteAddr] = true
		mu.Unlock()
		f.ServeHTTP(w, r)
	}))
	const n = 20_000
	var input strings.Builder
	for i := range n {
		fmt.Fprintf(&input, "token %d\n", i)
	}
	began := time.Now()
	r := cli(t, runPublish, strings.NewReader(input.String()), "s", "--lines", "--quiet", "--server", url)
	wantCode(t, r, exitOK)
	stored := f.messages("s")
	if len(stored) != n || stored[n-1] != fmt.Sprintf(`"token %d"`, n-1) {
		t.Fatalf("stored %d messages", len(stored))
	}
	// The reader needs a moment to run ahead, so not every request is full.
	if requests := len(f.seen()); requests > n/batchItems*4 || len(peers) != 1 {
		t.Errorf("%d requests over %d connections", requests, len(peers))
	}
	if r.stdout != "" || r.stderr != "" {
		t.Errorf("--quiet printed %q and %q", r.stdout, r.stderr)
	}
	t.Logf("%d lines in %d requests, %v", n, len(f.seen()), time.Since(began))
}

func TestPublishLines_SendsALineAtOnceWhenNothingIsUnderWay(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	stdin, typed := io.Pipe()
	printed, stdout := io.Pipe()
	code := make(chan int)
	var stderr bytes.Buffer
	go func() {
		code <- runPublish(t.Context(), []string{"s", "--lines", "--server", url}, stdin, stdout, &stderr)
	}()
	positions := bufio.NewReader(printed)
	for i := range 20 {
		if _, err := fmt.Fprintf(typed, "%d\n", i); err != nil {
			t.Fatal(err)
		}
		got, err := positions.ReadString('\n') // hangs if the line waits for more
		if err != nil || got != at(i+1) {
			t.Fatalf("line %d: printed %q, %v", i, got, err)
		}
	}
	typed.Close()
	if c := <-code; c != exitOK {
		t.Fatalf("exit code %d: %s", c, stderr.String())
	}
	if n := len(f.seen()); n != 20 {
		t.Errorf("%d requests for 20 lines typed one by one", n)
	}
}

func TestPublishLines_WhatIsReadDuringARequestGoesWithTheNext(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	arrived, release := make(chan struct{}), make(chan struct{})
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		f.ServeHTTP(w, r)
	}))
	stdin, typed := io.Pipe()
	code := make(chan int)
	var stdout, stderr bytes.Buffer
	go func() {
		code <- runPublish(t.Context(), []string{"s", "--lines", "--server", url}, stdin, &stdout, &stderr)
	}()
	fmt.Fprint(typed, "0\n")
	<-arrived
	for i := 1; i <= 100; i++ {
		fmt.Fprintf(typed, "%d\n", i)
	}
	typed.Close() // returns when the reader has taken everything
	go func() {
		for range arrived {
		}
	}()
	close(release)
	if c := <-code; c != exitOK {
		t.Fatalf("exit code %d: %s", c, stderr.String())
	}
	close(arrived)
	if n := len(f.seen()); n > 3 {
		t.Errorf("%d requests, want the 100 lines that waited in one, or two", n)
	}
	if n := len(f.messages("s")); n != 101 {
		t.Errorf("stored %d messages", n)
	}
}

func TestPublishLines_TakesLinesAsTheyAre(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	r := cli(t, runPublish, strings.NewReader("{\"a\": 1 }\r\n\nplain <b> & \"q\" \\ \u2028\n 5 \n\ttab\x01\nlast without end"), "s", "--lines", "--server", url)
	wantCode(t, r, exitOK)
	want := []string{`{"a": 1 }`, `""`, "\"plain <b> & \\\"q\\\" \\\\ \u2028\"", ` 5 `, `"\ttab\u0001"`, `"last without end"`}
	if got := f.messages("s"); !slices.Equal(got, want) {
		t.Errorf("stored %q\nwant   %q", got, want)
	}
	r = cli(t, runPublish, strings.NewReader(""), "s", "--lines", "--server", url)
	wantCode(t, r, exitOK)
	wantText(t, "stderr", r.stderr, "published 0 broadcasts\n")
}

func TestPublishLines_NamesTheLineThatCannotBePublished(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, bad string
		args      []string
		want      string
	}{
		{"larger than the server takes", strings.Repeat("x", 5000), nil, "line 701: the server answered 413: told by the server (too_large)"},
		{"not UTF-8", "\xff", nil, "line 701: the data is not valid UTF-8"},
		{"not JSON", "{", []string{"--json"}, "line 701: the data is not valid JSON"},
		{"longer than can be read", strings.Repeat("x", 50_001), nil, "line 701: longer than 50000 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFakeServer()
			f.limit = 4000
			url := serve(t, f)
			input := strings.Repeat("1\n", 700) + c.bad + "\n" + strings.Repeat("2\n", 700)
			var stdout, stderr bytes.Buffer
			p, code := parsePublish(append(c.args, "s", "--lines", "--server", url), nil, &stdout, &stderr)
			if code >= 0 {
				t.Fatal(stderr.String())
			}
			p.lineMax = 50_000
			code = p.run(t.Context(), strings.NewReader(input))
			wantCode(t, result{code, "", stderr.String()}, exitFailed)
			wantText(t, "stderr", stderr.String(), c.want, fmt.Sprintf("published 700 broadcasts, last position %v:700\n", fakeEpoch))
			if n := len(f.messages("s")); n != 700 || strings.Count(stdout.String(), "\n") != 700 {
				t.Errorf("stored %d, printed %d, want the 700 lines before", n, strings.Count(stdout.String(), "\n"))
			}
		})
	}
}

func TestPublishLines_FitsWhatTheServerTakes(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	f.maxBody = 2000
	url := serve(t, f)
	const n = 1000
	r := cli(t, runPublish, strings.NewReader(strings.Repeat("a line of text\n", n)), "s", "--lines", "--server", url)
	wantCode(t, r, exitOK)
	if got := len(f.messages("s")); got != n {
		t.Errorf("stored %d messages", got)
	}
	refused := 0
	for _, seen := range f.seen() {
		if len(seen.body) > f.maxBody {
			refused++
		}
	}
	if refused > 8 {
		t.Errorf("%d requests were too large: what the server takes is not learned", refused)
	}
}

// B163: a publisher that starts over with the keys of its first run doubles
// nothing.
func TestB163_PublishLinesWithAKeyCanBeStartedOver(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	r := cli(t, runPublish, strings.NewReader("the\nquick\n"), "s", "--lines", "--key", "gen-1", "--server", url)
	wantCode(t, r, exitOK)
	r = cli(t, runPublish, strings.NewReader("the\nquick\nbrown\nfox\n"), "s", "--lines", "--key", "gen-1", "--server", url)
	wantCode(t, r, exitOK)
	if got := f.messages("s"); !slices.Equal(got, []string{`"the"`, `"quick"`, `"brown"`, `"fox"`}) {
		t.Errorf("stored %q", got)
	}
	if r.stdout != at(1)+at(2)+at(3)+at(4) {
		t.Errorf("printed %q", r.stdout)
	}
}

func TestPublishLines_SaysWhatIsUnknownWhenItGivesUp(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, faulty(f, func(int, *http.Request) fault { return cutReply }))
	r := cli(t, quickPublish, strings.NewReader("1\n2\n"), "s", "--lines", "--server", url, "--retry-for", "30ms")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "line 1: ", "gave up after 30ms", "unknown whether", "published 0 broadcasts")
}

func TestPublishLines_AnInterruptLetsTheRequestUnderWayFinish(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	ctx, interrupt := context.WithCancel(t.Context())
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		interrupt()
		f.ServeHTTP(w, r)
	}))
	stdin, typed := io.Pipe()
	var stdout, stderr bytes.Buffer
	code := make(chan int)
	go func() {
		code <- runPublish(ctx, []string{"s", "--lines", "--server", url}, stdin, &stdout, &stderr)
	}()
	fmt.Fprint(typed, "1\n")
	if c := <-code; c != exitInterrupted {
		t.Errorf("exit code %d", c)
	}
	typed.Close()
	if stdout.String() != at(1) {
		t.Errorf("printed %q though the broadcast was stored", stdout.String())
	}
	wantText(t, "stderr", stderr.String(), "published 1 broadcasts")
}

func TestPublishLines_AnInterruptSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	url := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is seen
		interrupt()
		<-r.Context().Done()
	}))
	var stderr bytes.Buffer
	p, code := parsePublish([]string{"s", "--lines", "--server", url}, nil, io.Discard, &stderr)
	if code >= 0 {
		t.Fatal(stderr.String())
	}
	p.api.grace = 0
	if code = p.run(ctx, strings.NewReader("1\n")); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	wantText(t, "stderr", stderr.String(), "line 1: ", "unknown whether", "published 0 broadcasts")
}

func TestPublishLines_GoesOnWhenNobodyReadsThePositions(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	url := serve(t, f)
	var stderr bytes.Buffer
	code := runPublish(t.Context(), []string{"s", "--lines", "--server", url}, strings.NewReader(strings.Repeat("1\n", 1000)), brokenWriter{syscall.EPIPE}, &stderr)
	if n := len(f.messages("s")); code != exitOK || n != 1000 {
		t.Errorf("exit code %d, stored %d: %s", code, n, stderr.String())
	}
	code = runPublish(t.Context(), []string{"t", "--lines", "--server", url}, strings.NewReader("1\n"), brokenWriter{errors.New("disk is full")}, &stderr)
	if code != exitFailed || !strings.Contains(stderr.String(), "write to standard output: disk is full") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestLineQueue_IsBoundedAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	q := newLineQueue()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const n = 1000
	go func() {
		for i := range n {
			if !q.put(ctx, line{number: i, size: queueBytes / 10}) {
				return
			}
		}
		q.end(io.EOF)
	}()
	next := 0
	for {
		batch, err := q.take(ctx, 7, queueBytes)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || len(batch) == 0 || len(batch) > 7 {
			t.Fatalf("took %d lines, %v", len(batch), err)
		}
		for _, l := range batch {
			if l.number != next {
				t.Fatalf("took line %d, want %d", l.number, next)
			}
			next++
		}
		q.mu.Lock()
		held := q.bytes
		q.mu.Unlock()
		if held > queueBytes {
			t.Fatalf("%d bytes are queued", held)
		}
	}
	if next != n {
		t.Errorf("took %d lines", next)
	}
	cancel()
	if _, err := q.take(ctx, 1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("take after an interrupt: %v", err)
	}
}

func TestReadLine_NeverHoldsMoreThanItsBound(t *testing.T) {
	t.Parallel()
	endless := bufio.NewReaderSize(endlessLine{}, 4096)
	if _, err := readLine(endless, 100_000); err == nil || !strings.Contains(err.Error(), strconv.Itoa(100_000)) {
		t.Errorf("an endless line gives %v", err)
	}
	exact := bufio.NewReaderSize(strings.NewReader(strings.Repeat("x", 100)+"\r\n"), 16)
	if got, err := readLine(exact, 100); err != nil || len(got) != 100 {
		t.Errorf("a line of the longest length gives %d bytes, %v", len(got), err)
	}
	exact = bufio.NewReaderSize(strings.NewReader(strings.Repeat("x", 102)), 16)
	if _, err := readLine(exact, 100); err == nil {
		t.Error("a line without end may be longer than the bound")
	}
}

type endlessLine struct{}

func (endlessLine) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
