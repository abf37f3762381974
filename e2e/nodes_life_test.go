package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// audience is the clients that live through a change of the database, on every
// node: ours, and raw sockets of the two kinds that can be told.
type audience struct {
	t       *testing.T
	nodes   []*server
	stream  string
	clients []*node
	socks   []*socket
}

// gather subscribes the audience and waits until all of it has come to the
// offset last.
func gather(t *testing.T, nodes []*server, stream string, last uint64) *audience {
	t.Helper()
	a := &audience{t: t, nodes: nodes, stream: stream}
	for _, s := range nodes {
		a.clients = append(a.clients, ours(t, s.ws(), "start", stream))
		for _, proto := range []string{extended, chronocast} {
			sock := dial(t, s.ws(), proto)
			sock.resume(stream, place{s.head(stream).Epoch, 0})
			a.socks = append(a.socks, sock)
		}
	}
	for _, cl := range a.clients {
		cl.awaitLast(stream, last, 20*time.Second)
	}
	for _, sock := range a.socks {
		sock.awaitOffset(stream, last, 20*time.Second)
	}
	return a
}

// told waits until the nodes are ready and everyone has been reset, and returns
// how long after the nodes' being ready the last one was. That is two seconds at
// most, and what the machine held everybody up meanwhile.
func (a *audience) told() time.Duration {
	a.t.Helper()
	held := holdups(a.t)
	began, last := a.ready(), time.Time{}
	for _, sock := range a.socks {
		if f := sock.next(15*time.Second, "reset", "reject_history"); f.at.After(last) {
			last = f.at
		}
	}
	for _, cl := range a.clients {
		if e := cl.wait(15*time.Second, "reset", a.stream); e.at.After(last) {
			last = e.at
		}
	}
	took := last.Sub(began)
	if bound := 2*time.Second + held(); took > bound {
		a.t.Errorf("the last client was reset %v after the nodes were ready, more than %v", took, bound)
	}
	return max(took, 0)
}

// unmixed checks that after its reset nobody has been given anything of the old
// life, that everybody has the new one from the reset on, without hole, and
// that there was one reset each.
func (a *audience) unmixed(old string, before int) {
	a.t.Helper()
	log := a.nodes[0].log(a.stream)
	last := log[len(log)-1]
	v := judge(log, false)
	check := func(name string, got []message) {
		for len(got) > 0 && got[0].Epoch == old {
			got = got[1:]
		}
		if len(got) == 0 {
			v.fault("I6: %s: nothing of the new life", name)
			return
		}
		v.delivered(name, got, got[0].Offset-1, true)
	}
	for i, cl := range a.clients {
		// Offsets of the old life may be higher: the place tells.
		cl.until(20*time.Second, "the end of the new life", func() bool {
			got := cl.got[a.stream]
			return len(got) > 0 && got[len(got)-1].place == last.place
		})
		got := cl.messages(a.stream)
		check(fmt.Sprintf("client %d", i), got[before:])
		if n := len(cl.all("reset", a.stream)); n != 1 {
			a.t.Errorf("client %d: %d resets, want one", i, n)
		}
	}
	for _, sock := range a.socks {
		sock.until(20*time.Second, "the end of the new life", func() bool {
			n := len(sock.delivered)
			return n > 0 && sock.delivered[n-1].place == last.place
		})
		check(sock.name, sock.messages(a.stream)[before:])
	}
	v.report(a.t)
}

// refused checks that positions of the old life are refused by every node.
func (a *audience) refused(old string, offsets ...uint64) {
	a.t.Helper()
	for i, s := range a.nodes {
		for _, at := range offsets {
			if pg := s.history(a.stream, fmt.Sprintf("%s:%d", old, at), 0); pg.status != 410 || pg.Error != "epoch_changed" {
				a.t.Errorf("node %d: history after %s:%d: %d %s, want 410 epoch_changed", i, old, at, pg.status, pg.Error)
			}
		}
	}
}

// ready waits until every node serves again and returns that moment.
func (a *audience) ready() time.Time {
	a.t.Helper()
	for _, s := range a.nodes {
		eventually(a.t, 15*time.Second, "the node is ready", s.ready)
	}
	return time.Now()
}

