package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// I4 on many nodes: 30 times kill -9 (60 in a long run), all three nodes one after another, under
// publishers that go to another node with the same key. Nothing acknowledged is
// lost, nothing doubled, and a client of each node sees everything once and in
// order.
func TestI4_KillsOfNodesLoseNothingAcknowledged(t *testing.T) {
	nodes := newNodes(t, 3, pgtest.Database(t), keepAll...)
	streams := []string{"kill/a", "kill/b", "kill/c", "kill/d"}
	sp := newSpread(t, nodes)
	var clients []*node
	for _, s := range nodes {
		clients = append(clients, ours(t, s.ws(), "start", streams...))
	}
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		sp.pool(ctx, 24, 0, func(w, i int) (string, string) {
			return streams[(w+i)%len(streams)], fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	})
	kills := scale(30, 60)
	for k := 0; k < kills; k += len(nodes) {
		before := sp.ledger.total()
		for _, i := range rand.Perm(len(nodes)) {
			pause(time.Duration(rand.IntN(60)) * time.Millisecond)
			nodes[i].kill()
			nodes[i].launch()
		}
		for _, s := range nodes {
			s.awaitReady(30 * time.Second)
		}
		eventually(t, 20*time.Second, "publishing goes on", func() bool { return sp.ledger.total() >= before+50 })
	}
	stop()
	publishing.Wait()
	delivered := sp.verdict(t, nodes, clients, streams)
	requests, repeats := sp.counts()
	figure(t, "%d x kill -9 of 3 nodes under 24 publishers: %d acknowledged in %d requests, %d of them repeats: 0 lost, 0 doubled, epoch kept; %d messages through our clients",
		kills, sp.ledger.total(), requests, repeats, delivered)
}

// verdict publishes a last message to every stream and compares log,
// acknowledgements and what a client of each node has been given. It returns
// the number of deliveries.
func (s *spread) verdict(t *testing.T, nodes []*server, clients []*node, streams []string) (delivered int) {
	t.Helper()
	for _, name := range streams {
		if _, err := s.send(context.Background(), name, fmt.Sprintf(`{"last of":%q}`, name)); err != nil {
			t.Fatal(err)
		}
		log := nodes[0].log(name)
		v := judge(log, true).acknowledged(s.ledger.of(name))
		for i, cl := range clients {
			cl.awaitLast(name, log[len(log)-1].Offset, time.Duration(scale(30, 180))*time.Second)
			got := cl.messages(name)
			v.delivered(fmt.Sprintf("client %d %s", i, name), got, 0, true)
			delivered += len(got)
		}
		if acked := len(s.ledger.of(name)); acked != len(log) {
			v.fault("I5: %s: %d stored, %d published, each acknowledged in the end", name, len(log), acked)
		}
		v.report(t)
	}
	for i, cl := range clients {
		if resets := cl.all("reset", ""); len(resets) != 0 {
			t.Errorf("client %d: %d resets although nothing was lost: %s", i, len(resets), resets[0].raw)
		}
	}
	if !t.Failed() {
		throughOurClient.Add(int64(delivered))
	}
	return delivered
}

// I4: PostgreSQL itself is stopped as by a crash, 10 times (30 in a long run),
// under keyed publishers. Nothing acknowledged is lost, nothing doubled, and no client is
// reset: everything that was acknowledged is there, and the nodes can tell.
func TestI4_ImmediateStopsOfPostgreSQLLoseNothing(t *testing.T) {
	c := pgtest.Start(t)
	nodes := newNodes(t, 2, c.URL("postgres"), keepAll...)
	streams := []string{"stop/a", "stop/b"}
	sp := newSpread(t, nodes)
	clients := []*node{ours(t, nodes[0].ws(), "start", streams...), ours(t, nodes[1].ws(), "start", streams...)}
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		sp.pool(ctx, 16, 0, func(w, i int) (string, string) {
			return streams[w%2], fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	})
	stops := scale(10, 30)
	held := holdups(t)
	var healed []time.Duration
	for range stops {
		before := sp.ledger.total()
		eventually(t, 20*time.Second, "publishing goes on", func() bool { return sp.ledger.total() >= before+20 })
		pause(time.Duration(rand.IntN(50)) * time.Millisecond)
		if err := c.Stop("immediate"); err != nil {
			t.Fatal(err)
		}
		before = sp.ledger.total()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, 40*time.Second, "a broadcast is acknowledged again", func() bool { return sp.ledger.total() > before })
		healed = append(healed, time.Since(began))
	}
	stop()
	publishing.Wait()
	if worst, bound := percentile(healed, 1), 10*time.Second+held(); worst > bound {
		t.Errorf("publishing went on only %v after the database's return, more than %v", worst, bound)
	}
	delivered := sp.verdict(t, nodes, clients, streams)
	requests, repeats := sp.counts()
	figure(t, "%d immediate stops of PostgreSQL under 16 keyed publishers on 2 nodes: %d acknowledged in %d requests, %d of them repeats: 0 lost, 0 doubled, 0 resets; acknowledging again p50 %v, at most %v after its return; %d through our clients",
		stops, sp.ledger.total(), requests, repeats, percentile(healed, 0.5).Round(time.Millisecond), percentile(healed, 1).Round(time.Millisecond), delivered)
}

