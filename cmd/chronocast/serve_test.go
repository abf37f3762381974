package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// served is a server run by the command, as a shell would.
type served struct {
	url    string
	stop   func() int // ends it and returns the exit code
	stderr *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startServe runs serve until stop, and waits for the line that tells where.
func startServe(t *testing.T, args ...string) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	stderr := new(lockedBuffer)
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--addr", "127.0.0.1:0"}, args...), strings.NewReader(""), in, stderr)
		in.Close()
	}()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("serve ended with %d: %s", <-code, stderr)
	}
	_, rest, ok := strings.Cut(line, "http://")
	addr, _, found := strings.Cut(rest, "/")
	if !ok || !found || !strings.HasPrefix(line, "Chronocast is listening on ") || !strings.Contains(line, "(database ") {
		t.Errorf("first line %q", line)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	var once sync.Once
	var ended int
	s := served{url: "http://" + addr, stderr: stderr, stop: func() int {
		once.Do(func() {
			cancel()
			ended = <-code
		})
		return ended
	}}
	t.Cleanup(func() { s.stop() })
	return s
}

func fetch(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(b)
}

// TestServe_KeepsTheLogAcrossARun: publish, end in good order, start again,
// read the same epoch and offset.
func TestServe_KeepsTheLogAcrossARun(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	first := startServe(t, "--database", db)
	status, published := fetch(t, "POST", first.url+"/streams/chat%2F42/messages", `{"a":1}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, published)
	}
	if code := first.stop(); code != exitOK {
		t.Fatalf("ended with %d: %s", code, first.stderr)
	}
	again := startServe(t, "--database", db)
	status, second := fetch(t, "POST", again.url+"/streams/chat%2F42/messages", `{"a":2}`)
	if want := strings.Replace(published, `"offset":1`, `"offset":2`, 1); status != http.StatusCreated || second != want {
		t.Errorf("%d %s, want %s", status, second, want)
	}
}

// TestServe_PagesAndMetrics: everything that is wired answers.
func TestServe_PagesAndMetrics(t *testing.T) {
	s := startServe(t, "--database", "sqlite:"+filepath.Join(t.TempDir(), "log.db"))
	for path, want := range map[string]string{
		"/":                "<html",
		"/client.js":       "export",
		"/client/index.js": "export",
		"/readyz":          "ready",
		"/metrics":         "chronocast_commits_total",
	} {
		if status, body := fetch(t, "GET", s.url+path, ""); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
	}
	without := startServe(t, "--demo=false", "--database", "sqlite:"+filepath.Join(t.TempDir(), "log.db"))
	if status, _ := fetch(t, "GET", without.url+"/", ""); status != http.StatusNotFound {
		t.Errorf("without the demo / is %d", status)
	}
}

// TestServe_AddressInUse says so and what to do, and touches no database.
func TestServe_AddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db := filepath.Join(t.TempDir(), "log.db")
	r := cli(t, runServe, nil, "--addr", l.Addr().String(), "--database", "sqlite:"+db)
	if r.code != exitFailed || !strings.Contains(r.stderr, "in use") || !strings.Contains(r.stderr, "--addr") || r.stdout != "" {
		t.Errorf("code %d, stderr %q, stdout %q", r.code, r.stderr, r.stdout)
	}
	if left, _ := filepath.Glob(db + "*"); len(left) > 0 {
		t.Errorf("files were made: %v", left)
	}
}

func TestServe_OtherMachinesAreRefused(t *testing.T) {
	r := cli(t, runServe, nil, "--addr", "0.0.0.0:0")
	if r.code != exitUsage || !strings.Contains(r.stderr, "without a secret") {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
}

func TestServe_NoDirectoryForTheDatabase(t *testing.T) {
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--database", "sqlite:"+filepath.Join(t.TempDir(), "missing", "log.db"))
	if r.code != exitFailed || !strings.Contains(r.stderr, "directory") {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
}

func TestServe_TwoServersOnOneDatabase(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	startServe(t, "--database", db)
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--database", db)
	if r.code != exitFailed || r.stderr == "" {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
}

// TestRunStages_EndFromTheFrontToTheBack: and one that fails ends them all.
func TestRunStages_EndFromTheFrontToTheBack(t *testing.T) {
	var mu sync.Mutex
	var order []string
	broken := errors.New("broken")
	stage := func(name string, err error, fail <-chan struct{}) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-fail:
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return err
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := runStages(ctx,
		[]func(context.Context) error{stage("front", nil, nil)},
		[]func(context.Context) error{stage("middle", nil, nil)},
		[]func(context.Context) error{stage("back", nil, nil)})
	if err != nil || fmt.Sprint(order) != "[front middle back]" {
		t.Errorf("%v, %v", order, err)
	}

	order = nil
	fail := make(chan struct{})
	close(fail)
	err = runStages(t.Context(),
		[]func(context.Context) error{stage("front", nil, nil)},
		[]func(context.Context) error{stage("middle", broken, fail)},
		[]func(context.Context) error{stage("back", nil, nil)})
	if !errors.Is(err, broken) || fmt.Sprint(order) != "[middle front back]" {
		t.Errorf("%v, %v", order, err)
	}
}

func TestMain_UnknownCommandAndHelp(t *testing.T) {
	t.Parallel()
	var out, err strings.Builder
	if code := run(t.Context(), []string{"serv"}, nil, &out, &err); code != exitUsage || !strings.Contains(err.String(), `"serv"`) || !strings.Contains(err.String(), "serve") {
		t.Errorf("code %d, %q", code, err.String())
	}
	if code := run(t.Context(), []string{"help"}, nil, &out, io.Discard); code != exitOK || !strings.Contains(out.String(), "publish") {
		t.Errorf("code %d, %q", code, out.String())
	}
	out.Reset()
	if code := run(t.Context(), []string{"help", "serve"}, nil, &out, io.Discard); code != exitOK || !strings.Contains(out.String(), "--retain-age") {
		t.Errorf("code %d, %q", code, out.String())
	}
	if code := run(t.Context(), nil, nil, io.Discard, io.Discard); code != exitUsage {
		t.Errorf("code %d without a command", code)
	}
}
