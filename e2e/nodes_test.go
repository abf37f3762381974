package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// newNodes starts n servers on one PostgreSQL database.
func newNodes(t testing.TB, n int, url string, flags ...string) []*server {
	t.Helper()
	var all []*server
	for range n {
		s := nodeOn(t, url, flags...)
		s.launch()
		all = append(all, s)
	}
	for _, s := range all {
		s.awaitReady(30 * time.Second)
	}
	return all
}

// nodeOn is a server, not started, on the PostgreSQL database at url.
func nodeOn(t testing.TB, url string, flags ...string) *server {
	t.Helper()
	s := unstartedServer(t, append([]string{"--demo=false"}, flags...)...)
	s.db = url
	return s
}

// together waits until every node knows of the others: the doorbell rings.
func together(t testing.TB, nodes []*server) {
	t.Helper()
	for _, s := range nodes {
		eventually(t, 15*time.Second, "the node hears notifications", func() bool {
			v, ok := s.metric("chronocast_bus_listening")
			return ok && v == 1
		})
	}
}

// spread publishes through several nodes: each attempt goes to another one, with
// the key of the first, so that a node that dies costs an attempt.
type spread struct {
	t      testing.TB
	pubs   []*publisher
	ledger *ledger
	turn   atomic.Int64
	keys   atomic.Int64
}

func newSpread(t testing.TB, nodes []*server) *spread {
	s := &spread{t: t, ledger: newLedger()}
	for _, n := range nodes {
		p := newPublisher(t, n.url(""))
		s.pubs = append(s.pubs, p)
	}
	return s
}

// send publishes until it is acknowledged, refused, or patience ends.
func (s *spread) send(ctx context.Context, stream, payload string) (place, error) {
	key := fmt.Sprintf("spread-%p-%d", s, s.keys.Add(1))
	next := func() *publisher { return s.pubs[int(s.turn.Add(1))%len(s.pubs)] }
	return sendKeyed(ctx, next, s.ledger, stream, key, payload)
}

