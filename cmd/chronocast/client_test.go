package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/internal/pgtest"

	"github.com/chronocast/chronocast/protocol"
)

func TestClient_WrongCallsExitWith2AndSayWhat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		run  runFunc
		args string
		want string
	}{
		{runPublish, "", "STREAM is missing"},
		{runPublish, "s a b", `unexpected argument "b"`},
		{runPublish, "s a --keyy k", "did you mean --key?"},
		{runPublish, "s -5", "goes after --"},
		{runPublish, "s a --key=", "--key must not be empty"},
		{runPublish, "s a --lines", "leave DATA out"},
		{runPublish, "s a --timeout 0s", "--timeout must be greater than 0"},
		{runPublish, "s a --retry-for -1s", "--retry-for must not be negative"},
		{runPublish, "s a --retry-for 1h", "forgets idempotency keys"},
		{runPublish, "s a --server ftp://x", "http:// or https://"},
		{runPublish, "s\x01 a", "without control characters"},
		{runTail, "s --after yesterday", "EPOCH:OFFSET"},
		{runTail, "s --count -1", "--count"},
		{runTail, "s --count x", "invalid value"},
		{runHistory, "s --after now", "--after"},
		{runHistory, "s --after 1:-1", "--after"},
		{runHistory, "s --limit -1", "--limit"},
		{runHistory, "s --server http://x/?a=b", "without ? and #"},
		{runVersion, "now", "takes no arguments"},
	} {
		r := cli(t, c.run, nil, strings.Fields(c.args)...)
		if c.args == "s\x01 a" {
			r = cli(t, c.run, nil, "s\x01", "a")
		}
		if r.code != exitUsage || !strings.Contains(r.stderr, c.want) || r.stdout != "" {
			t.Errorf("%q: code %d, stdout %q, stderr %q; want code 2 and %q", c.args, r.code, r.stdout, r.stderr, c.want)
		}
	}
}

func TestClient_HelpGoesToStdoutWithExamplesAndExitCodes(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]runFunc{"publish": runPublish, "tail": runTail, "history": runHistory} {
		r := cli(t, run, nil, "--help")
		wantCode(t, r, exitOK)
		wantText(t, name+" --help", r.stdout, "Usage: chronocast "+name+" STREAM", "--server URL", "Examples:\n  chronocast "+name, "Exit codes:", "cannot be continued")
		if r.stderr != "" {
			t.Errorf("%s --help wrote to stderr: %q", name, r.stderr)
		}
	}
	r := cli(t, runVersion, nil, "--help")
	wantCode(t, r, exitOK)
	wantText(t, "version --help", r.stdout, "Usage: chronocast version")
}

func TestClient_NoSecretOfTheServerURLIsPrinted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://me:hunter2@127.0.0.1:1/", "http://me:hunter2@[broken/", "me:hunter2@127.0.0.1:1"} {
		for _, run := range []runFunc{runPublish, runTail, runHistory} {
			r := cli(t, run, strings.NewReader("x"), "s", "--server", url)
			if r.code != exitUsage || strings.Contains(r.stdout+r.stderr, "hunter2") {
				t.Errorf("--server with a password: code %d, printed %q", r.code, r.stdout+r.stderr)
			}
		}
	}
}

func TestParseServer_AcceptsHostsAndPaths(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"127.0.0.1:8080":            "http://127.0.0.1:8080",
		"localhost:8080":            "http://localhost:8080",
		"https://example.com/":      "https://example.com",
		"http://example.com/a/b%2F": "http://example.com/a/b%2F",
		"http://[::1]:9":            "http://[::1]:9",
	} {
		u, err := parseServer(in)
		if err != nil || u.String() != want {
			t.Errorf("parseServer(%q) = %v, %v; want %s", in, u, err, want)
		}
	}
}

func TestStreamPath_KeepsAnyNameOneSegment(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"chat/42":  "/streams/chat%2F42",
		"..":       "/streams/%2E%2E",
		"a b?c#d%": "/streams/a%20b%3Fc%23d%25",
		"日本":       "/streams/%E6%97%A5%E6%9C%AC",
	} {
		if got := streamPath(name, ""); got != want {
			t.Errorf("streamPath(%q) = %s, want %s", name, got, want)
		}
	}
}

