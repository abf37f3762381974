package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/sequencer"
)

// broadcastIn publishes inside an open transaction.
func broadcastIn(t testing.TB, tx pgx.Tx, stream, data string) (epoch, offset int64) {
	t.Helper()
	if err := tx.QueryRow(context.Background(), `SELECT * FROM chronocast.broadcast($1, $2::text)`, stream, data).Scan(&epoch, &offset); err != nil {
		t.Fatal(err)
	}
	return epoch, offset
}

func begin(t testing.TB, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func payloads(t testing.TB, s *Store, stream string) []string {
	t.Helper()
	var all []string
	for _, m := range contents(t, s, stream) {
		all = append(all, string(m.Data))
	}
	return all
}

// An application's open transaction holds one stream: publishes to that stream
// are refused within the bound, others go on, and it heals by itself.
func TestB10_B104_HeldStream(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	const laneWait = 400 * time.Millisecond
	n := startNode(t, url, Options{LaneWait: laneWait})
	for _, s := range []string{"held", "other"} {
		n.publish(t, s, `"first"`)
	}
	tx := begin(t, outsider(t, url))
	broadcastIn(t, tx, "held", `"sql"`)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var slowest time.Duration
	others := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if _, err := n.seq.Append(context.Background(), one("other", `1`)); err != nil {
				t.Error(err)
				return
			}
			if others++; others > 1 {
				slowest = max(slowest, time.Since(began))
			}
		}
	})
	for i := range 3 {
		began := time.Now()
		answers := make(chan error, 4)
		for j := range 4 {
			go func() {
				_, err := n.seq.Append(context.Background(), one("held", fmt.Sprintf("[%d,%d]", i, j)))
				answers <- err
			}()
		}
		for range 4 {
			if err := <-answers; !errors.Is(err, sequencer.ErrBusy) || !errors.Is(err, sequencer.ErrNotStored) {
				t.Fatalf("a publish to a held stream: %v", err)
			}
		}
		if took := time.Since(began); took > laneWait+n.opts.LockWait+300*time.Millisecond {
			t.Errorf("it took %v to refuse", took)
		}
	}
	close(stop)
	wg.Wait()
	if others < 100 {
		t.Errorf("only %d publishes to another stream meanwhile", others)
	}
	if slowest > laneWait {
		t.Errorf("a publish to another stream took %v", slowest)
	}

	// A publish that is waiting when the transaction commits goes through after it.
	waiting := make(chan error, 1)
	go func() {
		_, err := n.seq.Append(context.Background(), one("held", `"waited"`))
		waiting <- err
	}()
	awaitWaiter(t, url)
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	n.publish(t, "held", `"after"`)
	if got, want := payloads(t, n.Store, "held"), []string{`"first"`, `"sql"`, `"waited"`, `"after"`}; !slices.Equal(got, want) {
		t.Errorf("stored %v, want %v", got, want)
	}
}

// awaitWaiter returns when some backend of the database waits for a lock.
func awaitWaiter(t testing.TB, url string) {
	t.Helper()
	conn := outsider(t, url)
	defer conn.Close(context.Background())
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var n int
		if err := conn.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
	t.Fatal("nobody waits for a lock")
}

