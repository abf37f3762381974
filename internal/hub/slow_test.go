package hub_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// B127, B128: a client that stops reading costs its own bounded queue. The
// others see every message at once, and it sees every message later.
func TestB127_B128_StoppedClientAmongHealthyOnes(t *testing.T) {
	for name, limits := range map[string]history.TailLimits{
		"from memory":  {WindowCount: 10_000, WindowBytes: 8 << 20},
		"from the log": {WindowCount: 10},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hub.Options{Tail: limits}, func(t *testing.T, w *world) {
				stopped := w.join(chat, hubtest.NewCodec(plain), 4000)
				stopped.sub.Live()
				stopped.sink.Stall()
				var healthy []*client
				for range 20 {
					healthy = append(healthy, w.live(chat, ours))
				}
				for i := range uint64(60) {
					w.publish(chat, 10)
					synctest.Wait()
					for _, c := range healthy {
						c.expectAt(10 * (i + 1))
					}
					if n := stopped.sink.Queued(); n > 4000 {
						t.Fatalf("%d bytes queued", n)
					}
					time.Sleep(30 * time.Millisecond)
				}
				stopped.expectAt(0)
				stopped.sink.Resume()
				synctest.Wait()
				time.Sleep(time.Second)
				stopped.expectAt(600)
				w.publish(chat, 1)
				synctest.Wait()
				stopped.expectAt(601)
				if n := w.hub.Stats().Lagged; n == 0 {
					t.Error("the client never lagged")
				}
			})
		})
	}
}

// B130: a burst is no reason to lose a client that reads.
func TestB130_BurstToAHealthyClientWithASmallQueue(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.join(chat, hubtest.NewCodec(plain), 64<<10)
		c.sub.Live()
		c.sink.Stall()
		for range 100 {
			w.publish(chat, 100)
		}
		for at := uint64(0); at < 10_000; {
			synctest.Wait()
			c.sink.Read(50)
			p, err := c.position()
			if err != nil {
				t.Fatal(err)
			}
			if p.Offset == at {
				time.Sleep(time.Millisecond)
			}
			at = p.Offset
		}
		if reason := c.sink.WasCut(); reason != "" {
			t.Errorf("cut with %q", reason)
		}
	})
}

// B131: slower than the stream for a while: bounded meanwhile, exact after.
func TestB131_SlowLinkReachesTheHead(t *testing.T) {
	bubble(t, hub.Options{Tail: history.TailLimits{WindowCount: 50}}, func(t *testing.T, w *world) {
		c := w.join(chat, hubtest.NewCodec(ours), 2000)
		c.sub.Live()
		c.sink.Stall()
		for range 300 {
			w.publish(chat, 10)
			time.Sleep(10 * time.Millisecond)
			c.sink.Read(1)
			if n := c.sink.Queued(); n > 8000 { // the bound, or one push on an empty queue
				t.Fatalf("%d bytes queued", n)
			}
		}
		c.sink.Resume()
		time.Sleep(2 * time.Second)
		c.expectAt(3000)
	})
}

// A single frame larger than the room below the low-water mark must not spin.
func TestSlow_FrameThatNeedsAnEmptyQueue(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.join(chat, hubtest.NewCodec(plain), 100)
		c.sub.Live()
		c.sink.Stall()
		w.publish(chat, 1)
		for range 10 {
			w.publish(chat, 1)
			time.Sleep(time.Minute)
		}
		for range 50 {
			c.sink.Read(1)
			time.Sleep(time.Second)
		}
		c.expectAt(11)
	})
}

func TestSlow_RoomAfterCloseIsIgnored(t *testing.T) {
	bubble(t, hub.Options{}, func(t *testing.T, w *world) {
		c := w.join(chat, hubtest.NewCodec(plain), 100)
		c.sub.Live()
		c.sink.Stall()
		for range 5 {
			w.publish(chat, 3)
			synctest.Wait()
		}
		c.sub.Close()
		queued := c.sink.Queued()
		if queued == 0 {
			t.Fatal("nothing was queued")
		}
		at := c.sub.Sent()
		c.sink.Resume()
		time.Sleep(time.Minute)
		w.publish(chat, 1)
		synctest.Wait()
		c.expectAt(at.Offset)
	})
}

