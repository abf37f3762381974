package hub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

func TestReplay_DoneFollowsTheLastReplayedFrame(t *testing.T) {
	for _, subprotocol := range []string{extended, ours} {
		bubble(t, hub.Options{}, func(t *testing.T, w *world) {
			w.log.AppendN(chat, 5)
			c := w.join(chat, hubtest.NewCodec(subprotocol), roomy)
			w.publish(chat, 1) // after the confirmation, before the replay
			span, reason := c.replay(2)
			if reason != "" || span != (protocol.Span{Epoch: life, First: 1, Last: 6}) {
				t.Fatalf("%v %q", span, reason)
			}
			w.publish(chat, 2)
			synctest.Wait()
			r := ""
			if subprotocol == ours {
				r = "r"
			}
			c.expect(r+"3", r+"4", r+"5", r+"6", "confirm_history", "7", "8")
		})
	}
}

func TestReplay_NothingMissed(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 5)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		c.replay(5)
		synctest.Wait()
		c.expect("confirm_history")
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("6")
	})
}

func TestReplay_WithoutDoneAndWithoutEpoch(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 3)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		c.rewound = append(c.rewound, c.span.Head(), protocol.Position{Epoch: life})
		if _, reason, err := c.sub.Replay(context.Background(), protocol.Position{}, nil); reason != "" || err != nil {
			t.Fatal(reason, err)
		}
		synctest.Wait()
		c.expect("r1", "r2", "r3")
	})
}

// A live subscription goes back and ascends again; what is live waits.
func TestReplay_RewindsALiveSubscription(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		w.publish(chat, 4)
		synctest.Wait()
		c.expect("1", "2", "3", "4")
		c.replay(1)
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("r2", "r3", "r4", "confirm_history", "5")
		// Again, before the first one is through: both are answered.
		w.log.Slow(time.Second)
		c.replay(3)
		c.replay(0)
		time.Sleep(time.Minute)
		synctest.Wait()
		got := words(c.take())
		if tail := got[len(got)-7:]; !slices.Equal(tail, []string{"r1", "r2", "r3", "r4", "r5", "confirm_history", "confirm_history"}) {
			t.Fatalf("saw %v", got)
		}
		c.expectAt(5)
	})
}

func TestReplay_SinceATime(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 5) // at the times 1 to 5
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		c.rewound = append(c.rewound, protocol.Position{Epoch: life, Offset: 3})
		span, reason, err := c.sub.ReplaySince(context.Background(), 4, doneFrame)
		if err != nil || reason != "" || span.Last != 5 {
			t.Fatal(span, reason, err)
		}
		synctest.Wait()
		c.expect("r4", "r5", "confirm_history")
		w.log.Trimmed(chat, 4)
		span, reason, err = c.sub.ReplaySince(context.Background(), 2, doneFrame)
		if err != nil || reason != protocol.ReasonTrimmed || span.Last != 5 {
			t.Fatal(span, reason, err)
		}
		w.log.Down()
		if _, _, err = c.sub.ReplaySince(context.Background(), 2, nil); !errors.Is(err, history.ErrUnavailable) {
			t.Fatal(err)
		}
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("6")
	})
}

// B31: the position lies before what is kept: told, with the first offset
// kept, and live all the same.
func TestB31_ReplayFromTheStartOfATrimmedStream(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 1000)
		w.log.Trimmed(chat, 901)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		span, reason := c.replay(0)
		if reason != protocol.ReasonTrimmed || span != (protocol.Span{Epoch: life, First: 901, Last: 1000}) {
			t.Fatalf("%v %q", span, reason)
		}
		w.publish(chat, 1)
		synctest.Wait()
		c.expect() // still holding
		c.sub.Live()
		synctest.Wait()
		c.expect("1001")
		if _, reason := c.replay(900); reason != "" {
			t.Fatal(reason)
		}
		synctest.Wait()
		if got := words(c.take()); len(got) != 102 || got[0] != "r901" {
			t.Fatalf("saw %v", got)
		}
	})
}

func TestReplay_RefusedPositions(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 10)
		for after, want := range map[protocol.Position]protocol.Reason{
			{Epoch: life, Offset: 11}:                 protocol.ReasonAhead,
			{Epoch: life, Offset: protocol.MaxOffset}: protocol.ReasonAhead,
			{Epoch: life - 1, Offset: 3}:              protocol.ReasonEpochChanged,
			{Epoch: life + 1, Offset: 3}:              protocol.ReasonEpochChanged,
			{Offset: 12}:                              protocol.ReasonAhead,
		} {
			c := w.join(chat, hubtest.NewCodec(ours), roomy)
			span, reason, err := c.sub.Replay(context.Background(), after, doneFrame)
			if err != nil || reason != want || span.Head() != c.span.Head() {
				t.Errorf("after %v: %v %q %v, want %q", after, span, reason, err, want)
			}
			c.sub.Live()
			synctest.Wait()
			c.expect()
		}
	})
}

// Another node committed what this one has no hint of yet: a client that comes
// from there is not ahead.
func TestReplay_PositionThatThisNodeDoesNotKnowYet(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		other := w.live(chat, ours)
		w.log.AppendN(chat, 10)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		if c.span.Last != 0 {
			t.Fatalf("subscribed at %v", c.span)
		}
		if span, reason := c.replay(8); reason != "" || span.Last != 10 {
			t.Fatalf("%v %q", span, reason)
		}
		synctest.Wait()
		c.expect("r9", "r10", "confirm_history")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		other.expectAt(10)
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("11")
		other.expectAt(11)
	})
}

