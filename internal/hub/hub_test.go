package hub_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

func TestHub_DeliversToEveryLevel(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		clients := []*client{w.live(chat, plain), w.live(chat, extended), w.live(chat, ours)}
		w.publish(chat, 1)
		w.publish(chat, 3)
		synctest.Wait()
		for _, c := range clients {
			c.expect("1", "2", "3", "4")
		}
	})
}

// Nothing is pushed before Live, and nothing of what came meanwhile is missed.
func TestHub_HoldsUntilLive(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.publish(chat, 2)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		w.publish(chat, 3)
		synctest.Wait()
		c.expect()
		c.sub.Live()
		synctest.Wait()
		c.expect("3", "4", "5")
		c.sub.Live()
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("6")
	})
}

func TestB26_NothingOldForTheFirstSubscriber(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		for round := range uint64(3) { // the later rounds meet a stream that lingers
			w.publish(chat, 5)
			c := w.live(chat, plain)
			if want := (protocol.Span{Epoch: life, First: 1, Last: 6*round + 5}); c.span != want {
				t.Fatalf("subscribed at %v, want %v", c.span, want)
			}
			synctest.Wait()
			c.expect()
			w.publish(chat, 1)
			synctest.Wait()
			c.expect(fmt.Sprint(6*round + 6))
			c.sub.Close()
		}
	})
}

func TestB49_AStreamNeverUsedHasAPosition(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, ours)
		if want := (protocol.Span{Epoch: life, First: 1}); c.span != want {
			t.Fatalf("subscribed at %v, want %v", c.span, want)
		}
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("1")
	})
}

// B28: the first message after a confirmation at k is k+1, also while
// messages are committed all the time, 2,000 a second.
func TestB28_FirstDeliveredFollowsTheConfirmedHead(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	stop := make(chan struct{})
	var publisher sync.WaitGroup
	publisher.Go(func() {
		pace := time.NewTicker(500 * time.Microsecond)
		defer pace.Stop()
		for {
			select {
			case <-stop:
				return
			case <-pace.C:
				w.publish(chat, 1)
			}
		}
	})
	var wg sync.WaitGroup
	codec := hubtest.NewCodec(ours)
	for range 8 {
		wg.Go(func() {
			for range 60 {
				c, err := w.tryJoin(context.Background(), chat, codec, roomy)
				if err != nil {
					t.Error(err)
					return
				}
				changed := c.sink.Changed()
				c.sub.Live()
				<-changed
				<-c.sink.Changed()
				c.sub.Close()
				if at, err := c.position(); err != nil || at.Offset <= c.span.Last {
					t.Errorf("subscribed at %v, came to %v: %v", c.span, at, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	publisher.Wait()
}

func TestB01_BackToBackMessagesAscendOnEveryWire(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	var clients []*client
	for i := range 20 {
		clients = append(clients, w.live(chat, []string{plain, extended, ours}[i%3]))
	}
	const messages = 2000
	for range messages {
		w.publish(chat, 1)
	}
	for _, c := range clients {
		c.await(messages)
	}
}

// await waits until the client has come to the offset without fault.
func (c *client) await(offset uint64) {
	c.Helper()
	deadline := time.After(20 * time.Second)
	for {
		changed := c.sink.Changed()
		at, err := c.position()
		if err != nil {
			c.Fatal(err)
		}
		if at.Offset >= offset {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			c.Fatalf("%s: client stays at %v, want offset %d; %+v", c.stream, at, offset, c.hub.Stats())
		}
	}
}

// B08: many streams interleaved, sizes mixed, each in order.
func TestB08_StreamsInterleaved(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	const streams, messages = 200, 20
	var clients []*client
	for i := range streams {
		clients = append(clients, w.live(fmt.Sprint("s/", i), plain))
	}
	for i := range messages {
		var batches []protocol.Batch
		for s := range streams {
			batches = append(batches, w.log.AppendN(fmt.Sprint("s/", s), 1+(i+s)%3))
		}
		w.hub.Publish(batches)
	}
	for s, c := range clients {
		last := uint64(0)
		for i := range messages {
			last += uint64(1 + (i+s)%3)
		}
		c.await(last)
	}
}

// B10: n+1 is not seen before n, however long n takes.
func TestB10_TheSecondWaitsForTheFirst(t *testing.T) {
	bubble(t, hub.Options{GapDelay: time.Hour}, func(t *testing.T, w *world) {
		c := w.live(chat, plain)
		first, second := w.log.AppendN(chat, 1), w.log.AppendN(chat, 2)
		w.log.Down()
		w.hub.Publish([]protocol.Batch{second, second})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		c.expect()
		w.hub.Publish([]protocol.Batch{first, second, first})
		synctest.Wait()
		c.expect("1", "2", "3")
	})
}

func TestHub_GapIsReadFromTheLogAfterTheDelay(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, plain)
		w.log.AppendN(chat, 3) // their hints are lost
		w.publish(chat, 1)
		synctest.Wait()
		c.expect()
		time.Sleep(4 * time.Millisecond)
		synctest.Wait()
		c.expect()
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		c.expect("1", "2", "3", "4")
		if s := w.hub.Stats(); s.GapsFilled != 1 {
			t.Errorf("%d gaps filled", s.GapsFilled)
		}
	})
}

func TestHub_SwappedHintsNeedNoRead(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.live(chat, plain)
		first, second := w.log.AppendN(chat, 1), w.log.AppendN(chat, 1)
		w.hub.Publish([]protocol.Batch{second})
		w.hub.Publish([]protocol.Batch{first})
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		c.expect("1", "2")
		if n := w.log.Reads("range"); n != 0 {
			t.Errorf("%d reads", n)
		}
	})
}

// A frame is built once for all that share codec and identifier.
func TestHub_EncodesOncePerGroup(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		codecs := []*hubtest.Codec{hubtest.NewCodec(plain), hubtest.NewCodec(ours)}
		for i := range 600 {
			w.join(chat, codecs[i%2], roomy).sub.Live()
		}
		w.join("other", codecs[0], roomy).sub.Live()
		for range 5 {
			w.publish(chat, 3)
			synctest.Wait()
			time.Sleep(time.Second)
		}
		for i, c := range codecs {
			if n := c.Encodes.Load(); n != 5 {
				t.Errorf("codec %d encoded %d times for 5 batches", i, n)
			}
		}
		if s := w.hub.Stats(); s.Encodes != 10 || s.Delivered != 600*15 {
			t.Errorf("%+v", s)
		}
	})
}

