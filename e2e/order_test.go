package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// keepAll are the flags of tests that publish more than retention keeps by
// default.
var keepAll = []string{"--retain-count", "1000000"}

// The acceptance of order on the raw wire: 64 concurrent publishers of 200
// each on one stream, two extended sockets and a plain one (B01, B05).
func TestB01_64PublishersOneOrderOnTheRawWire(t *testing.T) {
	const publishers, each = 64, 200
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	sockets := []*socket{
		dial(t, s.ws(), extended), dial(t, s.ws(), extended), dial(t, s.ws(), plain), dial(t, s.ws(), chronocast),
	}
	for i, sock := range sockets {
		sock.name = fmt.Sprintf("%d %s", i+1, sock.name)
		sock.subscribe("hot")
	}
	began := time.Now()
	if err := p.pool(t.Context(), publishers, each, func(w, i int) (string, string) {
		return "hot", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
	}); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	v := judge(s.log("hot"), true).acknowledged(p.ledger.of("hot"))
	total := 0
	for _, sock := range sockets {
		sock.awaitOffset("hot", publishers*each, 20*time.Second)
		got := sock.messages("hot")
		v.delivered(sock.name, got, 0, true)
		total += inversions(got)
	}
	v.report(t)
	// B05: each publisher's own calls keep their order.
	last := map[int]int{}
	for _, m := range sockets[0].messages("hot") {
		var w, i int
		fmt.Sscanf(m.data, `{"p":%d,"n":%d}`, &w, &i)
		if before, ok := last[w]; ok && i != before+1 {
			t.Fatalf("publisher %d: %d came after %d", w, i, before)
		}
		last[w] = i
	}
	figure(t, "%d publishers x %d on one stream: %d sockets, %d inversions on the raw wire, %.0f msg/s acknowledged",
		publishers, each, len(sockets), total, float64(publishers*each)/took.Seconds())
	if total != 0 {
		t.Errorf("%d inversions", total)
	}
}

// Back to back, many subscribers of each protocol (B01), and many streams of
// mixed sizes interleaved (B08).
func TestB08_ManyStreamsOfMixedSizesStayOrdered(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	streams, each := scale(200, 1000), scale(20, 100)
	sockets := []*socket{dial(t, s.ws(), plain), dial(t, s.ws(), extended), dial(t, s.ws(), chronocast)}
	for _, sock := range sockets {
		for i := range streams {
			sock.send(command{Command: "subscribe", Identifier: identifier(fmt.Sprintf("s/%d", i))})
		}
		for range streams {
			sock.confirmed("s/…")
		}
	}
	filler := strings.Repeat("x", 256<<10)
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(8, 8))
	size := func() int {
		mu.Lock()
		defer mu.Unlock()
		if rnd.IntN(500) == 0 {
			return 256 << 10
		}
		return 10 + rnd.IntN(300)
	}
	if err := p.pool(t.Context(), 20, streams*each/20, func(w, i int) (string, string) {
		return fmt.Sprintf("s/%d", (i*20+w)%streams), fmt.Sprintf(`{"p":%d,"n":%d,"pad":"%s"}`, w, i, filler[:size()])
	}); err != nil {
		t.Fatal(err)
	}
	for _, sock := range sockets {
		sock.awaitMessages(streams*each, 60*time.Second)
	}
	for i := range streams {
		name := fmt.Sprintf("s/%d", i)
		v := judge(s.log(name), true).acknowledged(p.ledger.of(name))
		for _, sock := range sockets {
			v.delivered(sock.name+" "+name, sock.messages(name), 0, true)
		}
		v.report(t)
	}
}

