package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chronocast/chronocast/protocol"
)

// historyOf returns a server with n messages, and what history prints of them.
func historyOf(n int) (*fakeServer, []string) {
	f := newFakeServer()
	var lines []string
	for i := 1; i <= n; i++ {
		f.streams["s"] = append(f.streams["s"], fmt.Appendf(nil, "{\"n\":\n%d}", i))
		lines = append(lines, fmt.Sprintf("%d\t{\"n\": %d}\n", i, i))
	}
	return f, lines
}

func TestHistory_PrintsPageAfterPageToTheEnd(t *testing.T) {
	t.Parallel()
	f, lines := historyOf(2500)
	url := serve(t, f)
	for _, c := range []struct {
		args  string
		from  int // lines skipped
		to    int
		pages int
	}{
		{"", 0, 2500, 3},
		{"--after start --limit 1001", 0, 1001, 2},
		{"--after " + fakeEpoch.String() + ":2400", 2400, 2500, 1},
		{"--after 2400 --limit 7", 2400, 2407, 1},
		{"--after 2500", 2500, 2500, 1},
		{"--limit 1000", 0, 1000, 1},
	} {
		before := len(f.seen())
		r := cli(t, runHistory, nil, append([]string{"s", "--server", url}, strings.Fields(c.args)...)...)
		wantCode(t, r, exitOK)
		if want := strings.Join(lines[c.from:c.to], ""); r.stdout != want {
			t.Errorf("%q printed %d lines, want %d", c.args, strings.Count(r.stdout, "\n"), c.to-c.from)
		}
		pages := 0
		for _, seen := range f.seen()[before:] {
			if strings.HasSuffix(seen.path, "/messages") {
				pages++
			}
		}
		if pages != c.pages {
			t.Errorf("%q asked for %d pages, want %d", c.args, pages, c.pages)
		}
	}
	r := cli(t, runHistory, nil, "s", "--server", url, "--limit", "1", "--json")
	if want := fmt.Sprintf(`{"stream":"s","epoch":"%v","offset":1,"data":{"n": 1}}`+"\n", fakeEpoch); r.stdout != want {
		t.Errorf("--json printed %q, want %q", r.stdout, want)
	}
}

func TestHistory_APositionThatCannotBeContinuedExitsWith3(t *testing.T) {
	t.Parallel()
	f, _ := historyOf(20)
	f.first = 10
	url := serve(t, f)
	for after, reason := range map[string]string{
		fakeEpoch.String() + ":3":  "trimmed",
		fakeEpoch.String() + ":21": "ahead",
		"12345:3":                  "epoch_changed",
		"4":                        "trimmed",
	} {
		r := cli(t, runHistory, nil, "s", "--server", url, "--after", after)
		wantCode(t, r, exitReset)
		wantText(t, "stderr", r.stderr, "cannot continue after "+after, "("+reason+")", "offsets 10 to 20", "--after start")
		if r.stdout != "" {
			t.Errorf("after %s printed %q", after, r.stdout)
		}
	}
	r := cli(t, runHistory, nil, "s", "--server", url)
	wantCode(t, r, exitOK)
	if n := strings.Count(r.stdout, "\n"); n != 11 || !strings.HasPrefix(r.stdout, "10\t") {
		t.Errorf("from the start printed %d lines: %.80q", n, r.stdout)
	}
}

// What is trimmed between two pages is missing, and said to be.
func TestHistory_TrimmedBetweenTwoPagesIsNeverSilent(t *testing.T) {
	t.Parallel()
	f, lines := historyOf(3000)
	pages := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/messages") {
			if pages++; pages == 2 {
				f.mu.Lock()
				f.first = 2000
				f.mu.Unlock()
			}
		}
		f.ServeHTTP(w, r)
	}))
	r := cli(t, runHistory, nil, "s", "--server", url)
	wantCode(t, r, exitReset)
	wantText(t, "stderr", r.stderr, fmt.Sprintf("after %v:1000", fakeEpoch), "(trimmed)")
	if r.stdout != strings.Join(lines[:1000], "") {
		t.Error("the first page is not what was printed")
	}
}

func TestHistory_FromTheStartFollowsTheTrimming(t *testing.T) {
	t.Parallel()
	f, lines := historyOf(30)
	asked := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 2 { // after the head was told
			f.mu.Lock()
			f.first = 20
			f.mu.Unlock()
		}
		f.ServeHTTP(w, r)
	}))
	r := cli(t, runHistory, nil, "s", "--server", url)
	wantCode(t, r, exitOK)
	if r.stdout != strings.Join(lines[19:], "") {
		t.Errorf("printed %q", r.stdout)
	}
}

func TestHistory_RefusesAnAnswerWithAHole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ messages, more, want string }{
		{`{"offset":1,"data":1},{"offset":3,"data":1}`, "false", "continues offset 1 with 3"},
		{`{"offset":2,"data":1}`, "false", "continues offset 0 with 2"},
		{`{"offset":1}`, "false", "continues"},
		{``, "true", "promises more"},
	} {
		url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"epoch":"7","first":1,"last":9,"messages":[%s],"more":%s}`, c.messages, c.more)
		}))
		r := cli(t, runHistory, nil, "s", "--server", url)
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, c.want)
	}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"epoch":"8","first":1,"last":9,"messages":[{"offset":4,"data":1}],"more":false}`)
	}))
	r := cli(t, runHistory, nil, "s", "--server", url, "--after", "7:3")
	wantCode(t, r, exitFailed)
	wantText(t, "stderr", r.stderr, "the answer is of epoch 8")
}

func TestHistory_RepeatsAReadThatFailsAndSaysWhereItEnded(t *testing.T) {
	t.Parallel()
	f, lines := historyOf(1500)
	url := serve(t, faulty(f, func(n int, _ *http.Request) fault { return []fault{answerBusy, noFault, noFault, cutReply}[min(n, 3)] }))
	r := cli(t, runHistory, nil, "s", "--server", url, "--retry-for", "150ms")
	wantCode(t, r, exitFailed)
	if r.stdout != strings.Join(lines[:1000], "") {
		t.Errorf("printed %d lines", strings.Count(r.stdout, "\n"))
	}
	end := protocol.Position{Epoch: fakeEpoch, Offset: 1000}.String()
	wantText(t, "stderr", r.stderr, "printed up to "+end+", continue with --after "+end)
}
