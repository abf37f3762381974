package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// through is the address of a database by way of a proxy.
func through(t testing.TB, address, hostport string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = hostport
	return u.String()
}

func hostOf(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// cpu is the processor time the server has used so far.
func (s *server) cpu() time.Duration {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process().Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var user, system int64
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

func (s *server) lines() int { return strings.Count(s.out.String(), "\n") }

// unavailable asks for something that needs the database and returns how long
// the 503 took; anything else fails the test.
func (s *server) unavailable(method, path string) time.Duration {
	s.t.Helper()
	req, _ := http.NewRequest(method, s.url(path), nil)
	if method == http.MethodPost {
		req, _ = http.NewRequest(method, s.url(path), bodyOf(`{"while":"down"}`))
	}
	began := time.Now()
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Errorf("%s %s: %v", method, path, err)
		return 0
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, _ = b.ReadFrom(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || (path != "/readyz" && resp.Header.Get("Retry-After") == "") {
		s.t.Errorf("%s %s while the database is down: %d, Retry-After %q: %s", method, path, resp.StatusCode, resp.Header.Get("Retry-After"), b.String())
	}
	return time.Since(began)
}

// B80, B100, I14: the database goes away and comes back. Publishes, history and
// heads answer 503 at once, readiness is red; sockets stay open and are pinged;
// our client is told once, and stock clients are told nothing they would take
// for the end; new subscriptions are answered in time; the server is nearly
// idle and logs little. After the return everything goes on by itself.
func TestB80_B100_ADatabaseOutageIsToldAndHeals(t *testing.T) {
	for _, how := range []string{"stopped", "black hole"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := pgtest.Start(t)
			px := newProxy(t, hostOf(t, c.URL("postgres")))
			nodes := newNodes(t, 2, through(t, c.URL("postgres"), px.addr), "--ping-interval", "1s")
			together(t, nodes)
			p := newPublisher(t, nodes[0].url(""))
			socks := map[string]*socket{}
			var clients []*node
			for i, s := range nodes {
				for _, proto := range subprotocols {
					sock := dial(t, s.ws(), proto)
					sock.subscribe("out")
					socks[fmt.Sprintf("node %d %s", i, proto)] = sock
				}
				clients = append(clients, ours(t, s.ws(), "start", "out"))
			}
			p.numbered("out", 20)
			for _, sock := range socks {
				sock.awaitOffset("out", 20, 10*time.Second)
			}

			held := holdups(t)
			began := time.Now()
			if how == "stopped" {
				if err := c.Stop("immediate"); err != nil {
					t.Fatal(err)
				}
			} else {
				px.set(func(p *proxy) { p.hole = true })
				px.blackhole()
			}
			// What has to be found out first may take its time once; from then
			// on the answers come fast.
			for _, s := range nodes {
				s.unavailable(http.MethodPost, messagesPath("out"))
			}
			pause(3 * time.Second)
			var cpu []time.Duration
			var lines []int
			for _, s := range nodes {
				cpu, lines = append(cpu, s.cpu()), append(lines, s.lines())
			}
			quiet := time.Now()
			pings := map[string]int{}
			for name, sock := range socks {
				sock.mu.Lock()
				pings[name] = len(sock.pings)
				sock.mu.Unlock()
			}
			pause(5 * time.Second)
			for i, s := range nodes {
				spent, wall := s.cpu()-cpu[i], time.Since(quiet)
				if spent > wall/5 {
					t.Errorf("node %d used %v of processor in %v of outage", i, spent, wall)
				}
				if n := s.lines() - lines[i]; n > 1+int(wall/time.Second) {
					t.Errorf("node %d wrote %d lines in %v:\n%s", i, n, wall, s.out.last(n))
				}
			}
			var slowest time.Duration
			var mu sync.Mutex
			var asking sync.WaitGroup
			for _, s := range nodes {
				for _, ask := range [][2]string{{http.MethodPost, messagesPath("out")}, {http.MethodPost, messagesPath("other")},
					{http.MethodGet, messagesPath("out") + "?after=7"}, {http.MethodGet, "/streams/out"}, {http.MethodGet, "/readyz"}} {
					asking.Go(func() {
						took := s.unavailable(ask[0], ask[1])
						mu.Lock()
						defer mu.Unlock()
						slowest = max(slowest, took)
					})
				}
			}
			asking.Wait()
			if slowest > 5*time.Second+held() {
				t.Errorf("a 503 took %v", slowest)
			}
			for name, sock := range socks {
				sock.mu.Lock()
				more := len(sock.pings) - pings[name]
				sock.mu.Unlock()
				if more < 4-int(held()/time.Second) {
					t.Errorf("%s: %d pings in 5 s of outage", name, more)
				}
			}
			// New subscriptions are answered within their deadline.
			late := dial(t, nodes[1].ws(), chronocast)
			late.send(command{Command: "subscribe", Identifier: identifier("new")})
			f := late.next(7*time.Second, "error", "confirm_subscription")
			if f.Identifier == "" { // the word that is for everybody came first
				f = late.next(7*time.Second, "error", "confirm_subscription")
			}
			if f.Type != "error" || f.Reason != "store_unavailable" || f.Identifier != identifier("new") {
				t.Errorf("a new subscription was answered %s", f.raw)
			}
			late = dial(t, nodes[1].ws(), extended)
			late.send(command{Command: "subscribe", Identifier: identifier("new")})
			if f := late.next(7*time.Second, "disconnect", "confirm_subscription"); f.Type != "disconnect" || f.Reason != "server_restart" || f.Reconnect == nil || !*f.Reconnect {
				t.Errorf("a new subscription of a stock client was answered %s", f.raw)
			}
			down := time.Since(began)

			if how == "stopped" {
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
			} else {
				px.set(func(p *proxy) { p.hole = false })
				px.cut()
			}
			back := time.Now()
			for _, s := range nodes {
				eventually(t, 30*time.Second, "readiness is green again", s.ready)
			}
			first := newPublisher(t, nodes[1].url("")).must("out", `{"after":"the outage"}`)
			for name, sock := range socks {
				sock.awaitOffset("out", first.Offset, 20*time.Second)
				var told []string
				sock.mu.Lock()
				for _, f := range sock.control {
					if f.Type == "error" || f.Type == "disconnect" {
						told = append(told, f.raw)
					}
				}
				sock.mu.Unlock()
				switch {
				case sock.proto == chronocast && (len(told) != 1 || !strings.Contains(told[0], `"store_unavailable"`)):
					t.Errorf("%s was told %d times of the outage: %v", name, len(told), told)
				case sock.proto != chronocast && len(told) != 0:
					t.Errorf("%s was told %v", name, told)
				}
			}
			healed := time.Since(back)
			if bound := 10*time.Second + held(); healed > bound {
				t.Errorf("delivering again only %v after the database's return, more than %v", healed, bound)
			}
			last := p.numbered("out", 20)
			v := judge(nodes[0].log("out"), false)
			for name, sock := range socks {
				sock.awaitOffset("out", last.Offset, 10*time.Second)
				v.delivered(name, sock.messages("out"), 0, true)
			}
			for i, cl := range clients {
				cl.awaitLast("out", last.Offset, 10*time.Second)
				v.delivered(fmt.Sprintf("client %d", i), cl.messages("out"), 0, true)
				if n := len(cl.all("reset", "")); n != 0 {
					t.Errorf("client %d: %d resets", i, n)
				}
			}
			v.report(t)
			figure(t, "database %s for %v: slowest 503 %v, one error frame each on %d sockets of ours; delivering again %v after its return", how,
				down.Round(time.Second), slowest.Round(time.Millisecond), 2, healed.Round(time.Millisecond))
		})
	}
}

// The link between a node and the database is slow, is cut, goes silent, again
// and again, under load on both nodes.
func TestNodes_SlowCutAndSilentLinksToTheDatabase(t *testing.T) {
	url := pgtest.Database(t)
	var nodes []*server
	var links []*proxy
	for range 2 {
		px := newProxy(t, hostOf(t, url))
		links = append(links, px)
		s := nodeOn(t, through(t, url, px.addr), keepAll...)
		s.launch()
		nodes = append(nodes, s)
	}
	for _, s := range nodes {
		s.awaitReady(20 * time.Second)
	}
	streams := []string{"link/a", "link/b"}
	sp := newSpread(t, nodes)
	clients := []*node{ours(t, nodes[0].ws(), "start", streams...), ours(t, nodes[1].ws(), "start", streams...)}
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		sp.pool(ctx, 16, 0, func(w, i int) (string, string) {
			return streams[w%2], fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	})
	cuts, holes, slow := 0, 0, 0
	for i := range scale(24, 120) {
		px := links[i%2]
		switch rand.IntN(3) {
		case 0:
			cuts += px.cut()
			pause(200 * time.Millisecond)
		case 1:
			holes += px.blackhole()
			pause(500 * time.Millisecond)
		case 2:
			slow++
			px.set(func(p *proxy) { p.delay = 30 * time.Millisecond })
			pause(500 * time.Millisecond)
			px.set(func(p *proxy) { p.delay = 0 })
		}
	}
	stop()
	publishing.Wait()
	delivered := sp.verdict(t, nodes, clients, streams)
	requests, repeats := sp.counts()
	figure(t, "links to the database: %d cut, %d silent, %d times slow under 16 publishers: %d acknowledged in %d requests, %d repeats: 0 lost, 0 doubled, 0 resets; %d through our clients",
		cuts, holes, slow, sp.ledger.total(), requests, repeats, delivered)
}

// freeLoad publishes to twenty streams of some nodes, steadily, until the test
// ends it, and notes how long each publish took.
type freeLoad struct {
	mu   sync.Mutex // guards took
	took []time.Duration
}

func (l *freeLoad) run(ctx context.Context, t *testing.T, wg *sync.WaitGroup, nodes []*server) {
	for i := range 8 {
		p := newPublisher(t, nodes[i%len(nodes)].url(""))
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				if _, err := p.send(context.WithoutCancel(ctx), fmt.Sprintf("free/%d", (i+n)%20), fmt.Sprintf(`{"p":%d,"n":%d}`, i, n)); err != nil {
					t.Error(err)
					return
				}
				l.mu.Lock()
				l.took = append(l.took, time.Since(began))
				l.mu.Unlock()
				pause(5 * time.Millisecond)
			}
		})
	}
}

