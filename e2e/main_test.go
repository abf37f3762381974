package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// serverBinary is the server under test, built once by TestMain.
var serverBinary string

// throughOurClient counts the messages that were delivered through the bundled
// client and found right, over all tests of one run.
var throughOurClient atomic.Int64

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "chronocast-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)

	if serverBinary = os.Getenv("CHRONOCAST_E2E_BINARY"); serverBinary == "" {
		serverBinary = filepath.Join(dir, "chronocast")
		args := []string{"build", "-o", serverBinary}
		if os.Getenv("CHRONOCAST_E2E_RACE") != "" {
			args = append(args, "-race")
		}
		build := exec.Command("go", append(args, "../cmd/chronocast")...)
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: the server does not build: %v\n%s", err, out)
			return 1
		}
	}

	code := pgtest.Main(m.Run)
	closeBrowser()
	if n := throughOurClient.Load(); n > 0 {
		fmt.Printf("e2e figure: %d messages delivered through the bundled client in this run, each checked against the log\n", n)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: goroutines leaked:", err)
			return 1
		}
	}
	return code
}

// long says whether the full counts were asked for.
var long = os.Getenv("CHRONOCAST_E2E_LONG") != ""

// scale picks a count: short by default, full when the long run was asked for.
func scale(short, full int) int {
	if long {
		return full
	}
	return short
}

// eventually waits until cond holds, and fails the test after within.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", within, what)
		case <-tick.C:
		}
	}
}

// holdups watches how long this machine keeps a goroutine waiting that has
// nothing to do but wake up every five milliseconds. It returns a function that
// gives ten times the longest such wait so far: what passes over some ten hands,
// each held up as long, is late by no fault of the server.
func holdups(t testing.TB) func() time.Duration {
	var longest atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(done); <-ended })
	go func() {
		defer close(ended)
		const every = 5 * time.Millisecond
		for {
			began := time.Now()
			select {
			case <-done:
				return
			case <-time.After(every):
			}
			if late := int64(time.Since(began) - every); late > longest.Load() {
				longest.Store(late)
			}
		}
	}()
	return func() time.Duration { return 10 * time.Duration(longest.Load()) }
}

// pause lets d pass, for schedules of faults (cut every 600 ms), never to wait
// for something to have happened.
func pause(d time.Duration) { <-time.After(d) }

// figure prints what a test has measured, unless it has failed.
func figure(t testing.TB, format string, args ...any) {
	if !t.Failed() {
		fmt.Printf("e2e figure: "+format+"\n", args...)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// signal wakes everyone who waits whenever something was added. Its owner
// guards it with the lock that guards what was added.
type signal struct{ c chan struct{} }

func (s *signal) changed() chan struct{} {
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

func (s *signal) wake() {
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}