func TestNearest_FindsSlipsAndBeginnings(t *testing.T) {
	t.Parallel()
	words := []string{"serve", "publish", "tail", "history", "version", "help"}
	for in, want := range map[string]string{
		"pubish": "publish", "pulbish": "publish", "tial": "tail", "hist": "history", "verison": "version",
		"hlep": "help", "pub": "publish", "": "", "frobnicate": "", "xyz": "", "server": "serve",
	} {
		if got := nearest(in, words); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPrinter_KeepsEachMessageOnOneLine(t *testing.T) {
	t.Parallel()
	data := []byte("{\n \"a\":\r\n\"x\\ny\"\n}")
	var out bytes.Buffer
	p := newPrinter(&out, false, "s")
	p.message(7, 41, data)
	p = newPrinter(&out, true, `qu"ote`)
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	p.message(7, 42, data)
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	want := `{"stream":"qu\"ote","epoch":"7","offset":42,"data":{  "a":  "x\ny" }}` + "\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if string(data) != "{\n \"a\":\r\n\"x\\ny\"\n}" {
		t.Error("the printer changed the message it was given")
	}
}

func TestClean_LeavesNothingForATerminalToObey(t *testing.T) {
	t.Parallel()
	got := clean("a\x1b[31mb\u009bc\xffd\n" + strings.Repeat("x", 1000))
	if strings.ContainsAny(got, "\x1b\u009b\n") || !strings.HasPrefix(got, "a [31mb c\uFFFDd ") || len(got) > 600 {
		t.Errorf("clean left %q", got)
	}
}

func TestBackoff_StaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	b := backoff{base: 100, max: 1000}
	for failures, limit := range map[int]time.Duration{0: 100, 1: 200, 3: 800, 4: 1000, 19: 1000, 20: 1000, 1 << 40: 1000} {
		var highest time.Duration
		for range 2000 {
			d := b.after(failures)
			if d < 0 || d > limit {
				t.Fatalf("after %d failures waits %d, want 0 to %d", failures, d, limit)
			}
			highest = max(highest, d)
		}
		if highest < limit/2 {
			t.Errorf("after %d failures never waits more than %d of %d: no full jitter", failures, highest, limit)
		}
	}
}

func TestClosedPipe_OnlyThatOfStandardOutputIsQuiet(t *testing.T) {
	t.Parallel()
	if !isClosedPipe(fmt.Errorf("x: %w", &outputError{syscall.EPIPE})) {
		t.Error("EPIPE on standard output is not recognised")
	}
	if isClosedPipe(fmt.Errorf("no answer: %w", syscall.EPIPE)) {
		t.Error("a broken network connection is taken for a closed standard output")
	}
	if isClosedPipe(&outputError{syscall.ENOSPC}) {
		t.Error("a full disk is taken for a closed standard output")
	}
}

func TestServerError_IsWordedForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		want   string
		passes bool
	}{
		{403, `{"error":"forbidden","message":"not from there"}`, "the server answered 403: not from there (forbidden)", false},
		{404, `not json`, "the server answered 404: Not Found", false},
		{500, `[]`, "the server answered 500: Internal Server Error", true},
		{429, `{"error":"slow_down"}`, "the server answered 429: slow_down", true},
		{501, ``, "the server answered 501: Not Implemented", false},
		{507, `{"error":"disk_full","message":"full\u001b[2J"}`, "the server answered 507: full [2J (disk_full)", true},
		{308, ``, "the server answered 308: a redirect to https://other; give that server with --server if it is the right one", false},
	} {
		e := readServerError(c.status, http.Header{"Location": {"https://me:hunter2@other/?token=x"}}, []byte(c.body))
		if e.Error() != c.want || e.mayPass() != c.passes {
			t.Errorf("%d %s: %q, may pass %v; want %q, %v", c.status, c.body, e, e.mayPass(), c.want, c.passes)
		}
	}
}

func TestResetError_SaysWhatCanBeDone(t *testing.T) {
	t.Parallel()
	e := &resetError{reason: protocol.ReasonTrimmed, after: protocol.Position{Epoch: 7, Offset: 2}, span: protocol.Span{Epoch: 7, First: 5, Last: 9}}
	wantText(t, "the error", e.Error(), "after 7:2", "no longer kept (trimmed)", "offsets 5 to 9", "--after start", "--after 7:9")
	e = &resetError{reason: protocol.ReasonEpochChanged, after: protocol.Position{Epoch: 7, Offset: 2}, span: protocol.Span{Epoch: 8, First: 1}}
	wantText(t, "the error", e.Error(), "began anew", "holds no messages", "--after 8:0")
}