// take returns what has been noted since the last time.
func (l *freeLoad) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}

// One application's transaction holds a stream for ten seconds under load. That
// stream's publishes are refused within the lock wait, and the other streams go
// on as before. The same load on another database of the same server, at the
// same time, tells what the machine does to both.
func TestNodes_AnOpenTransactionHoldsUpItsOwnStreamOnly(t *testing.T) {
	url := pgtest.Database(t)
	nodes := newNodes(t, 2, url, keepAll...)
	conn, ctx := psql(t, url), context.Background()
	sock := dial(t, nodes[1].ws(), chronocast)
	sock.subscribe("held")
	newPublisher(t, nodes[0].url("")).must("held", `{"n":0}`)

	held := holdups(t)
	running, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var here, elsewhere freeLoad
	here.run(running, t, &load, nodes)
	elsewhere.run(running, t, &load, newNodes(t, 2, pgtest.Database(t), keepAll...))
	window := func(d time.Duration) (p99, control time.Duration) {
		here.take()
		elsewhere.take()
		pause(d)
		return percentile(here.take(), 0.99), percentile(elsewhere.take(), 0.99)
	}
	window(time.Second) // warm
	was, controlWas := window(4 * time.Second)

	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT chronocast.broadcast('held', '{"from":"sql"}'::text)`); err != nil {
		t.Fatal(err)
	}
	holding, release := context.WithCancel(t.Context())
	var refused sync.WaitGroup
	var mu sync.Mutex // guards what follows
	var slowest time.Duration
	tries := 0
	for i := range 4 {
		p := newPublisher(t, nodes[i%2].url(""))
		refused.Go(func() {
			for n := 0; holding.Err() == nil; n++ {
				began := time.Now()
				a, err := p.once(ctx, "held", fmt.Sprintf("held-%d-%d", i, n), "application/json", []byte(`1`))
				if holding.Err() != nil {
					return // it may have been let in
				}
				if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
					t.Errorf("a publish to the held stream: %d %v", a.status, err)
					return
				}
				mu.Lock()
				slowest, tries = max(slowest, time.Since(began)), tries+1
				mu.Unlock()
			}
		})
	}
	p99, control := window(10 * time.Second)
	release()
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	refused.Wait()
	stop()
	load.Wait()
	if slowest > 4*time.Second+held() {
		t.Errorf("a refusal took %v", slowest)
	}
	// As long as before, or as long as elsewhere now, whichever is more.
	fair := max(was, control)
	ratio := float64(p99) / float64(fair)
	if ratio > 1.5 && p99-fair > 20*time.Millisecond {
		t.Errorf("p99 of the other streams %v while one is held, %v before; on another database %v, %v before: %.2f times", p99, was, control, controlWas, ratio)
	}
	last := newPublisher(t, nodes[0].url("")).must("held", `{"n":"last"}`)
	sock.awaitOffset("held", last.Offset, 10*time.Second)
	judge(nodes[1].log("held"), false).delivered("socket", sock.messages("held"), 0, true).report(t)
	figure(t, "a transaction holds one stream for 10 s: %d publishes to it refused, the slowest after %v; other streams' p99 %v, before %v; on another database %v, %v: %.2f times", tries,
		slowest.Round(time.Millisecond), p99.Round(100*time.Microsecond), was.Round(100*time.Microsecond),
		control.Round(100*time.Microsecond), controlWas.Round(100*time.Microsecond), ratio)
}

// B104: a node is stopped (SIGSTOP) while it holds channel rows in an open
// transaction. Other nodes' publishes to those streams fail fast, others go on,
// and it heals by itself, before the node runs again. A stopped node that holds
// nothing disturbs nobody.
func TestB104_AStoppedNodeHoldsUpNobodyElseForLong(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	px := newProxy(t, hostOf(t, url))
	frozen := nodeOn(t, through(t, url, px.addr))
	frozen.start()
	healthy := newNodes(t, 1, url)[0]
	a, b := newPublisher(t, frozen.url("")), newPublisher(t, healthy.url(""))
	sock := dial(t, healthy.ws(), chronocast)
	sock.subscribe("mine")
	a.must("mine", `1`)
	a.must("held", `1`)

	held := holdups(t)
	frozen.freeze() // holding nothing
	for i := range 20 {
		began := time.Now()
		b.must("mine", fmt.Sprintf(`{"n":%d}`, i))
		if d := time.Since(began); d > time.Second+held() {
			t.Errorf("a publish took %v while a node that holds nothing is stopped", d)
		}
	}
	frozen.thaw()
	a.must("mine", `"thawed"`)

	// An application holds one stream; the node then stores the rest of a batch
	// in a transaction of several steps. The link is slow, so that it can be
	// stopped between two of them.
	conn, ctx := psql(t, url), context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT chronocast.broadcast('held', '2'::text)`); err != nil {
		t.Fatal(err)
	}
	admin := psql(t, url)
	px.set(func(p *proxy) { p.delay = 150 * time.Millisecond })
	trying, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, stream := range []string{"held", "mine", "held", "mine"} {
		wg.Go(func() {
			for n := 0; trying.Err() == nil; n++ {
				_, _ = a.once(trying, stream, fmt.Sprintf("frozen-%d-%d", i, n), "application/json", []byte(`"from the frozen node"`))
			}
		})
	}
	eventually(t, 60*time.Second, "the node holds the other row between two steps", func() bool {
		var between bool
		if err := admin.QueryRow(ctx, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND application_name LIKE 'chronocast writer %' AND state = 'idle in transaction' AND query LIKE '%SKIP LOCKED%'`).Scan(&between); err != nil {
			t.Fatal(err)
		}
		if !between {
			return false
		}
		frozen.freeze()
		pause(200 * time.Millisecond) // what was on its way arrives
		tag, err := admin.Exec(ctx, `SELECT FROM chronocast.channels c JOIN chronocast.streams s ON s.id = c.id WHERE s.name = 'mine' FOR UPDATE OF c SKIP LOCKED`)
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			return true
		}
		frozen.thaw()
		return false
	})
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	x, err := b.once(ctx, "mine", "fast", "application/json", []byte(`1`))
	refused := time.Since(began)
	if err != nil || x.status != http.StatusServiceUnavailable || x.header.Get("Retry-After") == "" || refused > 4*time.Second+held() {
		t.Errorf("a publish to the frozen node's stream: %d %v after %v", x.status, err, refused)
	}
	other := time.Now()
	b.must("other", `1`)
	if d := time.Since(other); d > time.Second+held() {
		t.Errorf("another stream's publish took %v", d)
	}
	b.must("mine", `"healed"`) // tries until it is let in
	healed := time.Since(began)
	if healed > 15*time.Second+held() {
		t.Errorf("the stream was held for %v more", healed)
	}
	frozen.thaw()
	stop()
	wg.Wait()
	px.set(func(p *proxy) { p.delay = 0 })
	last := a.must("mine", `"the end"`)
	sock.awaitOffset("mine", last.Offset, 15*time.Second)
	judge(healthy.log("mine"), false).delivered("socket", sock.messages("mine"), 0, true).report(t)
	figure(t, "B104: a node stopped while it held a row: 503 after %v, the row free again after %v, other streams undisturbed", refused.Round(100*time.Millisecond), healed.Round(100*time.Millisecond))
}
