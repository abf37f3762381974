package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// wireSink hands on what is pushed and keeps nothing.
type wireSink func(frames [][]byte)

func (f wireSink) Push(frames [][]byte) bool {
	f(frames)
	return true
}
func (f wireSink) Room(g func())                 { go g() }
func (f wireSink) Cut(protocol.DisconnectReason) {}

// A delivery allocates nothing: what a broadcast allocates (a place in the
// inbox, the frame, now and then a larger window) is the same for 100
// subscribers as for 2,000, and not more than 8.
func TestFanOut_DeliveriesAllocateNothing(t *testing.T) {
	per := func(subscribers, identifiers int) float64 {
		f := newFanOut(t, subscribers, identifiers)
		batch, data := make([]protocol.Batch, 1), []byte(`"x"`)
		for range 50 {
			f.one(batch, data)
		}
		return testing.AllocsPerRun(300, func() { f.one(batch, data) })
	}
	few, many := per(100, 1), per(2000, 1)
	t.Logf("allocations of a broadcast: %.1f to 100 subscribers, %.1f to 2,000", few, many)
	if many > few+2 || many > 8 {
		t.Errorf("%.1f allocations to 2,000 subscribers, %.1f to 100", many, few)
	}
	// With an identifier each the frame is the one thing a delivery needs.
	if own := per(1000, 1000); own > 1000+8 {
		t.Errorf("%.1f allocations to 1,000 subscribers with an identifier each", own)
	}
}

// What is written beside a payload is small, and the HTML in it is as it came.
func TestFanOut_BytesOnTheWire(t *testing.T) {
	html := `"<turbo-stream action=\\"append\\" target=\\"messages\\"><template>` +
		strings.Repeat(`<p class=\\"m\\">1 < 2 && 3 > 2</p>`, 80) + `</template></turbo-stream>"`
	for _, codec := range protocol.Codecs() {
		w := start(t, hubtest.NewLog(life), hub.Options{})
		got := make(chan []byte, 1)
		sub, _, err := w.hub.Subscribe(t.Context(), chat, protocol.NewAddress(idChat, chat), codec, wireSink(func(frames [][]byte) {
			got <- bytes.Join(frames, nil)
		}))
		if err != nil {
			t.Fatal(err)
		}
		sub.Live()
		w.hub.Publish([]protocol.Batch{w.log.Append(chat, html)})
		wire := <-got
		if !bytes.Contains(wire, []byte(html)) {
			t.Errorf("%s: the payload is not on the wire as it came", codec.Name())
		}
		if over := len(wire) - len(html); over > 150 {
			t.Errorf("%s: %d bytes beside a payload of %d", codec.Name(), over, len(html))
		}
	}
}

// A large payload is copied once, not once for each connection.
func TestFanOut_LargePayloadIsCopiedOnce(t *testing.T) {
	const size, rounds = 80_500, 20
	f := newFanOut(t, 1000, 1)
	batch, data := make([]protocol.Batch, 1), []byte(`"`+strings.Repeat("x", size-2)+`"`)
	f.one(batch, data)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		f.one(batch, data)
	}
	runtime.ReadMemStats(&after)
	per := (after.TotalAlloc - before.TotalAlloc) / rounds
	t.Logf("%d bytes allocated for a broadcast of %d to 1,000 subscribers", per, size)
	if per > 2*size {
		t.Errorf("%d bytes allocated for a broadcast of %d to 1,000 subscribers", per, size)
	}
}

// What was pushed stays as it was, whatever is sent later.
func TestFanOut_SharedFramesAreNotTouchedAgain(t *testing.T) {
	bubble(t, hub.Options{TurnSize: 3}, func(t *testing.T, w *world) {
		var clients []*client
		for range 10 {
			c := w.live(chat, ours)
			c.sink.Watch(nil)
			clients = append(clients, c)
		}
		for i := range 40 {
			w.publish(chat, 1+i%7)
			synctest.Wait()
		}
		for _, c := range clients {
			for _, f := range c.sink.Frames() {
				c.frame(f)
			}
			c.expectAt(5*28 + 1 + 2 + 3 + 4 + 5)
		}
	})
}