// The entry is registered before the head is read: a herd costs one read.
func TestHub_HerdOnANewStreamCostsOneRead(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.AppendN(chat, 7)
		w.log.Slow(100 * time.Millisecond)
		codec := hubtest.NewCodec(ours)
		var wg sync.WaitGroup
		clients := make([]*client, 500)
		for i := range clients {
			wg.Go(func() {
				c, err := w.tryJoin(context.Background(), chat, codec, roomy)
				if err != nil {
					t.Error(err)
					return
				}
				c.sub.Live()
				clients[i] = c
			})
		}
		time.Sleep(50 * time.Millisecond)
		w.publish(chat, 1) // its hint waits for the head
		wg.Wait()
		synctest.Wait()
		if n := w.log.Reads("heads"); n != 1 {
			t.Errorf("%d reads of the head", n)
		}
		for _, c := range clients {
			if c.expectAt(8); c.span.Last < 7 {
				t.Errorf("subscribed at %v", c.span)
			}
		}
	})
}

func TestHub_OneCallerGivingUpLeavesTheReadToOthers(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.log.Slow(100 * time.Millisecond)
		codec := hubtest.NewCodec(ours)
		ctx, cancel := context.WithCancel(context.Background())
		gaveUp, served := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := w.tryJoin(ctx, chat, codec, roomy)
			gaveUp <- err
		}()
		synctest.Wait()
		go func() {
			_, err := w.tryJoin(context.Background(), chat, codec, roomy)
			served <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that gave up: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("the other one: %v", err)
		}
	})
}