// B58: the database is dropped and made anew under running nodes, or only the
// tables are. Everybody is reset within two seconds of the nodes' being ready.
func TestB58_AWipedDatabaseIsANewLifeOnEveryNode(t *testing.T) {
	for _, how := range []string{"database", "schema"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, ctx := pgtest.Start(t), context.Background()
			admin := psql(t, c.URL("postgres"))
			if _, err := admin.Exec(ctx, `CREATE DATABASE app`); err != nil {
				t.Fatal(err)
			}
			nodes := newNodes(t, 2, c.URL("app"))
			together(t, nodes)
			p := newPublisher(t, nodes[0].url(""))
			p.bulk("gone", 500)
			old := nodes[0].head("gone")
			a := gather(t, nodes, "gone", 500)
			if how == "database" {
				for _, sql := range []string{`DROP DATABASE app WITH (FORCE)`, `CREATE DATABASE app`} {
					if _, err := admin.Exec(ctx, sql); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				conn := psql(t, c.URL("app"))
				// It locks table after table and may meet readers that go the other
				// way: then PostgreSQL ends either, and whoever drops tries again.
				eventually(t, 20*time.Second, "the schema is dropped", func() bool {
					_, err := conn.Exec(ctx, `DROP SCHEMA chronocast CASCADE`)
					var refused *pgconn.PgError
					if err != nil && !(errors.As(err, &refused) && refused.Code == "40P01") {
						t.Fatal(err)
					}
					return err == nil
				})
			}
			took := a.told()
			first := p.must("gone", `{"new":1}`)
			if first.Offset != 1 || !newer(first.Epoch, old.Epoch) {
				t.Errorf("the first message of the new life stands at %v, the old epoch was %s", first, old.Epoch)
			}
			p.numbered("gone", 10)
			a.refused(old.Epoch, 500, 1, 0)
			a.unmixed(old.Epoch, 500)
			figure(t, "B58: %s wiped under 2 nodes: all %d readers reset within %v of the nodes' being ready", how, len(a.clients)+len(a.socks), took.Round(time.Millisecond))
		})
	}
}

// B59: head 1,000, then a dump taken at 800 is restored into a new database of
// the same name and 250 are published. Everybody is reset, nobody mixes the old
// 801 to 1,000 with the new.
func TestB59_ARestoredDumpIsANewLifeOnEveryNode(t *testing.T) {
	t.Parallel()
	c, ctx := pgtest.Start(t), context.Background()
	admin := psql(t, c.URL("postgres"))
	if _, err := admin.Exec(ctx, `CREATE DATABASE app`); err != nil {
		t.Fatal(err)
	}
	nodes := newNodes(t, 2, c.URL("app"))
	together(t, nodes)
	p := newPublisher(t, nodes[0].url(""))
	p.bulk("restored", 800)
	dump := filepath.Join(filepath.Dir(c.Dir), "app.dump")
	if err := c.Tool("pg_dump", "-Fc", "-f", dump, c.URL("app")); err != nil {
		t.Fatal(err)
	}
	p.bulk("restored", 200)
	old := nodes[0].head("restored")
	a := gather(t, nodes, "restored", 1000)
	for _, sql := range []string{`ALTER DATABASE app ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'app'`, `DROP DATABASE app`, `CREATE DATABASE fresh`} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Tool("pg_restore", "-d", c.URL("fresh"), dump); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(ctx, `ALTER DATABASE fresh RENAME TO app`); err != nil {
		t.Fatal(err)
	}
	took := a.told()
	p.bulk("restored", 250)
	h := nodes[1].head("restored")
	if h.Last != 1050 || !newer(h.Epoch, old.Epoch) {
		t.Errorf("head %s:%d after the restore, the old epoch was %s", h.Epoch, h.Last, old.Epoch)
	}
	a.refused(old.Epoch, 1000, 900, 801, 800, 700, 1)
	a.unmixed(old.Epoch, 1000)
	figure(t, "B59: a dump of 800 restored over 1,000: all %d readers reset within %v of the nodes' being ready, none mixed", len(a.clients)+len(a.socks), took.Round(time.Millisecond))
}

// B61: fail-over to an asynchronous replica that misses the last 50. Whoever is
// ahead is reset, and everything goes on without an operator.
func TestB61_APromotedReplicaThatMissesTheTailIsANewLife(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	px := newProxy(t, hostOf(t, primary.URL("postgres"))) // the address of whoever is the primary
	nodes := newNodes(t, 2, through(t, primary.URL("postgres"), px.addr))
	together(t, nodes)
	p := newPublisher(t, nodes[0].url(""))
	p.bulk("failed-over", 950)
	replica := primary.Replica(t)
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	reached := psql(t, primary.URL("postgres"))
	eventually(t, 20*time.Second, "the replica has caught up", func() bool {
		var ok bool
		err := reached.QueryRow(context.Background(), `SELECT coalesce(bool_and(replay_lsn >= pg_current_wal_flush_lsn()), false) FROM pg_stat_replication`).Scan(&ok)
		return err == nil && ok
	})
	if err := replica.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	p.bulk("failed-over", 50)
	old := nodes[0].head("failed-over")
	if old.Last != 1000 {
		t.Fatalf("head %d, want 1000", old.Last)
	}
	a := gather(t, nodes, "failed-over", 1000)
	if err := primary.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	px.set(func(p *proxy) { p.target = net.JoinHostPort("127.0.0.1", strconv.Itoa(replica.Port)) })
	pause(500 * time.Millisecond) // it answers, and takes no writes yet
	if err := replica.Promote(); err != nil {
		t.Fatal(err)
	}
	took := a.told()
	p.bulk("failed-over", 250)
	h := nodes[1].head("failed-over")
	if h.Last != 1200 || !newer(h.Epoch, old.Epoch) {
		t.Errorf("head %s:%d after the fail-over, the old epoch was %s", h.Epoch, h.Last, old.Epoch)
	}
	a.refused(old.Epoch, 1000, 951, 950, 1)
	a.unmixed(old.Epoch, 1000)
	figure(t, "B61: a replica without the last 50 promoted: all %d readers reset within %v of the nodes' being ready", len(a.clients)+len(a.socks), took.Round(time.Millisecond))
}