func TestVersion_PrintsWhatTheBuildKnows(t *testing.T) {
	t.Parallel()
	r := cli(t, runVersion, nil)
	wantCode(t, r, exitOK)
	wantText(t, "version", r.stdout, "chronocast ", "go1.")
	r = cli(t, runVersion, nil, "--json")
	wantText(t, "version --json", r.stdout, `"version":`, `"go":"go1.`)
	for _, info := range []*debug.BuildInfo{nil, {}, {Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}}}} {
		if got := describeBuild("", info).String(); !strings.HasPrefix(got, "chronocast devel (unknown commit) go") {
			t.Errorf("without a stamp: %q", got)
		}
	}
	stamped := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}}}
	if got := describeBuild("", stamped).String(); !strings.HasPrefix(got, "chronocast devel (0123456789ab) go") {
		t.Errorf("with a stamp: %q", got)
	}
	wantText(t, "version --help", versionHelp, "the commit it was built from, if that is known")
	if got := describeBuild("v1.2.3", nil).String(); !strings.HasPrefix(got, "chronocast v1.2.3 (unknown commit) go") {
		t.Errorf("a version set by the linker gives %q", got)
	}
}

// TestPrinter_EscapesControlsForPeople: a terminal obeys DEL and the C1
// controls, which JSON may hold as they are. The line means the same, and
// --json keeps every byte.
func TestPrinter_EscapesControlsForPeople(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"\"a\u0080b\"":                   `"a\u0080b"`,
		"\"\u009b31mred\u009b0m\u009f\"": `"\u009b31mred\u009b0m\u009f"`,
		"{\"\x7f\":\"\x7f\x7f\"}":        `{"\u007f":"\u007f\u007f"}`,
		"\"\\\\\x7f\"":                   `"\\\u007f"`,
		"\"\u00a0é語😀\u00c2\u0100\"":      "\"\u00a0é語😀\u00c2\u0100\"",
		"\"\\u009b\"":                    `"\u009b"`,
		"[\n1,\r\n2]":                    "[ 1,  2]",
	} {
		var out bytes.Buffer
		p := newPrinter(&out, false, "s")
		p.message(fakeEpoch, 7, []byte(data))
		if err := p.flush(); err != nil || out.String() != "7\t"+want+"\n" {
			t.Errorf("%q printed as %q, want %q", data, out.String(), want)
		}
		var before, after any
		if err := errors.Join(json.Unmarshal([]byte(data), &before), json.Unmarshal(out.Bytes()[2:], &after)); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q means %v, printed %v, %v", data, before, after, err)
		}
		out.Reset()
		p = newPrinter(&out, true, "s")
		p.message(fakeEpoch, 7, []byte(data))
		p.flush()
		exact := strings.NewReplacer("\n", " ", "\r", " ").Replace(data)
		if !strings.HasSuffix(out.String(), `"data":`+exact+"}\n") {
			t.Errorf("--json printed %q of %q", out.String(), data)
		}
	}
	for name, text := range map[string]string{"tail": tailHelp, "history": historyHelp} {
		wantText(t, name+" --help", text, "\\u00XX", "--json")
	}
}

// brokenWriter fails every write.
type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestHistory_EndsQuietlyWhenNobodyReads(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	f.streams["s"] = [][]byte{[]byte(`1`)}
	url := serve(t, f)
	for _, c := range []struct {
		err  error
		code int
		told bool
	}{{syscall.EPIPE, exitOK, false}, {io.ErrClosedPipe, exitOK, false}, {errors.New("disk is full"), exitFailed, true}} {
		var stderr bytes.Buffer
		code := runHistory(t.Context(), []string{"s", "--server", url}, nil, brokenWriter{c.err}, &stderr)
		if code != c.code || (stderr.Len() > 0) != c.told {
			t.Errorf("%v: code %d, stderr %q", c.err, code, stderr.String())
		}
	}
}

func TestMain(m *testing.M) {
	code := pgtest.Main(m.Run)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestRun_SuggestsTheCommandThatWasMeant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, stdout, stderr string
		code                 int
	}{
		{"pubish s 1", "", `"pubish" is not a command; did you mean publish?`, exitUsage},
		{"frobnicate", "", "\"frobnicate\" is not a command\n", exitUsage},
		{"", "", "Usage: chronocast COMMAND", exitUsage},
		{"help", "Exit codes:\n  0    done", "", exitOK},
		{"help tail", "Usage: chronocast tail STREAM", "", exitOK},
		{"help version", "Usage: chronocast version", "", exitOK},
		{"version", "chronocast ", "", exitOK},
	} {
		r := cli(t, run, nil, strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) {
			t.Errorf("%q: code %d, stdout %q, stderr %q", c.args, r.code, r.stdout, r.stderr)
		}
	}
}