func TestHub_SubscribeTellsThatTheLogDoesNotAnswer(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		codec := hubtest.NewCodec(ours)
		w.log.Fault(func(context.Context, string, string) error { return errors.New("disk on fire") })
		if _, err := w.tryJoin(context.Background(), chat, codec, roomy); !errors.Is(err, history.ErrUnavailable) {
			t.Fatalf("error %v", err)
		}
		w.log.Slow(time.Hour)
		began := time.Now()
		if _, err := w.tryJoin(context.Background(), chat, codec, roomy); !errors.Is(err, history.ErrUnavailable) {
			t.Fatalf("error %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("told after %v", took)
		}
		if s := w.hub.Stats(); s.Streams != 0 || s.Subscriptions != 0 {
			t.Errorf("left behind: %+v", s)
		}
		w.log.Fault(nil)
		c := w.live(chat, ours)
		w.publish(chat, 1)
		synctest.Wait()
		c.expect("1")
	})
}

func TestHub_CloseEndsDelivery(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		a, b := w.live(chat, ours), w.live(chat, ours)
		w.publish(chat, 1)
		synctest.Wait()
		a.sub.Close()
		a.sub.Close()
		w.publish(chat, 1)
		synctest.Wait()
		a.expect("1")
		b.expect("1", "2")
		a.sub.Live()
		if _, _, err := a.sub.Replay(context.Background(), protocol.Position{}, nil); !errors.Is(err, hub.ErrClosed) {
			t.Errorf("Replay after Close: %v", err)
		}
		if s := w.hub.Stats(); s.Subscriptions != 1 {
			t.Errorf("%d subscriptions", s.Subscriptions)
		}
	})
}