// Members come and go while passes are under way on several workers; who stays
// gets every message in order at once, without the log.
func TestFanOut_EveryoneWhoStaysGetsEveryMessage(t *testing.T) {
	const stay, messages = 60, 200
	w := start(t, hubtest.NewLog(life), hub.Options{Shards: 4, TurnSize: 5, SweepEvery: time.Hour})
	var clients []*client
	codec := hubtest.NewCodec(ours)
	for range stay {
		c := w.join(chat, codec, roomy)
		c.sub.Live()
		clients = append(clients, c)
	}
	var churn sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		churn.Go(func() {
			var mine []*client
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := w.tryJoin(context.Background(), chat, codec, roomy)
				if err != nil {
					t.Error(err)
					return
				}
				c.sub.Live()
				if mine = append(mine, c); len(mine) > 20 {
					mine[0].sub.Close()
					if _, err := mine[0].position(); err != nil {
						t.Error(err)
					}
					mine = mine[1:]
				}
			}
		})
	}
	for i := range messages {
		w.publish(chat, 1)
		if i%10 == 9 {
			clients[i%stay].await(uint64(i + 1))
		}
	}
	close(stop)
	churn.Wait()
	for _, c := range clients {
		c.await(messages)
	}
	if s := w.hub.Stats(); s.Lagged != 0 || w.log.Reads("range") != 0 {
		t.Errorf("%d times somebody was passed over, %d reads of the log", s.Lagged, w.log.Reads("range"))
	}
}

// A stream that has been written for long rests alone: others of its shard are
// served at once, and it never rests longer than it was written, or 4 ms.
func TestRest_HoldsUpNoOtherStream(t *testing.T) {
	bubble(t, hub.Options{Shards: 1}, func(t *testing.T, w *world) {
		codec := hubtest.NewCodec(plain)
		var large, small []time.Time
		var writes atomic.Int64
		writes.Store(int64(3 * time.Millisecond))
		subscribe(t, w, "large", codec, sinkFunc(func() {
			large = append(large, time.Now())
			time.Sleep(time.Duration(writes.Load()))
		}))
		subscribe(t, w, "small", codec, sinkFunc(func() { small = append(small, time.Now()) }))
		began := time.Now()
		w.publish("large", 1) // written until 3 ms, rests until 6
		time.Sleep(4 * time.Millisecond)
		w.publish("small", 1)
		w.publish("large", 1)
		synctest.Wait()
		writes.Store(int64(time.Second)) // written from 6 ms on, rests 4 ms all the same
		time.Sleep(1004 * time.Millisecond)
		w.publish("large", 1)
		synctest.Wait()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		at := func(all []time.Time) (ms []int64) {
			for _, a := range all {
				ms = append(ms, a.Sub(began).Milliseconds())
			}
			return ms
		}
		if got := at(small); !slices.Equal(got, []int64{4}) {
			t.Errorf("the small stream was served at %v ms", got)
		}
		if got := at(large); !slices.Equal(got, []int64{0, 6, 1010}) {
			t.Errorf("the large stream was served at %v ms", got)
		}
	})
}

// fairness returns how long messages of a stream with 100 subscribers took to
// the last of them, beside a stream with 9,000 whose every push costs cost.
func fairness(t *testing.T, turn int, cost time.Duration) []time.Duration {
	t.Helper()
	w := start(t, hubtest.NewLog(life), hub.Options{Shards: 1, TurnSize: turn, SweepEvery: time.Hour})
	codec := hubtest.NewCodec(plain)
	var large atomic.Int64
	for range 9000 {
		subscribe(t, w, "large", codec, sinkFunc(func() {
			for until := time.Now().Add(cost); time.Now().Before(until); {
			}
			large.Add(1)
		}))
	}
	var left atomic.Int64
	all := make(chan time.Time, 1)
	for range 100 {
		subscribe(t, w, "small", codec, sinkFunc(func() {
			if left.Add(-1) == 0 {
				all <- time.Now()
			}
		}))
	}
	var took []time.Duration
	for range 12 {
		large.Store(0)
		w.publish("large", 1)
		for i := range 4 { // at different moments of the large pass
			for large.Load() < int64(1+i*2200) {
				runtime.Gosched()
			}
			left.Store(100)
			began := time.Now()
			w.publish("small", 1)
			took = append(took, (<-all).Sub(began))
		}
		for large.Load() < 9000 {
			runtime.Gosched()
		}
	}
	slices.Sort(took)
	return took
}

