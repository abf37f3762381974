package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the outside writer of B110
)

// B10, B104: the server is frozen in mid-load. Callers fail fast by their own
// deadline or wait; after it continues everything heals and nothing was lost,
// doubled or put out of order.
func TestB10_AFrozenServerHeals(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	cl := ours(t, s.ws(), "start", "frozen")
	sock := dial(t, s.ws(), extended)
	sock.subscribe("frozen")
	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, 16, 0, func(w, i int) (string, string) { return "frozen", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i) })
	}()
	for range scale(3, 20) {
		before := p.ledger.total()
		eventually(t, 10*time.Second, "publishing goes on", func() bool { return p.ledger.total() > before+100 })
		s.freeze()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := p.once(short, "other", "", "application/json", []byte(`1`)); err == nil {
			t.Error("a frozen server answered")
		}
		cancel()
		s.thaw()
	}
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	last := p.must("frozen", `"end"`).Offset
	cl.awaitLast("frozen", last, 20*time.Second)
	sock.awaitOffset("frozen", last, 20*time.Second)
	judge(s.log("frozen"), true).acknowledged(p.ledger.of("frozen")).
		delivered("bundled client", cl.messages("frozen"), 0, true).
		delivered("socket", sock.messages("frozen"), 0, true).report(t)
	throughOurClient.Add(int64(last))
}

// B94: a replay larger than a connection's queue is paged, in order and without
// a loop of reconnects. What is larger than the limit was refused at publish
// (B91).
func TestB94_AReplayLargerThanTheQueueIsPaged(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	var first place
	for i := range 60 {
		at := p.must("heavy", fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i+1, strings.Repeat("z", 100<<10)))
		if i == 0 {
			first = at
		}
	}
	v := judge(s.log("heavy"), true)
	for _, proto := range []string{extended, chronocast} {
		sock := dial(t, s.ws(), proto)
		sock.resume("heavy", place{first.Epoch, 0})
		sock.awaitMessages(60, 20*time.Second)
		v.delivered(proto, sock.messages("heavy"), 0, true)
	}
	cl := ours(t, px.ws(), "start", "heavy")
	cl.awaitCount("heavy", 60, 20*time.Second)
	v.delivered("bundled client", cl.messages("heavy"), 0, true).report(t)
	if n := px.accepted.Load(); n != 1 {
		t.Errorf("the replay took %d connections", n)
	}
}

