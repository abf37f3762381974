package sqlite

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/sequencer"
)

// victimEnv makes the test binary a publisher that waits to be killed.
const victimEnv = "CHRONOCAST_TEST_VICTIM"

const victimStreams = 3

// victim publishes to the database at path until it is killed, and writes a
// line for every broadcast once it is acknowledged: STREAM OFFSET EPOCH DATA.
// Meanwhile it trims, so that it may be killed in the middle of that too.
func victim(path string) int {
	s, err := Open(background, path, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sq := sequencer.New(s, sequencer.Options{})
	go sq.Run(background)
	<-sq.Ready()
	var mu sync.Mutex // one write per line
	var wg sync.WaitGroup
	for p := range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				stream := (p + i) % victimStreams
				data := fmt.Sprintf("[%d,%d,%d]", os.Getpid(), p, i)
				r := sequencer.Request{{Stream: fmt.Sprint("s", stream), Data: []byte(data)}}
				if i%4 == 0 {
					r[0].Key = data
				}
				placed, err := sq.Append(background, r)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Printf("%d %d %d %s\n", stream, placed[0].Offset, placed[0].Epoch, data)
				mu.Unlock()
			}
		})
	}
	keep := history.Retention{Default: history.Limits{Count: 100_000}, Rules: []history.Rule{{Prefix: "s2", Limits: history.Limits{Count: 50}}}}
	wg.Go(func() {
		for {
			if _, err := s.Trim(background, keep); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	})
	wg.Wait()
	return 0
}

// TestKill_AcknowledgedMessagesSurvive kills a publishing process twelve times
// with SIGKILL, at a moment of chance. Every broadcast that it acknowledged is
// there, at the place it told; offsets are contiguous; the epoch is the same.
func TestKill_AcknowledgedMessagesSurvive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	r := rand.New(rand.NewPCG(7, 8))
	acknowledged := [victimStreams]map[uint64]string{}
	for i := range acknowledged {
		acknowledged[i] = map[uint64]string{}
	}
	epochs := map[int64]bool{}
	for round := range 12 {
		for _, line := range killAfter(t, path, 1+r.IntN(300)) {
			var stream int
			var offset uint64
			var epoch int64
			var data string
			if _, err := fmt.Sscan(line, &stream, &offset, &epoch, &data); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			if other, ok := acknowledged[stream][offset]; ok {
				t.Fatalf("round %d: place %d of s%d was given to %s and to %s", round, offset, stream, other, data)
			}
			acknowledged[stream][offset] = data
			epochs[epoch] = true
		}
		s := mustOpen(t, path, Options{})
		for i, want := range acknowledged {
			span := head(t, s, fmt.Sprint("s", i))
			messages := whole(t, s, fmt.Sprint("s", i), span.First-1)
			if span.Last < uint64(len(want)) {
				t.Fatalf("round %d: s%d has %d messages, %d were acknowledged", round, i, span.Last, len(want))
			}
			for offset, data := range want {
				if offset > span.Last {
					t.Fatalf("round %d: s%d ends at %d, %s was acknowledged at %d", round, i, span.Last, data, offset)
				}
				if offset >= span.First && string(messages[offset-span.First].Data) != data {
					t.Fatalf("round %d: s%d holds %s at %d, acknowledged was %s", round, i, messages[offset-span.First].Data, offset, data)
				}
			}
			if i < 2 && span.First != 1 {
				t.Fatalf("round %d: s%d was trimmed: %+v", round, i, span)
			}
		}
		epochs[s.epoch] = true
		mustClose(t, s)
	}
	if len(epochs) != 1 {
		t.Errorf("%d epochs: %v", len(epochs), epochs)
	}
	total := 0
	for _, m := range acknowledged {
		total += len(m)
	}
	t.Logf("%d acknowledged broadcasts over 12 kills", total)
}

// killAfter starts a victim, kills it after n lines, and returns all that it
// wrote up to then.
func killAfter(t *testing.T, path string, n int) (lines []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(stdout)
	for {
		line, err := in.ReadString('\n')
		if err != nil { // what follows the last line feed was cut off
			break
		}
		if lines = append(lines, line); len(lines) == n {
			cmd.Process.Kill()
		}
	}
	cmd.Wait()
	if stderr.Len() > 0 || len(lines) < n {
		t.Fatalf("the victim ended by itself after %d lines: %s", len(lines), stderr)
	}
	return lines
}
