package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// A deploy: both nodes start anew with nothing in memory, and all clients come
// back at once, each 100 messages behind. A few dozen reads of the log serve
// all of them.
func TestNodes_AHerdThatReturnsCostsAFewReads(t *testing.T) {
	nodes := newNodes(t, 2, pgtest.Database(t), keepAll...)
	p := newPublisher(t, nodes[0].url(""))
	p.bulk("herd", 1000)
	at := place{nodes[0].head("herd").Epoch, 900}
	for _, s := range nodes {
		s.terminate(15 * time.Second)
		s.start()
	}
	v := judge(nodes[0].log("herd"), true)
	reads := func() (n float64) {
		for _, s := range nodes {
			more, ok := s.metric("chronocast_log_reads_total")
			if !ok {
				t.Fatal("no metric log_reads_total")
			}
			n += more
		}
		return n
	}
	before := reads()
	herd := scale(1000, 10_000)
	socks := make([]*socket, herd)
	took := make([]time.Duration, herd)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 512)
	began := time.Now()
	for i := range herd {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			start := time.Now()
			sock, _, err := tryDial(t, nodes[i%2].ws(), dialOptions{}, subprotocols[1+i%2])
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			sock.resume("herd", at)
			if !sock.tryUntil(60*time.Second, func() bool { return len(sock.delivered) >= 100 }) {
				t.Errorf("client %d has %d of 100", i, len(sock.messages("herd")))
			}
			socks[i], took[i] = sock, time.Since(start)
		})
	}
	wg.Wait()
	all := time.Since(began)
	queries := reads() - before
	for i, sock := range socks {
		if sock == nil {
			continue
		}
		v.delivered(fmt.Sprintf("client %d", i), sock.messages("herd"), at.Offset, true)
	}
	v.report(t)
	// Each second of sweeping is a read on each node, beside those of the herd.
	if bound := 48 + 2*all.Seconds(); queries > bound {
		t.Errorf("%v reads of the log for %d clients, more than %.0f", queries, herd, bound)
	}
	figure(t, "%d clients returned to 2 fresh nodes at once, 100 behind: %v reads of the log; all caught up in %v, p50 %v, p99 %v, 0 resets",
		herd, queries, all.Round(time.Millisecond), percentile(took, 0.5).Round(time.Millisecond), percentile(took, 0.99).Round(time.Millisecond))
}