// B11: history polled in a tight loop while 64 publish continues at last+1
// exactly, on every page.
func TestB11_PollingHistoryNeverSkipsALateCommit(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	each := scale(40, 200)
	done := make(chan error, 1)
	go func() {
		done <- p.pool(context.Background(), 64, each, func(w, i int) (string, string) {
			return "polled", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	}()
	var last uint64
	epoch := s.head("polled").Epoch
	for last < uint64(64*each) {
		pg := s.history("polled", fmt.Sprintf("%s:%d", epoch, last), 0)
		if pg.status != 200 {
			t.Fatalf("page after %d: %d %s", last, pg.status, pg.Error)
		}
		for _, m := range pg.Messages {
			if m.Offset != last+1 {
				t.Fatalf("%d came after %d", m.Offset, last)
			}
			last++
		}
		if pg.Last < last {
			t.Fatalf("the page's head is %d, below its last message %d", pg.Last, last)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			done = nil
		default:
		}
	}
	if done != nil {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// B67: the same messages by plain, extended and our sockets, live and by
// replay, and by HTTP history: one epoch, one offset, one payload hash.
func TestB67_EveryPathGivesTheSameEpochOffsetAndBytes(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	odd := []string{
		`{"a":"<script>&amp;</script>","b":1e3}`, ` {"spaces" : [ 1 , 2 ] } `, `"text with   and é and \u00e9"`,
		`0`, `false`, `null`, `""`, `[]`, `{}`, `12345678901234567890`, `1.0`, `-0`, `{"k":1,"k":2}`, `"\ud83d\ude00 😀"`,
		`"` + strings.Repeat("ä", 5000) + `"`, `{"__proto__":{"x":1},"constructor":null}`, "[1,\n\t2]",
	}
	live := map[string]*socket{}
	for _, proto := range subprotocols {
		live["live "+proto] = dial(t, s.ws(), proto)
		live["live "+proto].subscribe("same")
	}
	at := make([]place, len(odd))
	for i, payload := range odd {
		at[i] = p.must("same", payload)
	}
	begin := place{at[0].Epoch, 0}
	for _, proto := range []string{extended, chronocast} {
		sock := dial(t, s.ws(), proto)
		sock.resume("same", begin)
		live["replay "+proto] = sock
	}
	for _, proto := range subprotocols {
		// The position inside the identifier works for the plain client too.
		sock := dial(t, s.ws(), proto)
		sock.send(command{Command: "subscribe",
			Identifier: fmt.Sprintf(`{"channel":"$pubsub","stream_name":"same","epoch":"%s","offset":"0"}`, begin.Epoch)})
		live["identifier "+proto] = sock
	}
	// Stored bytes are what was published, but for space around the JSON text.
	v := judge(s.log("same"), false)
	for i, payload := range odd {
		if got := v.byAt[at[i]]; sha(got) != sha(payload) && got != strings.TrimSpace(payload) {
			t.Errorf("%v: history has %q, published was %q", at[i], got, payload)
		}
	}
	for name, sock := range live {
		sock.awaitMessages(len(odd), 10*time.Second)
		v.delivered(name, sock.messages("same"), 0, true)
	}
	v.report(t)
}

// B41: one atomic batch of 100 that shares its time, read with limit 1: 100
// pages, 100 messages. B38: 5,000 behind with limit 50, contiguous upward.
func TestB38_B41_PagesRunContiguousUpward(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.bulk("batch", 100)
	p.bulk("behind", 5000)
	for _, c := range []struct {
		stream       string
		total, limit int
	}{{"batch", 100, 1}, {"behind", 5000, 50}} {
		epoch, last, pages := s.head(c.stream).Epoch, uint64(0), 0
		for {
			pg := s.history(c.stream, fmt.Sprintf("%s:%d", epoch, last), c.limit)
			for _, m := range pg.Messages {
				if m.Offset != last+1 {
					t.Fatalf("%s: %d came after %d", c.stream, m.Offset, last)
				}
				last++
			}
			pages++
			if !pg.More {
				break
			}
		}
		if last != uint64(c.total) || pages != c.total/c.limit {
			t.Errorf("%s: %d messages in %d pages, want %d in %d", c.stream, last, pages, c.total, c.total/c.limit)
		}
	}
}

// B40: random, overlapping, reversed ranges; the union is complete, because the
// server keeps no state of a reader.
func TestB40_HistoryIsStateless(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.bulk("ranges", 500)
	epoch := s.head("ranges").Epoch
	seen := map[uint64]string{}
	rnd := rand.New(rand.NewPCG(40, 1))
	ask := func(after, limit int) {
		for i, m := range s.history("ranges", fmt.Sprintf("%s:%d", epoch, after), limit).Messages {
			if m.Offset != uint64(after+1+i) {
				t.Fatalf("after %d limit %d: message %d is %d", after, limit, i, m.Offset)
			}
			if old, ok := seen[m.Offset]; ok && old != string(m.Data) {
				t.Fatalf("%d is %s now and was %s", m.Offset, m.Data, old)
			}
			seen[m.Offset] = string(m.Data)
		}
	}
	for range 100 {
		ask(rnd.IntN(501), 1+rnd.IntN(40))
	}
	for after := 500; after >= 0; after -= 30 {
		ask(max(after, 0), 30)
	}
	ask(0, 30)
	if len(seen) != 500 {
		t.Errorf("the union holds %d of 500", len(seen))
	}
}

// B28: live-only subscribers under full load: a confirmation with offset k
// means that the first message delivered is k+1, always. Run with every
// protocol; unsubscribing ends delivery for good.
func TestB28_TheFirstMessageAfterTheConfirmIsTheNextOffset(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, 16, 0, func(w, i int) (string, string) { return "busy", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i) })
	}()
	rounds := scale(150, 1000)
	for i := range rounds {
		sock := dial(t, s.ws(), subprotocols[i%3])
		at := sock.subscribe("busy").Streams["busy"]
		sock.awaitMessages(3, 10*time.Second)
		for j, m := range sock.messages("busy")[:3] {
			if m.place != (place{at.Epoch, at.Offset + uint64(j) + 1}) {
				t.Fatalf("round %d (%s): confirmed at %v, message %d is %v", i, sock.proto, at, j+1, m.place)
			}
		}
		sock.close()
	}
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	figure(t, "B28: %d live-only subscriptions under load, each began at confirm+1", rounds)
}

// I8: resuming under full load, with every protocol that can: from the message
// after the position on, history and live join without hole or repeat on the
// raw wire. A subscriber in replay has to be held back from live messages.
func TestI8_ResumingUnderLoadHasNoSeam(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, 24, 0, func(w, i int) (string, string) { return "seam", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i) })
	}()
	eventually(t, 10*time.Second, "some history", func() bool { return p.ledger.total() > 600 })
	rnd := rand.New(rand.NewPCG(8, 1))
	rounds := scale(150, 1000)
	for i := range rounds {
		head := s.head("seam")
		at := place{head.Epoch, head.Last - uint64(rnd.IntN(500))}
		sock := dial(t, s.ws(), subprotocols[1+i%2])
		if i%3 == 0 { // the position inside the identifier
			sock.send(command{Command: "subscribe",
				Identifier: fmt.Sprintf(`{"channel":"$pubsub","stream_name":"seam","epoch":"%s","offset":"%d"}`, at.Epoch, at.Offset)})
		} else {
			sock.resume("seam", at)
		}
		sock.awaitOffset("seam", head.Last+100, 10*time.Second)
		sock.close()
		for j, m := range sock.messages("seam") {
			if m.place != (place{at.Epoch, at.Offset + uint64(j) + 1}) {
				t.Fatalf("round %d (%s): resumed after %v, message %d is %v", i, sock.proto, at, j+1, m.place)
			}
		}
	}
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	figure(t, "I8: %d resumes under load, history and live joined without a seam", rounds)
}