// Three nodes, 64 publishers, 8,000 messages (200,000 in a long run) while 30 %
// of all backends are killed again and again. Every stored offset is
// contiguous, every acknowledged message is at its place, and subscribers of
// all nodes have seen the same sequence.
func TestNodes_BackendsKilledUnder64Publishers(t *testing.T) {
	url := pgtest.Database(t)
	nodes := newNodes(t, 3, url, keepAll...)
	streams := []string{"hot", "hot", "hot", "warm/1", "warm/2"}
	sp := newSpread(t, nodes)
	var clients []*node
	socks := map[string]*socket{}
	for i, s := range nodes {
		clients = append(clients, ours(t, s.ws(), "start", "hot", "warm/1", "warm/2"))
		for _, proto := range []string{plain, chronocast} {
			sock := dial(t, s.ws(), proto)
			sock.subscribe("hot")
			socks[fmt.Sprintf("node %d %s", i, proto)] = sock
		}
	}
	admin := psql(t, url)
	ctx, stop := context.WithCancel(t.Context())
	killed := 0
	var killing sync.WaitGroup
	killing.Go(func() {
		for ctx.Err() == nil {
			pause(400 * time.Millisecond)
			rows, err := admin.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'chronocast %' AND random() < 0.3`)
			if err != nil {
				t.Errorf("terminate: %v", err)
				return
			}
			killed += int(rows.RowsAffected())
		}
	})
	const publishers = 64
	each := scale(8_000, 200_000) / publishers
	began := time.Now()
	sp.pool(t.Context(), publishers, each, func(w, i int) (string, string) {
		return streams[(w+i)%len(streams)], fmt.Sprintf(`{"p":%d,"n":%d,"pad":"%0200d"}`, w, i, i)
	})
	took := time.Since(began)
	stop()
	killing.Wait()
	delivered := sp.verdict(t, nodes, clients, []string{"hot", "warm/1", "warm/2"})
	v := judge(nodes[1].log("hot"), true)
	for name, sock := range socks {
		sock.awaitOffset("hot", uint64(len(v.log)), time.Duration(scale(30, 180))*time.Second)
		v.delivered(name, sock.messages("hot"), 0, true)
		delivered += len(v.log)
	}
	v.report(t)
	requests, repeats := sp.counts()
	figure(t, "3 nodes, %d publishers, %d messages, %d backends killed: %d requests, %d repeats, %.0f msg/s; contiguous, all acknowledged there, one sequence on %d sockets and 3 clients (%d deliveries)",
		publishers, sp.ledger.total(), killed, requests, repeats, float64(sp.ledger.total())/took.Seconds(), len(socks), delivered)
}

// B85, B89 on many nodes: 3,200 keyed publishes (51,200 in a long run) while half
// of the replies are cut on the way, each retried on another node. Each is
// stored once, and what it was told each time is where it stands.
func TestB85_B89_HalfTheRepliesOfManyNodesCutDoublesNothing(t *testing.T) {
	nodes := newNodes(t, 3, pgtest.Database(t), keepAll...)
	sp := &spread{t: t, ledger: newLedger()}
	var replies, cut atomic.Int64
	for _, s := range nodes {
		px := newProxy(t, s.addr)
		px.set(func(p *proxy) {
			p.lose = func() bool {
				replies.Add(1)
				lost := rand.IntN(2) == 0
				if lost {
					cut.Add(1)
				}
				return lost
			}
		})
		sp.pubs = append(sp.pubs, newPublisher(t, px.url("")))
	}
	const workers = 32
	each := scale(100, 1600)
	began := time.Now()
	sp.pool(t.Context(), workers, each, func(w, i int) (string, string) {
		return fmt.Sprintf("keyed/%d", w%4), fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
	})
	took, stored := time.Since(began), 0
	for i := range 4 {
		name := fmt.Sprintf("keyed/%d", i)
		log := nodes[i%3].log(name)
		stored += len(log)
		judge(log, true).acknowledged(sp.ledger.of(name)).report(t)
	}
	requests, repeats := sp.counts()
	if stored != workers*each {
		t.Errorf("%d stored, %d published", stored, workers*each)
	}
	if repeats == 0 || cut.Load() == 0 {
		t.Errorf("%d replies were cut and %d publishes repeated: nothing was tried", cut.Load(), repeats)
	}
	figure(t, "%d keyed publishes over 3 nodes, %d of %d replies cut, %d requests, %d answered as repeats, in %v: %d stored, 0 lost, 0 doubled",
		workers*each, cut.Load(), replies.Load(), requests, repeats, took.Round(time.Second), stored)
}
