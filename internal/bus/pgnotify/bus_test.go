package pgnotify_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/bus/pgnotify"
	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/sequencer"
)

// News of a commit reaches every other node, and none the one that made it.
func TestBus_NewsReachesTheOtherNodes(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b, c := join(t, url, url, quick), join(t, url, url, quick), join(t, url, url, quick)
	for _, p := range []*peer{a, b, c} {
		p.listening()
	}
	var took []time.Duration
	for range 50 {
		last := a.publish("chat/42", 2)
		took = append(took, b.ears.awaitHint(t, 5*time.Second, "chat/42", last))
		c.ears.awaitHint(t, 5*time.Second, "chat/42", last)
	}
	slices.Sort(took)
	t.Logf("figure: a hint is there %v after the commit (p50 of %d)", took[len(took)/2], len(took))
	a.ears.mu.Lock()
	defer a.ears.mu.Unlock()
	if a.ears.count != 0 {
		t.Errorf("a node was told %d times of its own commits", a.ears.count)
	}
}

// A message published from SQL is news for every node.
func TestBus_NewsFromSQL(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a := join(t, url, url, quick)
	a.listening()
	conn := connect(t, url)
	run(t, conn, `SELECT chronocast.broadcast('from/sql', '{"n":1}'::text)`)
	a.ears.awaitHint(t, 5*time.Second, "from/sql", 1)
}

// B91: a batch over more streams than a notification has room for says "look".
func TestB91_ABatchOverManyStreamsAsksForASweep(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := join(t, url, url, quick), join(t, url, url, quick)
	a.listening()
	b.listening()
	batch := make([]sequencer.Request, 200)
	for i := range batch {
		batch[i] = sequencer.Request{{Stream: fmt.Sprintf("many/%d/%s", i, strings.Repeat("x", 200)), Data: []byte("1")}}
	}
	at := time.Now()
	if _, err := a.store.Append(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	b.ears.await(t, 5*time.Second, "a sweep", func() bool { return b.ears.sweptA.After(at) })
	last := a.publish("after", 1)
	b.ears.awaitHint(t, 5*time.Second, "after", last)
}

// What other versions or other programs ring is ignored.
func TestBus_UnknownWordsAreIgnored(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := join(t, url, url, quick), join(t, url, url, quick)
	a.listening()
	b.listening()
	conn := connect(t, url)
	for _, text := range []string{"", " ", "*", "hello", "beat", "nobody", "x 1", "x 1:", "x :1", "x -1:-1", "x 1:99999999999999999999999",
		"x 999999999:1", "v2 {\"a\":1}", "x 1:2:3", strings.Repeat("y", 7999), "x " + strings.Repeat("9:1,", 1900)} {
		run(t, conn, `SELECT pg_notify($1, $2)`, pgnotify.Topic, text)
	}
	last := a.publish("sane", 3)
	b.ears.awaitHint(t, 5*time.Second, "sane", last)
	b.ears.mu.Lock()
	defer b.ears.mu.Unlock()
	if len(b.ears.hints) != 1 {
		t.Errorf("hints of %v", b.ears.hints)
	}
}

// B97: the listening link goes silent without an end. What is published
// meanwhile becomes known within two beats and a reconnect.
func TestB97_ASilentLinkIsReplaced(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	px := newProxy(t, hostOf(t, url))
	a, b := join(t, url, url, quick), join(t, url, through(t, url, px.addr), quick)
	a.listening()
	b.listening()
	px.blackhole()
	at := time.Now()
	last := a.publish("dark", 1)
	took := b.ears.awaitNews(t, 10*time.Second, "dark", last, at)
	if bound := 2*quick.Beat + time.Second; took > bound {
		t.Errorf("known after %v, the bound is %v", took, bound)
	}
	b.listening()
	if n := len(b.logs.FilterMessageSnippet("no listening connection").All()); n != 1 {
		t.Errorf("%d lines tell of the loss, want 1: %v", n, b.logs.All())
	}
	b.ears.awaitHint(t, 5*time.Second, "dark", a.publish("dark", 1))
	t.Logf("figure: B97: with beats of %v, news passed over a silent link is known after %v", quick.Beat, took.Round(time.Millisecond))
}

// B98: a black hole again and again: each one is healed and the bus never
// believes in a dead connection.
func TestB98_ManyBlackHolesAreAllHealed(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	px := newProxy(t, hostOf(t, url))
	opts := pgnotify.Options{Beat: 60 * time.Millisecond, Poll: 20 * time.Millisecond, Retry: 50 * time.Millisecond}
	a, b := open(t, url), join(t, url, through(t, url, px.addr), opts)
	b.listening()
	var slowest time.Duration
	for range 100 {
		_, before := b.bus.Stats()
		px.blackhole()
		at := time.Now()
		last := a.publish("dark", 1)
		slowest = max(slowest, b.ears.awaitNews(t, 10*time.Second, "dark", last, at))
		b.await(10*time.Second, "a new connection", func() bool {
			_, now := b.bus.Stats()
			return now > before && b.bus.State() == pgnotify.Listening
		})
		at = time.Now()
		b.ears.awaitNews(t, 5*time.Second, "dark", a.publish("dark", 1), at)
	}
	t.Logf("figure: B98: 100 black holes healed, the slowest in %v with beats of %v", slowest.Round(time.Millisecond), opts.Beat)
}

// B98: the session behind the connection is gone, as after a fail-over behind a
// proxy, or the backend was killed.
func TestB98_AKilledBackendIsReplaced(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := join(t, url, url, quick), join(t, url, url, quick)
	a.listening()
	b.listening()
	conn := connect(t, url)
	for range 10 {
		_, before := b.bus.Stats()
		run(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`,
			"chronocast listener "+b.store.Node())
		at := time.Now()
		last := a.publish("killed", 1)
		b.ears.awaitNews(t, 5*time.Second, "killed", last, at)
		b.await(5*time.Second, "a new connection", func() bool {
			_, now := b.bus.Stats()
			return now > before && b.bus.State() == pgnotify.Listening
		})
	}
}

// B101: the listening connection is nobody's but the bus's: connections of the
// pool come and go and the listener stays the same one.
func TestB101_TheListeningConnectionIsNotPooled(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := join(t, url, url, quick), join(t, url, url, quick)
	a.listening()
	b.listening()
	conn := connect(t, url)
	pid := func() (pid int) {
		if err := conn.QueryRow(t.Context(), `SELECT pid FROM pg_stat_activity WHERE application_name = $1`,
			"chronocast listener "+b.store.Node()).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	first := pid()
	for i := range 20 {
		run(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'chronocast reader %'`)
		_, _ = b.store.Heads(t.Context(), []string{"x"})
		b.ears.awaitHint(t, 5*time.Second, "pooled", a.publish("pooled", 1))
		if now := pid(); now != first {
			t.Fatalf("round %d: the listener is another connection", i)
		}
	}
}

// B103: while no other node listens nothing is rung; as soon as one does,
// commits ring, and some time after it has gone they do not any more.
func TestB103_ALoneNodeDoesNotRing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	spy := connect(t, url) // listens without being a node
	run(t, spy, `LISTEN `+pgnotify.Topic)
	a := join(t, url, url, quick)
	a.listening()
	a.await(5*time.Second, "a lone node is quiet", func() bool { return !a.rings.ringing() })
	a.publish("quiet", 1)
	if n := rung(t, spy, a); n != 0 {
		t.Errorf("a lone node has rung %d times for a commit", n)
	}
	b := join(t, url, url, quick)
	b.listening()
	a.await(5*time.Second, "ringing", a.rings.ringing)
	b.ears.awaitHint(t, 5*time.Second, "quiet", a.publish("quiet", 1))
	if n := rung(t, spy, a); n != 1 {
		t.Errorf("with two nodes one commit has rung %d times", n)
	}
	b.stop()
	a.await(10*time.Second, "a lone node is quiet again", func() bool { return !a.rings.ringing() })
}