// B34: ten behind costs ten, however much is stored.
func TestB34_RecentPositionInALongStream(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 50_000)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		c.replay(49_990)
		synctest.Wait()
		if got := c.take(); len(got) != 11 || c.messages != 10 {
			t.Fatalf("%d events", len(got))
		}
		if n := w.log.Reads("range"); n > 2 {
			t.Errorf("%d reads", n)
		}
	})
}

// B29: a long catch-up while sweeps, trimming and live messages go on.
func TestB29_LongCatchUpAmongTimers(t *testing.T) {
	bubble(t, hub.Options{SweepEvery: time.Millisecond}, func(t *testing.T, w *world) {
		const stored = 8_000
		w.log.AppendN(chat, stored)
		w.log.Slow(3 * time.Millisecond)
		c := w.join(chat, hubtest.NewCodec(extended), roomy)
		c.replay(0)
		c.mu.Lock()
		c.at.Offset = 0
		c.mu.Unlock()
		for i := range 100 {
			time.Sleep(2 * time.Millisecond)
			w.hub.Sweep()
			w.publish(chat, 1)
			at, _ := c.position()
			w.log.Trimmed(chat, at.Offset/2)
			if i%10 == 0 {
				w.log.AppendN(chat, 1) // a lost hint
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.expectAt(stored + 110)
		if c.messages != stored+110 {
			t.Errorf("%d messages", c.messages)
		}
	})
}

// B23: a replay asked for right after Subscribe is never refused.
func TestB23_ReplayRightAfterSubscribe(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	codec := hubtest.NewCodec(ours)
	for i := range 1000 {
		if i%3 == 0 {
			w.publish(chat, 1)
		}
		c := w.join(chat, codec, roomy)
		if _, reason := c.replay(c.span.Last - min(c.span.Last, 3)); reason != "" {
			t.Fatal(reason)
		}
		if i%2 == 0 {
			c.sub.Close()
			continue
		}
		c.await(c.span.Last)
		c.sub.Close()
	}
}

// Nothing is pushed after Close, whatever a worker was about to push.
func TestReplay_CloseInTheMiddle(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 3000)
		w.log.Slow(10 * time.Millisecond)
		for i := range 20 {
			c := w.join(chat, hubtest.NewCodec(ours), roomy)
			c.replay(uint64(i))
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
			c.sub.Close()
			at, err := c.position()
			time.Sleep(time.Second)
			if now, _ := c.position(); now != at || err != nil {
				t.Fatalf("client went from %v to %v after Close: %v", at, now, err)
			}
		}
	})
}

// B77: after a deploy all clients come back a little behind. They share the
// reads and the frames.
func TestB77_HerdThatResumesSharesReadsAndFrames(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 1000)
		w.log.Slow(2 * time.Millisecond)
		codec := hubtest.NewCodec(ours)
		var clients []*client
		for i := range 600 {
			c := w.join(chat, codec, roomy)
			c.replay(uint64(900 - i%20))
			clients = append(clients, c)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, c := range clients {
			c.expectAt(1000)
		}
		s := w.hub.Stats()
		if s.Resets != 0 {
			t.Errorf("%d resets", s.Resets)
		}
		if heads, ranges := w.log.Reads("heads"), w.log.Reads("range"); heads > 3 || ranges > 20 {
			t.Errorf("%d reads of heads, %d of messages", heads, ranges)
		}
		if n := codec.Encodes.Load(); n > 60 {
			t.Errorf("%d encodes for %d clients", n, len(clients))
		}
	})
}

// B80: the log does not answer while clients replay; they come through when it
// does, and one line each way is logged.
func TestReplay_LogAwayInTheMiddle(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 2000)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		reads := 0
		w.log.Fault(func(context.Context, string, string) error {
			if reads++; reads > 3 {
				return history.ErrUnavailable
			}
			return nil
		})
		c.replay(0)
		time.Sleep(time.Minute)
		at, err := c.position()
		if err != nil || at.Offset == 0 || at.Offset >= 2000 {
			t.Fatalf("at %v: %v", at, err)
		}
		w.log.Fault(nil)
		time.Sleep(2 * time.Second)
		c.expectAt(2000)
		if got := words(c.take()); got[2000] != "confirm_history" {
			t.Fatalf("saw %v", got[1990:])
		}
	})
}

// Blocks end at aligned offsets and at the end of the replay, so no frame
// mixes replayed messages with live ones.
func TestReplay_FramesDoNotMixReplayAndLive(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 200)
		w.log.Slow(50 * time.Millisecond)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		c.replay(10)
		for range 30 {
			w.publish(chat, 3)
		}
		time.Sleep(time.Second)
		got := words(c.take())
		var want []string
		for o := 11; o <= 200; o++ {
			want = append(want, fmt.Sprint("r", o))
		}
		want = append(want, "confirm_history")
		for o := 201; o <= 290; o++ {
			want = append(want, fmt.Sprint(o))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("saw %v", got)
		}
	})
}