// B17, B22: subscribing again at once is answered and delivers once.
func TestB17_B22_Churn(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	stop := make(chan struct{})
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				w.publish(chat, 2)
			}
		}
	})
	codec := hubtest.NewCodec(plain)
	var wg sync.WaitGroup
	last := make([]*client, 6)
	for i := range last {
		wg.Go(func() {
			for n := range 150 {
				c, err := w.tryJoin(context.Background(), chat, codec, roomy)
				if err != nil {
					t.Error(err)
					return
				}
				c.sub.Live()
				if last[i] = c; n < 149 {
					c.sub.Close()
				}
				if _, err := c.position(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	publisher.Wait()
	w.publish(chat, 1)
	head, err := w.hub.Head(context.Background(), chat)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range last {
		c.await(head.Last)
		if sent := c.sub.Sent(); sent != head.Head() {
			t.Errorf("sent %v, head %v", sent, head.Head())
		}
		c.sub.Close()
	}
	if s := w.hub.Stats(); s.Subscriptions != 0 {
		t.Errorf("%d subscriptions left", s.Subscriptions)
	}
}

func TestHub_LingeringStreamServesReplayFromMemory(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		w.live(chat, ours).sub.Close()
		w.publish(chat, 50) // nobody listens, but it lingers
		time.Sleep(30 * time.Second)
		c := w.join(chat, hubtest.NewCodec(ours), roomy)
		if _, reason := c.replay(48); reason != "" {
			t.Fatal(reason)
		}
		synctest.Wait()
		c.expect("r49", "r50", "confirm_history")
		if n := w.log.Reads("range"); n != 0 {
			t.Errorf("%d reads", n)
		}
		c.sub.Close()
		time.Sleep(59 * time.Second)
		if n := w.hub.Stats().Streams; n != 1 {
			t.Errorf("%d streams before the time is over", n)
		}
		time.Sleep(3 * time.Second)
		if s := w.hub.Stats(); s.Streams != 0 || s.WindowBytes != 0 {
			t.Errorf("after the time is over: %+v", s)
		}
	})
}

func TestHub_IdleStreamsAreBounded(t *testing.T) {
	bubble(t, hub.Options{MaxIdle: 10}, func(t *testing.T, w *world) {
		kept := w.live(chat, ours)
		for i := range 40 {
			w.live(fmt.Sprint("s/", i), ours).sub.Close()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if n := w.hub.Stats().Streams; n != 11 {
			t.Errorf("%d streams", n)
		}
		w.publish(chat, 1)
		synctest.Wait()
		kept.expect("1")
	})
}

func TestHub_WindowsAreBoundedTogether(t *testing.T) {
	bubble(t, hub.Options{WindowTotal: 40_000}, func(t *testing.T, w *world) {
		var clients []*client
		for i := range 30 {
			clients = append(clients, w.live(fmt.Sprint("s/", i), ours))
			w.publish(fmt.Sprint("s/", i), 50)
			synctest.Wait()
			if n := w.hub.Stats().WindowBytes; n > 40_000 {
				t.Fatalf("windows of %d bytes", n)
			}
		}
		s := w.hub.Stats()
		if s.Evicted == 0 || s.WindowBytes < 20_000 {
			t.Fatalf("%+v", s)
		}
		// The oldest is read from the log, the newest from memory.
		clients[29].replay(10)
		synctest.Wait()
		if n := w.log.Reads("range"); n != 0 {
			t.Errorf("%d reads for the newest window", n)
		}
		clients[0].replay(10)
		synctest.Wait()
		if n := w.log.Reads("range"); n == 0 {
			t.Error("the oldest window was not let go")
		}
		for i, c := range clients {
			c.expectAt(50)
			w.publish(fmt.Sprint("s/", i), 1)
			synctest.Wait()
			c.expectAt(51)
		}
	})
}

func TestHub_RunEndsAndRefuses(t *testing.T) {
	log := hubtest.NewLog(life)
	h := hub.New(log, hub.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Run(ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err := h.Subscribe(context.Background(), chat, protocol.NewAddress(idChat, chat), hubtest.NewCodec(ours), hubtest.NewSink(1))
	if !errors.Is(err, hub.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
	if _, err := h.Head(context.Background(), chat); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("Head: %v", err)
	}
	h.Publish([]protocol.Batch{log.AppendN(chat, 1)})
	h.Sweep()
}

func TestHub_HeadAndRead(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		ctx := context.Background()
		w.log.AppendN(chat, 20)
		read := func(after uint64, epoch protocol.Epoch, limit, want int, wantReason protocol.Reason) {
			t.Helper()
			page, reason, err := w.hub.Read(ctx, chat, protocol.Position{Epoch: epoch, Offset: after}, limit, 1<<20)
			if err != nil || reason != wantReason || len(page.Messages) != want || page.Last < 20 {
				t.Fatalf("%d messages of %v, %q, %v", len(page.Messages), page.Span, reason, err)
			}
			for i, m := range page.Messages {
				if m.Offset != after+1+uint64(i) {
					t.Fatalf("message %d at %d", m.Offset, i)
				}
			}
		}
		for range 2 { // without the stream in memory, and with it
			if span, err := w.hub.Head(ctx, chat); err != nil || span.Head() != (protocol.Position{Epoch: life, Offset: 20}) {
				t.Fatalf("head %v: %v", span, err)
			}
			read(0, 0, 100, 20, "")
			read(5, life, 3, 3, "")
			read(20, life, 3, 0, "")
			read(21, life, 3, 0, protocol.ReasonAhead)
			read(1, life-1, 3, 0, protocol.ReasonEpochChanged)
			w.live(chat, ours)
		}
		w.publish(chat, 10)
		synctest.Wait()
		before := w.log.Reads("range")
		read(20, life, 100, 10, "")
		if n := w.log.Reads("range") - before; n != 0 {
			t.Errorf("%d reads of the log for what is in memory", n)
		}
		w.log.AppendN(chat, 1) // the hint is on its way; its publisher reads
		read(30, life, 100, 1, "")
		w.log.Down()
		if _, _, err := w.hub.Read(ctx, chat, protocol.Position{Offset: 31}, 1, 1); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("Read: %v", err)
		}
		if _, err := w.hub.Head(ctx, chat); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("Head: %v", err)
		}
	})
}

// A repeated confirmation tells a position that the wire has not passed: the
// next message is the one after it.
func TestB22_TellFitsBetweenMessages(t *testing.T) {
	w := start(t, hubtest.NewLog(life), hub.Options{})
	c := w.live(chat, plain)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for range 200 {
			c.sub.Tell(func(sent protocol.Position) []byte {
				return wire(fmt.Sprintf(`{"type":"told","epoch":"%d","offset":%d}`, sent.Epoch, sent.Offset))
			})
		}
	}()
	for range 500 {
		w.publish(chat, 1)
	}
	<-told
	c.await(500)
	at := uint64(0)
	for _, e := range c.take() {
		if e.Type == "message" {
			at++
		} else if e.Position.Offset != at {
			t.Fatalf("told %v after message %d", e.Position, at)
		}
	}
	c.sub.Close()
	if !c.sub.Tell(func(protocol.Position) []byte { return wire(`{"type":"late"}`) }) || len(c.take()) > 0 {
		t.Error("told after Close")
	}
}
