package hub_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// B49: the log begins another life while clients are live. Each learns of it
// in its protocol's words and goes on from the new head.
func TestB49_AnotherLifeOfTheLog(t *testing.T) {
	how := map[string]func(w *world){
		"seen by the sweep": func(w *world) {
			w.log.Wipe(life + 9)
			w.log.AppendN(chat, 2)
			time.Sleep(2 * time.Second)
		},
		"seen in a hint": func(w *world) {
			w.log.Wipe(life + 9)
			w.publish(chat, 2)
			time.Sleep(20 * time.Millisecond)
		},
		"told by Sweep": func(w *world) {
			w.log.Wipe(life + 9)
			w.log.AppendN(chat, 2)
			w.hub.Sweep()
		},
	}
	for name, wipe := range how {
		t.Run(name, func(t *testing.T) {
			bubble(t, hub.Options{}, func(t *testing.T, w *world) {
				w.publish(chat, 5)
				a, b, c := w.live(chat, ours), w.live(chat, extended), w.live(chat, plain)
				holding := w.join(chat, hubtest.NewCodec(ours), roomy)
				wipe(w)
				synctest.Wait()
				a.expect("reset epoch_changed")
				b.expect("reject_history epoch_changed")
				if reason := c.sink.WasCut(); reason != protocol.DisconnectServerRestart {
					t.Errorf("plain client was cut with %q", reason)
				}
				c.expect("disconnect server_restart")
				holding.expect()
				w.publish(chat, 1)
				synctest.Wait()
				a.expect("3")
				b.expect("3")
				if sent, want := a.sub.Sent(), (protocol.Position{Epoch: life + 9, Offset: 3}); sent != want {
					t.Errorf("sent %v, want %v", sent, want)
				}
				holding.sub.Live()
				synctest.Wait()
				holding.expect("reset epoch_changed", "3")
				if s := w.hub.Stats(); s.Resets != 4 || s.Cuts != 1 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A hint of a later epoch is only a hint: when the log does not know of it
// nobody is reset.
func TestReset_NotOnTheWordOfAHint(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 1)
		w.hub.Publish([]protocol.Batch{{Stream: chat, Epoch: life + 1, Messages: []protocol.Message{{Offset: 1, Data: []byte("1")}}}})
		time.Sleep(time.Second)
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("1", "2")
	})
}

// A client that asks to continue an old life is answered by the refusal alone.
func TestReset_HoldingClientIsToldOnce(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.publish(chat, 5)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		w.log.Wipe(life + 9)
		w.hub.Sweep()
		synctest.Wait()
		span, reason := c.replay(3)
		if reason != protocol.ReasonEpochChanged || span != (protocol.Span{Epoch: life + 9, First: 1}) {
			t.Fatalf("%v %q", span, reason)
		}
		c.sub.Live()
		c.at = span.Head()
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("1")
	})
}

// The log went back within its epoch: what is committed next would pass for
// old. Told as ahead.
func TestReset_LogThatWentBack(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 10)
		synctest.Wait()
		c.expectAt(10)
		c.take()
		w.log.Rewind(chat, 6)
		time.Sleep(2 * time.Second)
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("reset ahead", "7")
	})
}

// B47: what a reader has not had yet is trimmed while it catches up. Told
// once, then exact.
func TestB47_TrimmedWhileCatchingUp(t *testing.T) {
	for _, subprotocol := range []string{ours, extended, plain} {
		t.Run(subprotocol, func(t *testing.T) {
			bubble(t, hub.Options{}, func(t *testing.T, w *world) {
				c := w.join(chat, hubtest.NewCodec(subprotocol), 2000)
				c.sub.Live()
				c.sink.Stall()
				for range 100 {
					w.publish(chat, 30)
					time.Sleep(time.Millisecond)
				}
				w.log.Trimmed(chat, 2000)
				w.hub.Sweep()
				synctest.Wait()
				c.sink.Resume()
				time.Sleep(time.Second)
				synctest.Wait()
				w.publish(chat, 2)
				synctest.Wait()
				resets := 0
				for _, e := range c.take() {
					if e.Reason == string(protocol.ReasonTrimmed) {
						resets++
					}
				}
				if subprotocol == plain {
					if reason := c.sink.WasCut(); reason != protocol.DisconnectTooSlow {
						t.Errorf("cut with %q", reason)
					}
					return
				}
				c.expectAt(3002)
				if resets != 1 {
					t.Errorf("told %d times", resets)
				}
			})
		})
	}
}

// A gap whose messages are trimmed before this node could read them.
func TestReset_TrimmedGap(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 2)
		w.log.AppendN(chat, 10)
		w.log.Trimmed(chat, 8)
		w.publish(chat, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		c.expect("1", "2", "reset trimmed")
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("14")
	})
}
