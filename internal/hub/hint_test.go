package hub_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// News from another node is read from the log at once, not after the time that
// a gap between local hints is given to close by itself, and by one read
// however many subscribers there are.
func TestHint_IsReadOnceAndAtOnce(t *testing.T) {
	bubble(t, hub.Options{GapDelay: time.Hour, SweepEvery: 2 * time.Hour}, func(t *testing.T, w *world) {
		clients := []*client{w.live(chat, plain), w.live(chat, plain), w.live(chat, extended), w.live(chat, ours)}
		began, reads := time.Now(), w.log.Reads("range")
		w.log.AppendN(chat, 3)
		w.hub.Hint(chat, 3)
		w.hub.Hint(chat, 3)
		synctest.Wait()
		for _, c := range clients {
			c.expectAt(3)
		}
		if n := w.log.Reads("range") - reads; n != 1 {
			t.Errorf("%d reads of the log for one piece of news, want 1", n)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("delivered after %v", d)
		}
	})
}

// Hints that come while a read is under way lead to one more read, not to one
// each.
func TestHint_ABurstSharesReads(t *testing.T) {
	bubble(t, hub.Options{GapDelay: time.Hour, SweepEvery: 2 * time.Hour}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.log.Slow(10 * time.Millisecond)
		reads := w.log.Reads("range")
		for i := range 50 {
			w.log.AppendN(chat, 1)
			w.hub.Hint(chat, uint64(i+1))
		}
		time.Sleep(time.Second)
		c.expectAt(50)
		if n := w.log.Reads("range") - reads; n > 2 {
			t.Errorf("%d reads for a burst of 50, want 2 at most", n)
		}
	})
}

// A hint of what the log does not have is looked for, then forgotten: it costs
// a few reads, and what is published afterwards comes at once.
func TestHint_ThatIsNotTrueIsForgotten(t *testing.T) {
	bubble(t, hub.Options{SweepEvery: 2 * time.Hour}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 2)
		reads := w.log.Reads("range")
		w.hub.Hint(chat, protocol.MaxOffset-1)
		time.Sleep(time.Minute)
		if n := w.log.Reads("range") - reads; n < 2 || n > 10 {
			t.Errorf("%d reads for a hint that is not true, want a few", n)
		}
		began := time.Now()
		w.log.AppendN(chat, 1)
		w.hub.Hint(chat, 3)
		synctest.Wait()
		c.expectAt(3)
		if d := time.Since(began); d != 0 {
			t.Errorf("what came afterwards was delivered after %v", d)
		}
	})
}

// A stream nobody listens to costs no read, and neither does news of what is
// here already.
func TestHint_CostsNothingWhereNobodyMissesIt(t *testing.T) {
	bubble(t, hub.Options{SweepEvery: 2 * time.Hour}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 2)
		gone := w.live("left", ours)
		gone.sub.Close()
		synctest.Wait()
		reads := w.log.Reads("range") + w.log.Reads("heads")
		w.log.AppendN("never", 5)
		w.log.AppendN("left", 5)
		w.hub.Hint("never", 5)
		w.hub.Hint("left", 5)
		w.hub.Hint(chat, 1)
		w.hub.Hint(chat, 2)
		time.Sleep(time.Minute)
		if n := w.log.Reads("range") + w.log.Reads("heads") - reads; n != 0 {
			t.Errorf("%d reads for nobody", n)
		}
		c.expectAt(2)
	})
}

// Whoever comes to a stream that was left a while ago begins at its head, not
// where this node stopped listening: what was published in between is not for
// those who ask for no history.
func TestHint_AStreamThatWasLeftBeginsAtItsHead(t *testing.T) {
	for _, away := range []time.Duration{0, 100 * time.Millisecond, 10 * time.Second, 59 * time.Second, 61 * time.Second, 10 * time.Minute} {
		bubble(t, hub.Options{Shared: true, SweepEvery: time.Second}, func(t *testing.T, w *world) {
			gone := w.live("left", ours)
			w.publish("left", 2)
			synctest.Wait()
			gone.sub.Close()
			w.log.AppendN("left", 3) // elsewhere
			w.hub.Hint("left", 5)
			time.Sleep(away)
			synctest.Wait()
			again := w.live("left", ours)
			if again.span.Last != 5 {
				t.Errorf("after %v: subscribed at %d, the log is at 5", away, again.span.Last)
			}
			w.publish("left", 1)
			time.Sleep(100 * time.Millisecond)
			again.expect("6")
		})
	}
}

// News may overtake the first read of a stream's head.
func TestHint_BeforeTheHeadIsKnown(t *testing.T) {
	bubble(t, hub.Options{GapDelay: 5 * time.Millisecond, SweepEvery: 2 * time.Hour}, func(t *testing.T, w *world) {
		w.log.Slow(50 * time.Millisecond)
		joined := make(chan *client, 1)
		go func() {
			c := w.join(chat, hubtest.NewCodec(ours), roomy)
			c.sub.Live()
			joined <- c
		}()
		time.Sleep(49 * time.Millisecond)
		w.hub.Hint(chat, 2)
		time.Sleep(time.Millisecond)
		w.log.AppendN(chat, 2) // visible after the head was read, told before
		c := <-joined
		time.Sleep(time.Second)
		synctest.Wait()
		c.expectAt(2)
	})
}

// An outage counts when every read has failed for a second; a single failure
// and what succeeds again at once do not.
func TestB80_OutageIsCountedWhenItLasts(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.live(chat, ours)
		w.log.Down()
		if _, err := w.hub.Head(t.Context(), chat); err == nil {
			t.Fatal("the log answers")
		}
		if n := w.hub.Outage(); n != 0 {
			t.Errorf("one failure is outage %d", n)
		}
		w.log.Fault(nil)
		time.Sleep(10 * time.Second)
		for outage := uint64(1); outage <= 2; outage++ {
			w.log.Down()
			time.Sleep(6 * time.Second)
			if n := w.hub.Outage(); n != outage {
				t.Errorf("after 6 s of failures Outage is %d, want %d", n, outage)
			}
			w.log.Fault(nil)
			time.Sleep(3 * time.Second)
			if n := w.hub.Outage(); n != 0 {
				t.Errorf("the log answers and Outage is %d", n)
			}
		}
	})
}

// B11: another node has committed and acknowledged; whoever asks this node
// afterwards is not told that the stream ends earlier.
func TestB11_ASharedLogIsAskedForTheEndOfAStream(t *testing.T) {
	bubble(t, hub.Options{Shared: true}, func(t *testing.T, w *world) {
		w.live(chat, ours)
		w.publish(chat, 10)
		synctest.Wait()
		w.log.AppendN(chat, 1) // elsewhere
		reads := w.log.Reads("range")
		page, _, err := w.hub.Read(t.Context(), chat, protocol.Position{Epoch: life, Offset: 2}, 5, 1<<20)
		if err != nil || len(page.Messages) != 5 || w.log.Reads("range") != reads {
			t.Errorf("a page from the middle: %d messages, %v, %d reads", len(page.Messages), err, w.log.Reads("range")-reads)
		}
		page, _, err = w.hub.Read(t.Context(), chat, protocol.Position{Epoch: life, Offset: 8}, 5, 1<<20)
		if err != nil || len(page.Messages) != 3 || page.Last != 11 {
			t.Errorf("the last page: %d messages, last %d, %v", len(page.Messages), page.Last, err)
		}
	})
}
