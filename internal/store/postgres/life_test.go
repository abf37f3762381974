package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/protocol"
)

func TestJudge(t *testing.T) {
	here := func(change func(*sighting)) sighting {
		s := sighting{table: 1, epoch: 100, system: "c/d/t", timeline: "00000001", wal: 1000, seq: 7}
		s.recorded.system, s.recorded.timeline = s.system, s.timeline
		if change != nil {
			change(&s)
		}
		return s
	}
	known := memory{System: "c/d/t", Timeline: "00000001", WAL: 1000, Epoch: 100, Seq: 7}
	promoted := func(s *sighting) { s.timeline = "00000002" }
	for _, c := range []struct {
		name string
		m    memory
		now  sighting
		new  bool
	}{
		{"nothing is remembered", memory{}, here(nil), false},
		{"nothing has changed", known, here(nil), false},
		{"it has gone on", known, here(func(s *sighting) { s.wal, s.seq = 2000, 9 }), false},
		{"a dump, and nothing remembered", memory{}, here(func(s *sighting) { s.recorded.system = "x/d/t" }), true},
		{"a dump", known, here(func(s *sighting) { s.system = "c/d/u" }), true},
		{"a dump that another node has noticed", known, here(func(s *sighting) { s.system, s.recorded.system, s.epoch, s.seq = "c/d/u", "c/d/u", 101, 0 }), false},
		{"a promotion, and nothing remembered", memory{}, here(promoted), true},
		{"a promotion", known, here(promoted), true},
		{"a promotion that another node has noticed", known, here(func(s *sighting) { s.timeline, s.recorded.timeline, s.epoch = "00000002", "00000002", 101 }), false},
		{"the promotion of a synchronous replica", known, here(func(s *sighting) { s.timeline, s.recordedSync = "00000002", true }), false},
		{"and nothing remembered", memory{}, here(func(s *sighting) { s.timeline, s.recordedSync = "00000002", true }), false},
		{"of one whose log is behind", known, here(func(s *sighting) { s.timeline, s.recordedSync, s.wal = "00000002", true, 999 }), true},
		{"of one that lacks our last batch", known, here(func(s *sighting) { s.timeline, s.recordedSync, s.seq = "00000002", true, 6 }), true},
		{"of one that another node has let pass", known, here(func(s *sighting) { s.timeline, s.recorded.timeline = "00000002", "00000002" }), false},
		{"of one that another node has let pass, and lacks our last batch", known, here(func(s *sighting) { s.timeline, s.recorded.timeline, s.seq = "00000002", "00000002", 6 }), true},
		{"a backup put back", known, here(func(s *sighting) { s.wal = 999 }), true},
		{"a backup put back and written to since", known, here(func(s *sighting) { s.wal, s.seq = 5000, 3 }), true},
		{"that another node has noticed", known, here(func(s *sighting) { s.wal, s.seq, s.epoch = 999, 3, 101 }), false},
		{"a backup of an earlier timeline", memory{System: "c/d/t", Timeline: "00000002", WAL: 900, Epoch: 100}, here(nil), true},
		{"an earlier life", memory{System: "c/d/t", Timeline: "00000001", WAL: 900, Epoch: 101}, here(nil), true},
		{"another database with a life of its own", known, here(func(s *sighting) { s.system, s.recorded.system = "c/e/t", "c/e/t" }), true},
	} {
		if got := judge(c.m, c.now); (got != "") != c.new {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// lives is a number of nodes on one database, and the log that tells how often
// a new life was begun.
type lives struct {
	t     *testing.T
	nodes []*node
	log   *observer.ObservedLogs
	first protocol.Epoch
	newer protocol.Epoch // the last epoch seen by renewed
}

func startLives(t *testing.T, url string, nodes int) *lives {
	t.Helper()
	core, log := observer.New(zap.WarnLevel)
	l := &lives{t: t, log: log}
	for range nodes {
		l.nodes = append(l.nodes, startNode(t, url, Options{Logger: zap.New(core)}))
	}
	l.first = head(t, l.nodes[0].Store, "s").Epoch
	l.newer = l.first
	return l
}

// publish publishes messages FROM..TO to s, each through the next node, and
// has every node look at the database as it does once a second.
func (l *lives) publish(from, to int) {
	l.t.Helper()
	for i := from; i <= to; i++ {
		l.nodes[i%len(l.nodes)].publish(l.t, "s", fmt.Sprint(i))
	}
	for _, n := range l.nodes {
		if err := n.Sight(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}
}

// settle waits until every node has found the database again.
func (l *lives) settle() {
	l.t.Helper()
	for _, n := range l.nodes {
		for deadline := time.Now().Add(20 * time.Second); ; wait(l.t.Context(), 10*time.Millisecond) {
			_, err := n.seq.Append(l.t.Context(), one("other", `1`))
			if err == nil {
				err = n.Sight(l.t.Context())
			}
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				l.t.Fatal(err)
			}
		}
	}
}

// renewed checks that the nodes, all at once, find a new life in which the
// stream has the given head, before they confirm, read or append anything.
func (l *lives) renewed(last uint64) {
	l.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	epochs := map[protocol.Epoch]int{}
	deadline := time.Now().Add(20 * time.Second)
	for i, n := range l.nodes {
		for j := range 4 {
			wg.Go(func() {
				var epoch protocol.Epoch
				var err error
				for time.Now().Before(deadline) { // while the server comes up
					switch (i + j) % 4 {
					case 0:
						var spans []protocol.Span
						if spans, err = n.Heads(context.Background(), []string{"s"}); err == nil {
							epoch = spans[0].Epoch
						}
					case 1:
						page, failed := n.Range(context.Background(), "s", 0, 1, 1000)
						epoch, err = page.Epoch, failed
					case 2:
						span, _, failed := n.Since(context.Background(), "s", 0)
						epoch, err = span.Epoch, failed
					case 3:
						placed, failed := n.seq.Append(context.Background(), one("other", `1`))
						if err = failed; err == nil {
							epoch = placed[0].Epoch
						}
					}
					if err == nil {
						break
					}
					wait(context.Background(), 20*time.Millisecond)
				}
				if err != nil {
					l.t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				epochs[epoch]++
			})
		}
	}
	wg.Wait()
	if len(epochs) != 1 {
		l.t.Errorf("the nodes see epochs %v, want one", epochs)
	}
	for epoch := range epochs {
		if epoch <= l.newer {
			l.t.Errorf("epoch %v does not follow %v", epoch, l.newer)
		}
		l.newer = epoch
	}
	if got := head(l.t, l.nodes[0].Store, "s"); got.Last != last {
		l.t.Errorf("the head is %d, want %d", got.Last, last)
	}
	if p := l.nodes[0].publish(l.t, "s", `"new"`); p.Offset != last+1 || p.Epoch != l.newer {
		l.t.Errorf("the first message of the new life is at %v", p.Position)
	}
	for _, n := range l.nodes {
		if err := n.Sight(l.t.Context()); err != nil {
			l.t.Error(err)
		}
		if got := head(l.t, n.Store, "s").Epoch; got != l.newer {
			l.t.Errorf("a node is in %v, the others in %v", got, l.newer)
		}
	}
}

func (l *lives) begun(want int) {
	l.t.Helper()
	if n := l.log.FilterMessage("a new life of the numbering begins; readers will be reset").Len(); n != want {
		l.t.Errorf("a new life was begun %d times, want %d", n, want)
	}
}

func TestB58_B59_DumpRestored(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, "max_connections = 60", "fsync = off")
	admin := outsider(t, c.URL("postgres"))
	execute(t, admin, `CREATE DATABASE a`)
	l := startLives(t, c.URL("a"), 3)
	l.publish(1, 8)
	dump := filepath.Join(filepath.Dir(c.Dir), "dump.sql")
	if err := c.Tool("pg_dump", "-d", c.URL("a"), "-f", dump); err != nil {
		t.Fatal(err)
	}
	l.publish(9, 10)

	t.Run("InPlace", func(t *testing.T) {
		l.t = t
		if err := c.Tool("psql", "-q", "-X", "-1", "-v", "ON_ERROR_STOP=1", "-d", c.URL("a"), "-c", "DROP SCHEMA chronocast CASCADE", "-f", dump); err != nil {
			t.Fatal(err)
		}
		l.renewed(8)
		l.begun(1)
	})
	t.Run("DatabaseRecreated", func(t *testing.T) {
		l.t = t
		l.publish(10, 20)
		execute(t, admin, `DROP DATABASE a WITH (FORCE)`)
		execute(t, admin, `CREATE DATABASE a`)
		if err := c.Tool("psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", c.URL("a"), "-f", dump); err != nil {
			t.Fatal(err)
		}
		l.renewed(8)
		l.begun(2)
	})
	t.Run("RowsPutBack", func(t *testing.T) { // the tables stay, their contents are older
		l.t = t
		data := filepath.Join(filepath.Dir(c.Dir), "data.sql")
		if err := c.Tool("pg_dump", "-d", c.URL("a"), "--data-only", "-f", data); err != nil {
			t.Fatal(err)
		}
		last := head(t, l.nodes[0].Store, "s").Last
		l.publish(30, 35)
		if err := c.Tool("psql", "-q", "-X", "-1", "-v", "ON_ERROR_STOP=1", "-d", c.URL("a"), "-c",
			"TRUNCATE chronocast.life, chronocast.migrations, chronocast.streams, chronocast.channels, chronocast.messages, chronocast.keys, chronocast.writers",
			"-f", data); err != nil {
			t.Fatal(err)
		}
		for _, n := range l.nodes { // once a second
			if err := n.Sight(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		l.renewed(last)
		l.begun(3)
	})
	for _, n := range l.nodes {
		n.pool.Reset()
	}

	// Nodes that start on a restored database, without a memory of their own.
	t.Run("OtherDatabase", func(t *testing.T) {
		execute(t, admin, `CREATE DATABASE b`)
		if err := c.Tool("psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", c.URL("b"), "-f", dump); err != nil {
			t.Fatal(err)
		}
		checkRestored(t, c.URL("b"), l.first)
	})
	t.Run("OtherCluster", func(t *testing.T) {
		other := pgtest.Foreign(t, "max_connections = 40", "fsync = off")
		text, err := os.ReadFile(dump)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(filepath.Dir(other.Dir), "dump.sql")
		if err := os.WriteFile(copied, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := other.Tool("psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", other.URL("postgres"), "-f", copied); err != nil {
			t.Fatal(err)
		}
		checkRestored(t, other.URL("postgres"), l.first)
	})
}

func checkRestored(t *testing.T, url string, was protocol.Epoch) {
	t.Helper()
	var l lives
	l.t = t
	core, log := observer.New(zap.WarnLevel)
	l.log = log
	var wg sync.WaitGroup
	l.nodes = make([]*node, 3)
	for i := range l.nodes { // they all start at once
		wg.Go(func() { l.nodes[i] = startNode(t, url, Options{Logger: zap.New(core)}) })
	}
	wg.Wait()
	l.newer = was
	l.renewed(8)
	l.begun(1)
	if got := payloads(t, l.nodes[1].Store, "s"); !slices.Equal(got[:8], []string{"1", "2", "3", "4", "5", "6", "7", "8"}) {
		t.Errorf("stored %v", got)
	}
}

func TestB58_DatabaseWiped(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, "max_connections = 60", "fsync = off")
	admin := outsider(t, c.URL("postgres"))
	execute(t, admin, `CREATE DATABASE a`)
	l := startLives(t, c.URL("a"), 3)
	l.publish(1, 10)
	execute(t, admin, `DROP DATABASE a WITH (FORCE)`)
	execute(t, admin, `CREATE DATABASE a`)
	l.renewed(0)
	l.publish(1, 10)
	execute(t, outsider(t, c.URL("a")), `DROP SCHEMA chronocast CASCADE`)
	l.renewed(0)
}

// The position after a promotion is what the replica had. Whatever it lacks
// was acknowledged.
func TestB61_ReplicaPromoted(t *testing.T) {
	for _, c := range []struct {
		name string
		lag  bool
		sync bool
	}{{"TailMissing", true, false}, {"NothingMissing", false, false}, {"Synchronous", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			primary := pgtest.Start(t, "max_connections = 60", "fsync = off")
			replica := primary.Replica(t)
			if err := replica.Start(); err != nil {
				t.Fatal(err)
			}
			if c.sync {
				admin := outsider(t, primary.URL("postgres"))
				execute(t, admin, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
				execute(t, admin, `SELECT pg_reload_conf()`)
				admin.Close(context.Background())
			}
			// The nodes know both servers, and take the one that is writable.
			both := fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write", primary.Port, replica.Port)
			l := startLives(t, both, 2)
			l.publish(1, 8)
			follow(t, primary, replica)
			last := uint64(8)
			if c.lag {
				if err := replica.Stop("immediate"); err != nil {
					t.Fatal(err)
				}
				l.publish(9, 12)
			}
			if err := primary.Stop("immediate"); err != nil {
				t.Fatal(err)
			}
			if c.lag {
				if err := replica.Start(); err != nil {
					t.Fatal(err)
				}
			}
			if err := replica.Promote(); err != nil {
				t.Fatal(err)
			}
			if c.sync {
				var span protocol.Span
				for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && span.Epoch == 0; wait(t.Context(), 20*time.Millisecond) {
					if spans, err := l.nodes[0].Heads(t.Context(), []string{"s"}); err == nil {
						span = spans[0]
					}
				}
				if span.Epoch != l.first || span.Last != last {
					t.Errorf("after a fail-over that lost nothing: %+v, the epoch was %v", span, l.first)
				}
				l.begun(0)
				return
			}
			l.renewed(last)
			l.begun(1)
		})
	}
}

// follow returns when the replica has replayed all that the primary has written.
func follow(t *testing.T, primary, replica *pgtest.Cluster) {
	t.Helper()
	p, r := outsider(t, primary.URL("postgres")), outsider(t, replica.URL("postgres"))
	defer p.Close(context.Background())
	defer r.Close(context.Background())
	var at string
	if err := p.QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; wait(t.Context(), 10*time.Millisecond) {
		var there bool
		if err := r.QueryRow(t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, at).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the replica does not follow")
		}
	}
}

// A copy of the data directory is put back as it was: same cluster, same
// timeline. Only who remembers can tell.
func TestBackupPutBack(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, "max_connections = 60", "fsync = off")
	file := filepath.Join(t.TempDir(), "life")
	url := c.URL("postgres")
	l := startLives(t, url, 2)
	l.publish(1, 8)
	remembering := mustOpen(t, url, Options{LifeFile: file})
	if err := remembering.Sight(t.Context()); err != nil {
		t.Fatal(err)
	}
	backup := c.Dir + ".backup"
	stopped := func(f func() error) {
		t.Helper()
		for _, step := range []func() error{func() error { return c.Stop("fast") }, f, c.Start} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	stopped(func() error { return c.Copy(c.Dir, backup) })

	// A plain restart keeps the life.
	l.settle()
	l.publish(9, 20)
	if got := head(t, l.nodes[0].Store, "s").Epoch; got != l.first {
		t.Fatalf("a restart changed the epoch from %v to %v", l.first, got)
	}
	_ = remembering.Sight(t.Context()) // it may meet the connection of before
	if err := remembering.Sight(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := remembering.Close(); err != nil {
		t.Fatal(err)
	}
	l.begun(0)

	stopped(func() error {
		if err := os.RemoveAll(c.Dir); err != nil {
			return err
		}
		return c.Copy(backup, c.Dir)
	})
	t.Run("WhoStartsWithALifeFile", func(t *testing.T) {
		core, log := observer.New(zap.WarnLevel)
		s := mustOpen(t, url, Options{LifeFile: file, Logger: zap.New(core)})
		if got := head(t, s, "s"); got.Epoch <= l.first || got.Last != 8 {
			t.Errorf("the head is %+v, the old epoch %v", got, l.first)
		}
		if log.Len() != 1 {
			t.Errorf("%d warnings", log.Len())
		}
	})
	l.renewed(8) // who was running finds the life that has begun already
	l.begun(0)

	// The same again, and the running nodes have to notice by themselves.
	l.publish(9, 20)
	stopped(func() error {
		if err := os.RemoveAll(c.Dir); err != nil {
			return err
		}
		return c.Copy(backup, c.Dir)
	})
	l.renewed(8)
	l.begun(1)
}

func TestNewLifeOnDemand(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	l := startLives(t, url, 1)
	l.publish(1, 3)
	asked := mustOpen(t, url, Options{NewLife: true})
	span := head(t, asked, "s")
	if span.Epoch <= l.first || span.Last != 3 {
		t.Fatalf("the head is %+v, the old epoch %v", span, l.first)
	}
	// A node that was running goes on in the new life, without anything else.
	if p := l.nodes[0].publish(t, "s", `4`); p.Epoch != span.Epoch || p.Offset != 4 {
		t.Errorf("a running node places at %v", p.Position)
	}
}

// A damaged file is a memory lost, not a server that does not start.
func TestLifeFileDamaged(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "life")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, pgtest.Database(t), Options{LifeFile: file})
	head(t, s, "s")
	if err := s.Sight(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k := newLifeKeeper(file, false, zap.NewNop()); k.seen.System == "" || k.seen.WAL == 0 || k.seen.Epoch == 0 {
		t.Errorf("the file holds %+v", k.seen)
	}
}