// pool is publisher.pool over all nodes.
func (s *spread) pool(ctx context.Context, workers, n int, next func(w, i int) (stream, payload string)) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; (n == 0 || i < n) && ctx.Err() == nil; i++ {
				stream, payload := next(w, i)
				// What was begun is brought to its end, so that nothing is in doubt.
				if _, err := s.send(context.WithoutCancel(ctx), stream, payload); err != nil {
					s.t.Errorf("publish to %q: %v", stream, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (s *spread) counts() (requests, repeats int64) {
	for _, p := range s.pubs {
		requests += p.tries.Load()
		repeats += p.repeat.Load()
	}
	return requests, repeats
}

// psql opens a connection to a database for the test's own statements.
func psql(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// Two nodes: the publishers on one, stock clients and ours on the other, and
// the same on the node itself. One order, no inversion; in the quiet a message
// is on the other node's sockets as good as at once.
func TestNodes_OneOrderOnEveryNode(t *testing.T) {
	url := pgtest.Database(t)
	nodes := newNodes(t, 2, url, keepAll...)
	together(t, nodes)
	near, far := nodes[0], nodes[1]
	p := newPublisher(t, near.url(""))
	begin := near.head("hot")

	rails := startNode(t, "rails.mjs")
	rails.do("connect", map[string]any{"url": far.ws()})
	rails.do("subscribe", map[string]any{"id": "hot", "params": pubsub("hot"), "name": "hot"})
	rails.wait(10*time.Second, "connected", "hot")
	stock := startNode(t, "anycable.mjs")
	stock.do("connect", map[string]any{"url": far.ws(), "reconnect": 40})
	stock.do("subscribe", map[string]any{"id": "hot", "name": "hot"})
	stock.subscribed("hot", 10*time.Second)
	cl := ours(t, far.ws(), "start", "hot")
	var sockets []*socket
	for _, s := range nodes {
		for _, proto := range subprotocols {
			sock := dial(t, s.ws(), proto)
			sock.subscribe("hot")
			sockets = append(sockets, sock)
		}
	}

	// In the quiet: the difference between the two nodes' sockets. What a bare
	// notification takes here and now, from one backend to another and to its
	// client, is measured beside each message.
	local, remote := sockets[1], sockets[4]
	ringer, listener := psql(t, url), psql(t, url)
	if _, err := listener.Exec(t.Context(), `LISTEN bare`); err != nil {
		t.Fatal(err)
	}
	var late, bare []time.Duration
	quiet := time.Now()
	for i := range 200 {
		if time.Since(quiet) > 20*time.Second {
			t.Fatalf("%d messages in %v: the other node is not told, it finds them by sweeping", i, time.Since(quiet))
		}
		at := p.must("hot", fmt.Sprintf(`{"quiet":%d}`, i))
		local.awaitOffset("hot", at.Offset, 5*time.Second)
		remote.awaitOffset("hot", at.Offset, 5*time.Second)
		rung := time.Now()
		if _, err := ringer.Exec(t.Context(), `NOTIFY bare`); err != nil {
			t.Fatal(err)
		}
		if _, err := listener.WaitForNotification(t.Context()); err != nil {
			t.Fatal(err)
		}
		bare = append(bare, time.Since(rung))
	}
	for i := range 200 {
		late = append(late, remote.arrivals[i].Sub(local.arrivals[i]))
	}
	p50, p99, bell := percentile(late, 0.5), percentile(late, 0.99), percentile(bare, 0.5)
	if bound := max(3*time.Millisecond, 5*bell); p50 > bound {
		t.Errorf("a message is on the other node %v later (p50), more than %v; a bare notification takes %v", p50, bound, bell)
	}

	const publishers, each = 64, 100
	if err := p.pool(t.Context(), publishers, each, func(w, i int) (string, string) {
		return "hot", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
	}); err != nil {
		t.Fatal(err)
	}
	log := far.log("hot")
	last := log[len(log)-1].Offset
	v := judge(log, true).acknowledged(p.ledger.of("hot"))
	total := 0
	for i, sock := range sockets {
		sock.awaitOffset("hot", last, 20*time.Second)
		got := sock.messages("hot")
		v.delivered(fmt.Sprintf("socket %d %s", i, sock.name), got, begin.Last, true)
		total += inversions(got)
	}
	stock.awaitLast("hot", last, 20*time.Second)
	cl.awaitLast("hot", last, 20*time.Second)
	rails.awaitCount("hot", len(log), 20*time.Second)
	total += inversions(stock.messages("hot"))
	v.delivered("@anycable/core", stock.messages("hot"), begin.Last, true).
		delivered("bundled client", cl.messages("hot"), begin.Last, true).report(t)
	for i, m := range rails.messages("hot") {
		if m.data != log[i].data {
			t.Fatalf("@rails/actioncable: message %d is %s, in the log it is %s", i+1, m.data, log[i].data)
		}
	}
	if total != 0 {
		t.Errorf("%d inversions", total)
	}
	if !t.Failed() {
		throughOurClient.Add(int64(len(cl.messages("hot"))))
	}
	figure(t, "two nodes: %d messages by %d publishers, stock and own clients on the other node: %d inversions; idle, remote - local delivery p50 %v, p99 %v (a bare NOTIFY p50 %v)",
		len(log), publishers, total, p50.Round(time.Microsecond), p99.Round(time.Microsecond), bell.Round(time.Microsecond))
}

// B07: a reaction to a message seen on one node, published through it, stands
// after its cause for readers of both.
func TestB07_AReactionOnAnotherNodeStandsAfterItsCause(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 2, pgtest.Database(t))
	together(t, nodes)
	a, b := newPublisher(t, nodes[0].url("")), newPublisher(t, nodes[1].url(""))
	readers := []*socket{dial(t, nodes[0].ws(), extended), dial(t, nodes[1].ws(), chronocast)}
	for _, r := range readers {
		r.subscribe("talk")
	}
	rounds := scale(150, 1000)
	for i := range rounds {
		cause := a.must("talk", fmt.Sprintf(`{"cause":%d}`, i))
		readers[1].awaitOffset("talk", cause.Offset, 5*time.Second)
		if effect := b.must("talk", fmt.Sprintf(`{"effect":%d}`, i)); effect.Offset <= cause.Offset {
			t.Fatalf("round %d: the reaction stands at %v, its cause at %v", i, effect, cause)
		}
	}
	v := judge(nodes[0].log("talk"), true)
	for i, r := range readers {
		r.awaitOffset("talk", uint64(2*rounds), 10*time.Second)
		v.delivered(fmt.Sprintf("reader on node %d", i), r.messages("talk"), 0, true)
	}
	v.report(t)
}

// B67: the same messages by local node, other node, replay and history, of both
// nodes: one epoch, one offset, the same bytes.
func TestB67_BothNodesGiveTheSameEpochOffsetAndBytes(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 2, pgtest.Database(t))
	together(t, nodes)
	odd := []string{
		`{"a":"<script>&amp;</script>","b":1e3}`, `{"spaces" : [ 1 , 2 ] }`, `"\u00e9 and é"`, `0`, `false`, `null`, `""`, `[]`,
		`12345678901234567890`, `1.0`, `-0`, `{"k":1,"k":2}`, `"\ud83d\ude00 😀"`, `"\u0000"`, `"` + strings.Repeat("ä", 50000) + `"`,
		`"` + strings.Repeat("x", 7990) + `"`, `"` + strings.Repeat("x", 8000) + `"`, "[1,\n\t2]",
	}
	live := map[string]*socket{}
	for i, s := range nodes {
		for _, proto := range subprotocols {
			sock := dial(t, s.ws(), proto)
			sock.subscribe("same")
			live[fmt.Sprintf("live %s on node %d", proto, i)] = sock
		}
	}
	var begin place
	for i, payload := range odd {
		at := newPublisher(t, nodes[i%2].url("")).must("same", payload)
		begin = place{at.Epoch, 0}
	}
	for i, s := range nodes {
		for _, proto := range []string{extended, chronocast} {
			sock := dial(t, s.ws(), proto)
			sock.resume("same", begin)
			live[fmt.Sprintf("replay %s on node %d", proto, i)] = sock
		}
	}
	logs := [][]message{nodes[0].log("same"), nodes[1].log("same")}
	if !slices.Equal(logs[0], logs[1]) {
		t.Error("the nodes' histories differ")
	}
	v := judge(logs[0], false)
	for i, payload := range odd {
		if got := logs[0][i].data; got != payload {
			t.Errorf("history has %.60q, published was %.60q", got, payload)
		}
	}
	for name, sock := range live {
		sock.awaitMessages(len(odd), 10*time.Second)
		v.delivered(name, sock.messages("same"), 0, true)
	}
	v.report(t)
}

// Messages published from SQL, in an application's transaction, arrive on every
// node when it commits, and never when it is rolled back (B95).
func TestB95_BroadcastsFromSQLReachEveryNodeOnCommitOnly(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	nodes := newNodes(t, 2, url)
	together(t, nodes)
	var socks []*socket
	for _, s := range nodes {
		sock := dial(t, s.ws(), extended)
		sock.subscribe("orders")
		socks = append(socks, sock)
	}
	conn, ctx := psql(t, url), context.Background()
	for i := range 30 {
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, `SELECT chronocast.broadcast('orders', $1::text)`, fmt.Sprintf(`{"i":%d}`, i)); err != nil {
			t.Fatal(err)
		}
		if i%3 == 2 {
			err = tx.Rollback(ctx)
		} else {
			err = tx.Commit(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	committed := time.Now()
	v := judge(nodes[0].log("orders"), true)
	if len(v.log) != 20 {
		t.Errorf("%d stored, 20 were committed", len(v.log))
	}
	for i, sock := range socks {
		sock.awaitOffset("orders", 20, 5*time.Second)
		v.delivered(fmt.Sprintf("node %d", i), sock.messages("orders"), 0, true)
	}
	v.report(t)
	figure(t, "B95: the last of 20 commits from SQL was on the sockets of both nodes within %v", time.Since(committed).Round(time.Millisecond))
}

// B70: rolling restarts of three nodes under load. Clients move to another
// node, here because their own comes back at once: nothing is lost, doubled or
// disordered.
func TestB70_RollingRestartsOfThreeNodes(t *testing.T) {
	nodes := newNodes(t, 3, pgtest.Database(t), keepAll...)
	together(t, nodes)
	sp := newSpread(t, nodes)
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		sp.pool(ctx, 8, 0, func(w, i int) (string, string) {
			pause(time.Duration(rand.IntN(20)) * time.Millisecond)
			return "rolling", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	})
	var clients []*node
	for _, s := range nodes {
		clients = append(clients, ours(t, s.ws(), "start", "rolling"))
	}
	stock := startNode(t, "anycable.mjs")
	stock.do("connect", map[string]any{"url": nodes[1].ws(), "reconnect": 40})
	stock.do("subscribe", map[string]any{"id": "rolling", "name": "rolling"})
	stock.subscribed("rolling", 10*time.Second)
	rounds := scale(3, 50)
	var slowest time.Duration
	for range rounds {
		for _, s := range nodes {
			stock.subscribed("rolling", 20*time.Second)
			before := sp.ledger.total()
			took, code := s.terminate(15 * time.Second)
			slowest = max(slowest, took)
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, s.out.last(10))
			}
			s.start()
			eventually(t, 20*time.Second, "publishing goes on", func() bool { return sp.ledger.total() > before })
		}
	}
	stock.subscribed("rolling", 20*time.Second)
	stop()
	publishing.Wait()
	if _, err := sp.send(t.Context(), "rolling", `{"last":true}`); err != nil {
		t.Fatal(err)
	}
	log := nodes[0].log("rolling")
	last := log[len(log)-1].Offset
	v := judge(log, true).acknowledged(sp.ledger.of("rolling"))
	for i, cl := range clients {
		cl.awaitLast("rolling", last, 30*time.Second)
		v.delivered(fmt.Sprintf("bundled client of node %d", i), cl.messages("rolling"), 0, true)
		if resets := cl.all("reset", ""); len(resets) != 0 {
			t.Errorf("client %d: %d resets: %s", i, len(resets), resets[0].raw)
		}
	}
	stock.awaitLast("rolling", last, 30*time.Second)
	got := stock.messages("rolling")
	v.delivered("@anycable/core", got, got[0].Offset-1, true).report(t)
	if !t.Failed() {
		throughOurClient.Add(int64(3 * len(log)))
	}
	figure(t, "B70: %d rolling restarts of 3 nodes under load: %d messages, exact on 4 clients; the slowest stop took %v", rounds, len(log), slowest.Round(time.Millisecond))
}

// fetchJSON sends a request and reads the JSON of the answer.
func fetchJSON(client *http.Client, req *http.Request, into any) (status int, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}