// B110: an outside program holds the write lock of the database. For 2 s:
// publishes wait and are stored. For longer than the publish deadline: 503 with
// Retry-After. History, head and live sockets go on all the while.
func TestB110_AnOutsideWriterHoldsTheLock(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.numbered("locked", 10)
	cl := ours(t, s.ws(), "start", "locked")
	cl.awaitCount("locked", 10, 10*time.Second)
	db, err := sql.Open("sqlite", "file:"+s.db+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec := func(q string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	readsGoOn := func() {
		t.Helper()
		for range 10 {
			began := time.Now()
			if pg := s.history("locked", "0", 0); pg.status != 200 || len(pg.Messages) < 10 {
				t.Errorf("history under a foreign lock: %d", pg.status)
			}
			if h := s.head("locked"); h.status != 200 {
				t.Errorf("head under a foreign lock: %d", h.status)
			}
			sock := dial(t, s.ws(), extended)
			sock.subscribe("locked")
			sock.close()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("reads took %v under a foreign lock", took)
			}
		}
	}

	exec("BEGIN IMMEDIATE")
	stored := make(chan answer, 1)
	began := time.Now()
	go func() {
		a, err := p.once(context.Background(), "locked", "", "application/json", []byte(`{"n":11}`))
		if err != nil {
			a.Error = err.Error()
		}
		stored <- a
	}()
	readsGoOn()
	pause(2*time.Second - time.Since(began))
	select {
	case a := <-stored:
		t.Errorf("answered %d %s while the lock was held", a.status, a.Error)
	default:
	}
	exec("ROLLBACK")
	a := <-stored
	if a.status != http.StatusCreated {
		t.Errorf("after 2 s of a foreign lock: %d %s %s, want 201", a.status, a.Error, a.Message)
	}
	cl.awaitLast("locked", 11, 5*time.Second)

	exec("BEGIN IMMEDIATE")
	began = time.Now()
	a, err = p.once(t.Context(), "locked", "", "application/json", []byte(`{"n":12}`))
	if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("a foreign lock past the deadline: %d %q Retry-After %q %v, want 503", a.status, a.Error, a.header.Get("Retry-After"), err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the 503 took %v", took)
	}
	readsGoOn()
	exec("ROLLBACK")
	at := p.must("locked", `"after"`)
	cl.awaitLast("locked", at.Offset, 10*time.Second)
	judge(s.log("locked"), false).delivered("bundled client", cl.messages("locked"), 0, true).report(t)
}

// B127: one client stops reading while the stream is flooded. The healthy ones
// get everything promptly, the stopped one is cut, memory stays bounded.
func TestB127_AStoppedReaderHarmsNobody(t *testing.T) {
	s := newServer(t, append([]string{"--write-stall", "3s"}, keepAll...)...)
	p := newPublisher(t, s.url(""))
	var healthy []*socket
	for i := range 40 {
		sock := dial(t, s.ws(), subprotocols[i%3])
		sock.subscribe("flood")
		healthy = append(healthy, sock)
	}
	pad := strings.Repeat("f", 30<<10)
	var handed []time.Time // by n-1
	flood := func(count int) {
		t.Helper()
		if err := p.pool(t.Context(), 1, count, func(w, i int) (string, string) {
			pause(5 * time.Millisecond)
			handed = append(handed, time.Now())
			return "flood", fmt.Sprintf(`{"n":%d,"pad":"%s"}`, len(handed), pad)
		}); err != nil {
			t.Fatal(err)
		}
	}
	total := scale(400, 2000)
	calm := total / 4 // messages before the stopped reader comes
	flood(calm)
	stuck, _, err := tryDial(t, s.ws(), dialOptions{slow: true, stuck: true}, extended)
	if err != nil {
		t.Fatal(err)
	}
	stuck.send(command{Command: "subscribe", Identifier: identifier("flood")})
	base := s.rss()
	flood(total - calm)
	grown := s.rss() - base

	var without, with []time.Duration
	v := judge(s.log("flood"), true)
	for i, sock := range healthy {
		sock.awaitOffset("flood", uint64(total), 20*time.Second)
		got := sock.messages("flood")
		v.delivered(fmt.Sprintf("healthy %d", i), got, 0, true)
		for j := range got {
			if took := sock.arrivals[j].Sub(handed[j]); j < calm {
				without = append(without, took)
			} else {
				with = append(with, took)
			}
		}
	}
	v.report(t)
	p99 := func(took []time.Duration) time.Duration {
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	before, after := p99(without), p99(with)
	if after > max(200*time.Millisecond, 4*before) {
		t.Errorf("p99 of the healthy is %v, it was %v without the stopped reader", after, before)
	}
	if grown > 150<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	// The stopped one is cut once it has taken nothing for the write stall.
	eventually(t, 10*time.Second, "the stopped reader is cut", func() bool {
		n, ok := s.metric("chronocast_connections")
		return ok && int(n) == len(healthy)
	})
	figure(t, "B127: 1 stopped reader beside %d healthy, %d x 30 KB: p99 %v, %v without it, memory +%d MiB",
		len(healthy), total, after.Round(time.Millisecond), before.Round(time.Millisecond), grown>>20)
}

// B130: a burst of 10,000 small messages leaves a healthy client connected.
func TestB130_ABurstLeavesHealthyClientsConnected(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	px := newProxy(t, s.addr)
	cl := ours(t, px.ws(), "start", "burst")
	socks := []*socket{dial(t, s.ws(), plain), dial(t, s.ws(), extended), dial(t, s.ws(), chronocast)}
	for _, sock := range socks {
		sock.subscribe("burst")
	}
	p.bulk("burst", 10000)
	v := judge(s.log("burst"), true)
	cl.awaitLast("burst", 10000, 30*time.Second)
	v.delivered("bundled client", cl.messages("burst"), 0, true)
	for _, sock := range socks {
		sock.awaitOffset("burst", 10000, 30*time.Second)
		v.delivered(sock.proto, sock.messages("burst"), 0, true)
		if sock.err != nil {
			t.Errorf("%s: %v", sock.proto, sock.err)
		}
	}
	v.report(t)
	if n := px.accepted.Load(); n != 1 {
		t.Errorf("the burst took %d connections of the bundled client", n)
	}
	throughOurClient.Add(10000)
}

// B131: a client on a slow link, a stream ten times as fast. The server's memory
// for it stays bounded; when the load stops the client reaches the head, exact.
func TestB131_ASlowLinkReachesTheHeadInTheEnd(t *testing.T) {
	t.Parallel()
	s := newServer(t, keepAll...)
	px := newProxy(t, s.addr)
	px.set(func(p *proxy) { p.rate = 20 << 10 })
	p := newPublisher(t, s.url(""))
	cl := ours(t, px.ws(), "start", "slow")
	before := s.rss()
	pad := strings.Repeat("s", 4<<10)
	p.steadily(t.Context(), "slow", 50, scale(50*10, 50*300), func(i int) string { return fmt.Sprintf(`{"n":%d,"pad":"%s"}`, i+1, pad) })
	grown := s.rss() - before
	if grown > 100<<20 {
		t.Errorf("memory grew by %d MiB for one slow client", grown>>20)
	}
	px.set(func(p *proxy) { p.rate = 0 })
	last := s.head("slow").Last
	cl.awaitLast("slow", last, 60*time.Second)
	judge(s.log("slow"), true).acknowledged(p.ledger.of("slow")).
		delivered("bundled client", cl.messages("slow"), 0, true).report(t)
	throughOurClient.Add(int64(last))
	figure(t, "B131: a link of 20 KB/s under 200 KB/s: memory +%d MiB, %d messages exact, %d connections", grown>>20, last, px.accepted.Load())
}

// B134: connections that are dropped in every way leave nothing behind.
func TestB134_AbortedConnectionsLeaveNothingBehind(t *testing.T) {
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	cycle := func(n int) {
		slots := make(chan struct{}, 20)
		var wg sync.WaitGroup
		for i := range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				abort(t, s, i)
			})
		}
		wg.Wait()
	}
	gone := func() bool {
		v, ok := s.metric("chronocast_connections")
		return ok && v == 0
	}
	if _, ok := s.metric("chronocast_connections"); !ok {
		t.Fatal("the metrics page has no chronocast_connections")
	}
	cycle(500)
	eventually(t, 20*time.Second, "no connection is counted", gone)
	before := s.rss()
	n := scale(1500, 10000)
	cycle(n)
	eventually(t, 20*time.Second, "no connection is counted", gone)
	if grown := s.rss() - before; grown > 30<<20 {
		t.Errorf("memory grew by %d MiB over %d aborted connections", grown>>20, n)
	}
	sock := dial(t, s.ws(), plain)
	sock.subscribe("alive")
	p.must("alive", `1`)
	sock.awaitMessages(1, 5*time.Second)
	if v, _ := s.metric("chronocast_connections"); v != 1 {
		t.Errorf("one socket is open, %v are counted", v)
	}
}

// abort opens a connection and drops it: with a FIN, a reset, in the middle of
// the handshake, or in the middle of a frame.
func abort(t *testing.T, s *server, i int) {
	switch i % 4 {
	case 0, 1:
		sock, _, err := tryDial(t, s.ws(), dialOptions{stuck: true}, extended)
		if err != nil {
			t.Errorf("dial: %v", err)
			return
		}
		sock.send(command{Command: "subscribe", Identifier: identifier("abort")})
		if i%4 == 1 {
			reset(sock.conn.UnderlyingConn())
		} else {
			sock.conn.UnderlyingConn().Close()
		}
	case 2:
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Errorf("dial: %v", err)
			return
		}
		fmt.Fprintf(c, "GET /cable HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\n", s.addr)
		reset(c)
	case 3:
		sock, _, err := tryDial(t, s.ws(), dialOptions{stuck: true}, plain)
		if err != nil {
			t.Errorf("dial: %v", err)
			return
		}
		sock.conn.UnderlyingConn().Write(masked(commandText("subscribe", "abort"))[:9])
		sock.conn.UnderlyingConn().Close()
	}
}