func TestB95_RollbackLeavesNoHole(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{})
	n.publish(t, "s", `1`)
	conn := outsider(t, url)
	for _, end := range []string{"rollback", "commit", "rollback"} {
		tx := begin(t, conn)
		broadcastIn(t, tx, "s", `"`+end+`"`)
		waiting := make(chan error, 1)
		go func() {
			_, err := n.seq.Append(context.Background(), one("s", `"after `+end+`"`))
			waiting <- err
		}()
		awaitWaiter(t, url)
		if page, err := n.Range(t.Context(), "s", 0, 100, 1000); err != nil || slices.ContainsFunc(payloads(t, n.Store, "s"), func(p string) bool { return p == `"rollback"` }) {
			t.Fatalf("a reader sees what was not committed: %v, %v", page, err)
		}
		var err error
		if end == "commit" {
			err = tx.Commit(context.Background())
		} else {
			err = tx.Rollback(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
	}
	if got, want := payloads(t, n.Store, "s"), []string{`1`, `"after rollback"`, `"commit"`, `"after commit"`, `"after rollback"`}; !slices.Equal(got, want) {
		t.Errorf("stored %v, want %v", got, want)
	}
}

// A stream that does not exist for anybody else yet, because the transaction
// that makes it is still open, is waited for in its lane like any other.
func TestLane_StreamBeingMade(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{LaneWait: 300 * time.Millisecond})
	tx := begin(t, outsider(t, url))
	const streams = 100
	for i := range streams {
		broadcastIn(t, tx, fmt.Sprintf("made%d", i), `0`)
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			_, err := n.seq.Append(context.Background(), one(fmt.Sprintf("made%d", i), `1`))
			if !errors.Is(err, sequencer.ErrBusy) || !errors.Is(err, sequencer.ErrNotStored) {
				t.Errorf("made%d: %v", i, err)
			}
		})
		wg.Go(func() {
			if _, err := n.seq.Append(context.Background(), one(fmt.Sprintf("free%d", i), `1`)); err != nil {
				t.Errorf("free%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range streams {
		if p := n.publish(t, fmt.Sprintf("made%d", i), `2`); p.Offset != 2 {
			t.Errorf("made%d: %v", i, p.Position)
		}
	}
}

// More streams are held than lanes exist: everyone is answered in time, and
// streams that are free are served all along.
func TestLane_ManyHeldStreams(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{LaneWait: 300 * time.Millisecond})
	for i := range 40 {
		n.publish(t, fmt.Sprintf("s%d", i), `0`)
	}
	tx := begin(t, outsider(t, url))
	for i := range 40 {
		broadcastIn(t, tx, fmt.Sprintf("s%d", i), `1`)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			began := time.Now()
			_, err := n.seq.Append(context.Background(), one(fmt.Sprintf("s%d", i), `2`))
			if !errors.Is(err, sequencer.ErrBusy) || !errors.Is(err, sequencer.ErrNotStored) {
				t.Errorf("s%d: %v", i, err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("s%d was refused after %v", i, took)
			}
			if _, err := n.seq.Append(context.Background(), one("free", `1`)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if p := n.publish(t, fmt.Sprintf("s%d", i), `3`); p.Offset != 2 {
			t.Errorf("s%d: %v", i, p.Position)
		}
	}
}

// Writers that name the same streams in opposite orders never wait for each
// other in a circle. B13: nor do batches over different sets of streams commit
// out of order.
func TestB13_WritersInOppositeOrders(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	// The server is to find circles before our own timeouts end them.
	admin := outsider(t, url)
	execute(t, admin, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 20', current_database()); END $$`)
	const writers, rounds, streams = 6, 40, 8
	var wg sync.WaitGroup
	for w := range writers {
		s := mustOpen(t, url, Options{})
		wg.Go(func() {
			for range rounds {
				var batch []sequencer.Request
				for i := range streams {
					if w%3 == 2 && i%2 == 0 {
						continue // another set
					}
					if w%2 == 1 {
						i = streams - 1 - i
					}
					batch = append(batch, one(fmt.Sprintf("s%d", i), fmt.Sprint(w)))
				}
				results, err := s.AppendWaiting(context.Background(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range results {
					if r.Err != nil {
						t.Error(r.Err)
					}
				}
			}
		})
	}
	wg.Wait()
	s := mustOpen(t, url, Options{})
	for i := range streams {
		contents(t, s, fmt.Sprintf("s%d", i))
	}
	var deadlocks int
	if err := outsider(t, url).QueryRow(t.Context(), `SELECT pg_stat_get_db_deadlocks(oid) FROM pg_database WHERE datname = current_database()`).Scan(&deadlocks); err != nil {
		t.Fatal(err)
	}
	if deadlocks > 0 {
		t.Errorf("%d deadlocks", deadlocks)
	}
}

// Nodes that share one hot stream just wait for each other: nothing fails, and
// nothing is tried twice.
func TestManyNodesOnOneHotStream(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	const nodes, rounds = 4, 60
	var wg sync.WaitGroup
	for i := range nodes {
		s := mustOpen(t, url, Options{})
		wg.Go(func() {
			for range rounds {
				results, err := s.AppendWaiting(context.Background(), []sequencer.Request{one("hot", fmt.Sprint(i)), one("hot", fmt.Sprint(i))})
				if err != nil || results[0].Err != nil || results[1].Placed[0].Offset != results[0].Placed[0].Offset+1 {
					t.Errorf("%+v, %v", results, err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(contents(t, mustOpen(t, url, Options{}), "hot")); got != 2*nodes*rounds {
		t.Errorf("%d messages", got)
	}
}

// An application that publishes to two streams, and a request to the same two
// in the other order, do not end each other: ours gives way.
func TestLane_GivesWayToTheApplication(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{LaneWait: 10 * time.Second})
	n.publish(t, "a", `0`)
	n.publish(t, "b", `0`)
	tx := begin(t, outsider(t, url))
	broadcastIn(t, tx, "b", `"sql"`)
	waiting := make(chan error, 1)
	go func() {
		_, err := n.seq.Append(context.Background(), append(one("a", `1`), one("b", `1`)...))
		waiting <- err
	}()
	awaitWaiter(t, url)
	broadcastIn(t, tx, "a", `"sql"`) // would be a deadlock if the lane went on waiting
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, n.Store, "a"); !slices.Equal(got, []string{`0`, `"sql"`, `1`}) {
		t.Errorf("stored %v", got)
	}
}
