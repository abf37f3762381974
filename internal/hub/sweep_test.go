package hub_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// run lets the hub of a world run until the test ends.
func run(t *testing.T, w *world) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// B37: the hint of the newest message is lost, and nothing follows to reveal
// it. Found by the sweep, within two seconds.
func TestB37_LostNewestMessageIsFound(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c, other := w.live(chat, plain), w.live("other", plain)
		w.publish(chat, 3)
		synctest.Wait()
		w.log.AppendN(chat, 1)
		w.log.AppendN("other", 2)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		c.expect("1", "2", "3", "4")
		other.expect("1", "2")
	})
}

func TestSweep_OnRequest(t *testing.T) {
	bubble(t, hub.Options{SweepEvery: time.Hour}, func(t *testing.T, w *world) {
		c := w.live(chat, plain)
		w.log.AppendN(chat, 1)
		w.hub.Sweep()
		w.hub.Sweep()
		time.Sleep(10 * time.Millisecond)
		c.expect("1")
	})
}

func TestSweep_ManyStreamsInChunks(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		var clients []*client
		for i := range 1201 {
			clients = append(clients, w.live(hubtest.Payload("s", uint64(i)), plain))
		}
		before := w.log.Reads("heads")
		for _, c := range clients {
			w.log.AppendN(c.stream, 1)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		for _, c := range clients {
			c.expectAt(1)
		}
		if n := w.log.Reads("heads") - before; n != 3 {
			t.Errorf("%d reads of heads", n)
		}
	})
}

// B80: the log is away for ten minutes. One line tells, another one when it is
// back, and everything arrives by itself.
func TestB80_LogDownThenUp(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	bubble(t, hub.Options{Logger: zap.New(core)}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 1)
		synctest.Wait()
		w.log.Down()
		w.log.AppendN(chat, 3)
		w.publish(chat, 1) // a gap that cannot be filled now
		w.log.AppendN(chat, 5)
		time.Sleep(10 * time.Minute)
		c.expect("1")
		if n := w.log.Reads("heads") + w.log.Reads("range"); n > 2000 {
			t.Errorf("%d reads in ten minutes", n)
		}
		w.log.Fault(nil)
		time.Sleep(2 * time.Second)
		c.expectAt(10)
		w.publish(chat, 1)
		synctest.Wait()
		c.expectAt(11)
		var lines []string
		for _, e := range logs.All() {
			lines = append(lines, e.Level.String()+" "+e.Message)
		}
		if len(lines) != 2 || lines[0] != "warn log unavailable, retrying" || lines[1] != "info log answers again" {
			t.Errorf("logged %q", lines)
		}
	})
}

// A log that hangs is given up after the time of a read.
func TestSweep_LogThatHangs(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.log.Slow(24 * time.Hour)
		w.log.AppendN(chat, 2)
		time.Sleep(time.Minute)
		w.log.Fault(nil)
		time.Sleep(8 * time.Second)
		c.expect("1", "2")
	})
}

// A hint of what the log does not have is no reason to read it all the time,
// nor to deliver it.
func TestSweep_HintTheLogDoesNotBearOut(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 2)
		w.hub.Publish([]protocol.Batch{{Stream: chat, Epoch: life, Messages: []protocol.Message{{Offset: 9, Data: []byte("9")}}}})
		time.Sleep(time.Minute)
		c.expect("1", "2")
		if n := w.log.Reads("range"); n > 80 {
			t.Errorf("%d reads in a minute", n)
		}
		if _, reason := c.replay(1); reason != "" {
			t.Fatal(reason)
		}
		time.Sleep(time.Minute)
		if n := w.log.Reads("range"); n > 300 {
			t.Errorf("%d reads in two minutes", n)
		}
		c.expect("r2")
		w.publish(chat, 7)
		time.Sleep(time.Second)
		got := words(c.take())
		if got[0] != "r3" || got[7] != "confirm_history" {
			t.Errorf("saw %v", got)
		}
		c.expectAt(9)
	})
}