// B136: more hints than the hub takes are not lost: they are read from the
// log.
func TestB136_OverflowIsReadFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := hubtest.NewLog(life)
		w := &world{T: t, log: log, hub: hub.New(log, hub.Options{Shards: 1, InboxMessages: 100})}
		a, b := w.live(chat, plain), w.live("other", ours)
		for range 30 { // nothing runs yet that would take them in
			w.publish(chat, 10)
			w.publish("other", 7)
		}
		if n := w.hub.Stats().Overflowed; n == 0 {
			t.Fatal("nothing overflowed")
		}
		w2 := run(t, w)
		time.Sleep(time.Second)
		a.expectAt(300)
		b.expectAt(210)
		w2.publish(chat, 100) // the inbox is free again
		overflowed := w.hub.Stats().Overflowed
		w2.publish("other", 1)
		synctest.Wait()
		a.expectAt(400)
		if n := w.hub.Stats().Overflowed; n > overflowed+1 {
			t.Errorf("%d messages overflowed", n)
		}
		time.Sleep(time.Second)
		b.expectAt(211)
	})
}

// B02: many messages for 9,000 subscribers do not hold up a small stream of
// the same shard for more than a chunk.
func TestB02_LargeStreamYieldsToSmallOnes(t *testing.T) {
	const large, chunk = 9000, 256
	log := hubtest.NewLog(life)
	w := start(t, log, hub.Options{Shards: 1})
	var pushed, published, seen atomic.Int64
	var once sync.Once
	delivered := make(chan struct{})
	ask, asked := make(chan struct{}), make(chan struct{})
	go func() {
		<-ask
		w.publish("small", 1)
		close(asked)
	}()
	codec := hubtest.NewCodec(plain)
	for range large {
		subscribe(t, w, "large", codec, sinkFunc(func() {
			if n := pushed.Add(1); n == 1000 {
				close(ask)
				<-asked
				published.Store(n)
			}
		}))
	}
	subscribe(t, w, "small", codec, sinkFunc(func() {
		once.Do(func() {
			seen.Store(pushed.Load())
			close(delivered)
		})
	}))
	w.publish("large", 1)
	<-delivered
	if waited := seen.Load() - published.Load(); waited > chunk {
		t.Errorf("the small stream waited for %d pushes of the large one", waited)
	}
}

func subscribe(t *testing.T, w *world, stream string, codec protocol.Codec, sink hub.Sink) *hub.Subscription {
	t.Helper()
	sub, _, err := w.hub.Subscribe(t.Context(), stream, protocol.NewAddress(`{"channel":"x"}`, stream), codec, sink)
	if err != nil {
		t.Fatal(err)
	}
	sub.Live()
	return sub
}

// sinkFunc is a sink that always has room; it is called for every push.
type sinkFunc func()

func (f sinkFunc) Push([][]byte) bool {
	f()
	return true
}
func (f sinkFunc) Room(g func())                 { go g() }
func (f sinkFunc) Cut(protocol.DisconnectReason) {}

// What is published while a stream is being written goes out together.
func TestSlow_NaturalBatching(t *testing.T) {
	log := hubtest.NewLog(life)
	w := start(t, log, hub.Options{Shards: 1})
	codec := hubtest.NewCodec(ours)
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	var pushes atomic.Int64
	blocked := true
	subscribe(t, w, chat, codec, sinkFunc(func() {
		if pushes.Add(1); blocked {
			blocked = false
			entered <- struct{}{}
			<-leave
		}
	}))
	w.publish(chat, 1)
	<-entered
	for range 99 {
		w.publish(chat, 1)
	}
	last := w.join(chat, codec, roomy)
	close(leave)
	last.replay(99)
	last.await(100)
	last.sub.Close()
	w.publish(chat, 1)
	done := w.join(chat, codec, roomy)
	done.replay(100)
	done.await(101)
	if n := pushes.Load(); n > 3 {
		t.Errorf("%d pushes for 101 messages", n)
	}
}