// B02: strict first-come order has a small stream wait for the whole pass of a
// large one.
func TestB02_SmallStreamBesideALargeOne(t *testing.T) {
	const cost = 2 * time.Microsecond
	strict, fair := fairness(t, 1<<30, cost), fairness(t, 0, cost)
	p99 := func(d []time.Duration) time.Duration { return d[len(d)*99/100] }
	t.Logf("p99 %v, p50 %v; in strict order of arrival %v, %v", p99(fair), fair[len(fair)/2], p99(strict), strict[len(strict)/2])
	if 2*p99(fair) > p99(strict) {
		t.Errorf("p99 %v beside a large stream, %v in strict order of arrival", p99(fair), p99(strict))
	}
}

// heap returns the bytes in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What a subscription keeps in memory while nothing happens: in one stream with
// everybody else, with an identifier of its own, and in a stream of its own.
func TestMemory_OfASubscription(t *testing.T) {
	codec := protocol.Codecs()[0]
	sink := sinkFunc(func() {})
	for _, c := range []struct {
		name  string
		n     int
		limit uint64 // bytes
		where func(i int) (stream, identifier string)
	}{
		{"one stream", 100_000, 96, func(int) (string, string) { return chat, idChat }},
		{"one stream, own identifier", 50_000, 560, func(i int) (string, string) {
			return chat, fmt.Sprintf(`{"channel":"$pubsub","stream_name":"chat/42","user":%d}`, i)
		}},
		{"own stream", 20_000, 1300, func(i int) (string, string) {
			name := fmt.Sprintf("answers/%d", i)
			return name, fmt.Sprintf(`{"channel":"$pubsub","stream_name":%q}`, name)
		}},
	} {
		w := start(t, hubtest.NewLog(life), hub.Options{SweepEvery: time.Hour})
		subs := make([]*hub.Subscription, c.n)
		if c.name == "own stream" {
			for i := range subs { // the log in memory is not what is measured
				stream, _ := c.where(i)
				w.log.Append(stream)
			}
		}
		before := heap()
		for i := range subs {
			stream, identifier := c.where(i)
			sub, _, err := w.hub.Subscribe(t.Context(), stream, protocol.NewAddress(identifier, stream), codec, sink)
			if err != nil {
				t.Fatal(err)
			}
			sub.Live()
			subs[i] = sub
		}
		per := (heap() - before) / uint64(c.n)
		t.Logf("%s: %d bytes a subscription", c.name, per)
		if per > c.limit {
			t.Errorf("%s: %d bytes a subscription, want at most %d", c.name, per, c.limit)
		}
		for _, sub := range subs {
			sub.Close()
		}
	}
}

// B77: 10,000 clients come back at once, 100 messages behind. They share the
// frames; what each costs is its subscription and what it has to catch up.
func BenchmarkHerd(b *testing.B) {
	const clients, behind = 10_000, 100
	log := hubtest.NewLog(life)
	codec := protocol.Codecs()[0]
	b.ReportAllocs()
	for b.Loop() {
		h := hub.New(log, hub.Options{SweepEvery: time.Hour})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		first, _, err := h.Subscribe(ctx, chat, protocol.NewAddress(idChat, chat), codec, sinkFunc(func() {}))
		if err != nil {
			b.Fatal(err)
		}
		h.Publish([]protocol.Batch{log.AppendN(chat, behind)})
		at := first.Sent()
		addr := protocol.NewAddress(idChat, chat)
		var left atomic.Int64
		left.Store(clients)
		all := make(chan struct{})
		done := wire(`{"type":"confirm_history"}`)
		sink := wireSink(func(frames [][]byte) {
			if &frames[len(frames)-1][0] == &done[0] && left.Add(-1) == 0 {
				close(all)
			}
		})
		for range clients {
			sub, _, err := h.Subscribe(ctx, chat, addr, codec, sink)
			if err != nil {
				b.Fatal(err)
			}
			if _, reason, err := sub.Replay(ctx, at, done); err != nil || reason != "" {
				b.Fatal(reason, err)
			}
		}
		<-all
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/clients, "ns/client")
}