// rung counts the doorbells of commits that have come to spy from node by now.
func rung(t *testing.T, spy *pgx.Conn, node *peer) (n int) {
	t.Helper()
	run(t, spy, `SELECT pg_notify($1, 'marker')`, pgnotify.Topic)
	for {
		got, err := spy.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case got.Payload == "marker":
			return n
		case strings.HasPrefix(got.Payload, node.store.Node()+" "):
			n++
		}
	}
}

// A node whose address to listen on leads to another database says so and
// polls.
func TestBus_AnotherDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	a := join(t, pgtest.Database(t), pgtest.Database(t), quick)
	a.await(5*time.Second, "deaf", func() bool { return a.bus.State() == pgnotify.Deaf })
	if n := a.logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 1 {
		t.Errorf("%d errors logged: %v", n, a.logs.All())
	}
}

// B100: PostgreSQL is stopped: few attempts, fewer lines, and after its return
// the news comes again.
func TestB100_AStoppedServerCausesNoBusyLoop(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t)
	px := newProxy(t, hostOf(t, c.URL("postgres")))
	url := c.URL("postgres")
	a, b := open(t, url), join(t, url, through(t, url, px.addr), quick)
	b.listening()
	if err := c.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	b.await(5*time.Second, "the loss is noticed", func() bool { return b.bus.State() == pgnotify.Connecting })
	before, lines := px.dials.Load(), b.logs.Len()
	const down = 6 * time.Second
	<-time.After(down)
	// Pauses grow to 2 s; most attempts are at the beginning.
	if n := px.dials.Load() - before; n > 15 || n < 2 {
		t.Errorf("%d attempts to connect in %v", n, down)
	}
	if n := b.logs.Len() - lines; n > 1+int(down/time.Second) {
		t.Errorf("%d lines in %v: %v", n, down, b.logs.All())
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.await(10*time.Second, "listening again", func() bool { return b.bus.State() == pgnotify.Listening })
	t.Logf("figure: B100: listening %v after the server's return, %d attempts in %v of outage", time.Since(began).Round(time.Millisecond), px.dials.Load()-before, down)
	b.await(10*time.Second, "the other node commits again", func() bool {
		_, err := a.store.Append(context.Background(), []sequencer.Request{{{Stream: "back", Data: []byte("1")}}})
		return err == nil
	})
	b.ears.awaitHint(t, 5*time.Second, "back", 1)
}

// A server that refuses is asked less and less often.
func TestBus_RefusedConnectionsAreNotRetriedAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	px := newProxy(t, hostOf(t, url))
	px.setRefuse(true)
	b := join(t, url, through(t, url, px.addr), quick)
	<-time.After(2 * time.Second)
	if n := px.dials.Load(); n < 2 || n > 20 {
		t.Errorf("%d attempts in 2 s", n)
	}
	px.setRefuse(false)
	b.listening()
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
