package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchRow is the part of the bench's JSON that is compared.
type benchRow struct {
	Label                                                  string
	Clients                                                int
	Published, Refused, Delivered, Lost, Doubled, Inverted uint64
	Errors                                                 map[string]uint64
	RSS                                                    uint64  `json:"server_rss_bytes"`
	FrameBytes                                             float64 `json:"bytes_per_delivery"`
}

// bench runs the command and returns what it printed and its exit code.
func bench(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, serverBinary, append([]string{"bench"}, args...)...)
	cmd.Dir = t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code tells
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestBench_EachScenarioCountsExactly runs each scenario in a small form
// against a server that the bench starts itself.
func TestBench_EachScenarioCountsExactly(t *testing.T) {
	for _, c := range []struct {
		args      string
		published []uint64 // of each row; nil when chance has a part in it
		each      int      // deliveries of one message
	}{
		{"constant --clients 10 --rounds 2 --for 3s", nil, 1},
		{"herd --clients 100", []uint64{100}, 1},
		{"lecture --clients 20 --rate 50,100 --for 500ms --protocol chronocast-v1-json", []uint64{25, 50}, 20},
		{"lecture --clients 20 --rate 100 --for 500ms --goroutines --loops 2", []uint64{50}, 20},
		{"lecture --clients 20 --rate 2000 --for 500ms --publish broadcast --protocol actioncable-v1-ext-json", []uint64{1000}, 20},
		{"lecture --clients 20 --rate 100 --for 500ms --publish anycable", []uint64{50}, 20},
		{"rtt --clients 20,40 --rounds 5", []uint64{5, 5}, 0},
		{"payload --streams 3 --clients 5 --rounds 4", []uint64{12, 12, 12}, 5},
		{"rate --rate 10,1000 --for 500ms", []uint64{5, 500}, 1},
		{"tokens --clients 3 --readers 2 --for 3s", nil, 2},
		{"floor --clients 20 --rounds 1 --size 300", nil, 20},
		{"storm --clients 20 --rate 500 --rounds 1 --for 500ms", nil, 20},
		{"fair --clients 5,50 --rate 50,20 --rounds 1 --for 500ms", nil, 0},
		{"stuck --clients 20 --rate 20 --rounds 1 --for 1s", nil, 0}, // chance has a part in what those who stop have read
		{"flood --clients 20 --rounds 1 --for 500ms", nil, 20},
	} {
		t.Run(strings.Fields(c.args)[0], func(t *testing.T) {
			out, errs, code := bench(t, append(strings.Fields(c.args), "--json", "-", "--quiet")...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			var r struct{ Rows []benchRow }
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v in %.300s", err, out)
			}
			if len(r.Rows) == 0 || c.published != nil && len(r.Rows) != len(c.published) {
				t.Fatalf("%d rows", len(r.Rows))
			}
			for i, row := range r.Rows {
				if row.Lost+row.Doubled+row.Inverted+row.Refused > 0 || len(row.Errors) > 0 || row.Delivered == 0 {
					t.Errorf("%s: %+v", row.Label, row)
				}
				if c.published != nil && row.Published != c.published[i] {
					t.Errorf("%s: %d published, want %d", row.Label, row.Published, c.published[i])
				}
				if c.each > 0 && row.Published > 0 && row.Delivered != row.Published*uint64(c.each) && !strings.HasPrefix(row.Label, "bare") {
					t.Errorf("%s: %d of %d published were delivered", row.Label, row.Delivered, row.Published)
				}
			}
		})
	}
}

// TestBench_HoldsConnectionsInSeveralProcesses gives it few descriptors.
func TestBench_HoldsConnectionsInSeveralProcesses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `ulimit -n 300 && exec "$0" bench hold --clients 250 --ramp 500 --for 1s --json - --quiet`, serverBinary)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var r struct {
		Rows   []benchRow
		Notes  []string
		Server string
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	last := r.Rows[len(r.Rows)-1]
	if last.Clients != 250 || last.Lost != 0 || len(last.Errors) > 0 || last.RSS == 0 {
		t.Errorf("%+v", last)
	}
	if r.Server != "our own, 3 started for this run" || !strings.Contains(strings.Join(r.Notes, "\n"), "3 worker processes share 250 connections") {
		t.Errorf("%s, %q", r.Server, r.Notes)
	}
}

func TestBench_SaysWhatIsWrong(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nobody accepts: it never answers
	s := newServer(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "SCENARIO is missing"},
		{[]string{"lectures"}, 2, "did you mean lecture?"},
		{[]string{"herd", "a", "b"}, 2, "unexpected argument"},
		{[]string{"herd", "--clients", "many"}, 2, "a list of numbers"},
		{[]string{"herd", "--size", "3"}, 2, "at least 18 bytes"},
		{[]string{"herd", "--pid", "1"}, 2, "--pid is for a server given by its URL"},
		{[]string{"herd", "ws://" + l.Addr().String(), "--timeout", "300ms"}, 1, "not answered within 300ms"},
		{[]string{"herd", "ws://127.0.0.1:1/cable"}, 1, "refused"},
		{[]string{"herd", s.ws(), "--channel", `{"channel":"Nope"}`}, 1, "rejects the subscription (unknown_channel)"},
		{[]string{"herd", s.ws(), "--protocol", "mqtt"}, 1, "status 400"},
		{[]string{"herd", s.ws(), "--publish-url", s.url("/nowhere/")}, 1, "404"},
	} {
		_, errs, code := bench(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d, %s", c.args, code, errs)
		}
	}
}

func TestBench_AnInterruptStillWritesTheReports(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	page, data := filepath.Join(dir, "r.html"), filepath.Join(dir, "r.json")
	cmd := exec.Command(serverBinary, "bench", "lecture", s.ws(), "--clients", "5", "--rate", "50", "--for", "1h", "--html", page, "--json", data)
	var out bytes.Buffer
	errs := &tailBuffer{keep: 64 << 10}
	cmd.Stdout, cmd.Stderr = &out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the first line of progress", func() bool { return strings.Contains(errs.String(), "deliveries/s") })
	cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(out.String(), "Interrupted") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs)
	}
	var r struct {
		Interrupted bool
		Rows        []benchRow
	}
	b, err := os.ReadFile(data)
	if err != nil || json.Unmarshal(b, &r) != nil || !r.Interrupted || len(r.Rows) != 1 || r.Rows[0].Delivered == 0 {
		t.Errorf("%v: %.500s", err, b)
	}
	if b, err = os.ReadFile(page); err != nil || !bytes.Contains(b, []byte("(interrupted)")) || !bytes.Contains(b, []byte("</html>")) {
		t.Errorf("%v: %.300s", err, b)
	}
}
