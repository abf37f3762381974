package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/pgtest"
)

// endReaders ends the backends of s's readers, those that match the condition,
// and returns how many there were.
func endReaders(t *testing.T, conn *pgx.Conn, s *Store, condition string) (ended int) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
		WHERE application_name = $1 AND `+condition, "chronocast reader "+s.node).Scan(&ended)
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

// kindsOfRead are all that asks the log.
func kindsOfRead(s *Store, id int64) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"range": func(ctx context.Context) error {
			page, err := s.Range(ctx, "s", 0, 10, 1<<20)
			if err == nil && (len(page.Messages) != 2 || page.Last != 2) {
				err = fmt.Errorf("%d messages up to %d, want 2", len(page.Messages), page.Last)
			}
			return err
		},
		"since": func(ctx context.Context) error {
			_, after, err := s.Since(ctx, "s", 0)
			if err == nil && after != 0 {
				err = fmt.Errorf("after %d, want 0", after)
			}
			return err
		},
		"heads": func(ctx context.Context) error {
			spans, err := s.Heads(ctx, []string{"s", "none"})
			if err == nil && (len(spans) != 2 || spans[0].Last != 2) {
				err = fmt.Errorf("heads %v", spans)
			}
			return err
		},
		"names": func(ctx context.Context) error {
			names, err := s.Names(ctx, []int64{id})
			if err == nil && names[id] != "s" {
				err = fmt.Errorf("names %v", names)
			}
			return err
		},
	}
}

func channelOf(t *testing.T, conn *pgx.Conn, stream string) (id int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT id FROM chronocast.streams WHERE name = $1`, stream).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// The server has ended the readers' connections while they were idle: nobody is
// told.
func TestRead_EndedConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{Readers: 4})
	n.publish(t, "s", `1`)
	n.publish(t, "s", `2`)
	conn := outsider(t, url)
	ended := 0
	for name, ask := range kindsOfRead(n.Store, channelOf(t, conn, "s")) {
		var wg sync.WaitGroup
		for range 16 { // all connections are open, and were used just now
			wg.Go(func() {
				if err := ask(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		ended += endReaders(t, conn, n.Store, "true")
		if err := ask(t.Context()); err != nil {
			t.Errorf("%s after the server had ended its connection: %v", name, err)
		}
	}
	if ended == 0 {
		t.Error("there was no connection to end")
	}
}

// The connection ends while the answer is awaited: the read is made once more,
// not for ever, and not beyond its deadline.
func TestRead_EndedInTheMiddleIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{LaneWait: 20 * time.Second, StatementTimeout: 20 * time.Second})
	n.publish(t, "s", `1`)
	n.publish(t, "s", `2`)
	conn := outsider(t, url)
	id := channelOf(t, conn, "s")
	for name, ask := range kindsOfRead(n.Store, id) {
		for _, kills := range []int{1, 2} {
			holder := outsider(t, url)
			tx, err := holder.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// A new connection reads chronocast.life and must get through.
			for _, table := range []string{"streams", "channels", "messages"} {
				if _, err := tx.Exec(t.Context(), `LOCK TABLE chronocast.`+table); err != nil {
					t.Fatal(err)
				}
			}
			answer := make(chan error, 1)
			go func() { answer <- ask(t.Context()) }()
			for kill := 1; kill <= kills; kill++ {
				for endReaders(t, conn, n.Store, "wait_event_type = 'Lock'") == 0 {
					if len(answer) > 0 {
						t.Fatalf("%s whose connection ended once was not asked again: %v", name, <-answer)
					}
					wait(t.Context(), 2*time.Millisecond)
				}
			}
			if kills == 1 {
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-answer; err != nil {
					t.Errorf("%s whose connection ended once: %v", name, err)
				}
				continue
			}
			if err := <-answer; !errors.Is(err, history.ErrUnavailable) {
				t.Errorf("%s whose connection ended twice: %v, want ErrUnavailable", name, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What the server refuses or does not answer is not asked again.
func TestBroken(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := outsider(t, url)
	refused := []string{`SELECT 1/0`, `SELECT * FROM nowhere`, `SET statement_timeout = 10; SELECT pg_sleep(5)`}
	for _, sql := range refused {
		if _, err := conn.Exec(t.Context(), sql); err == nil || broken(err) {
			t.Errorf("%s: %v: broken is %v", sql, err, broken(err))
		}
	}
	_, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
	if err == nil || !broken(err) {
		t.Errorf("an ended connection: %v: broken is %v", err, broken(err))
	}
	if _, err = conn.Exec(t.Context(), `SELECT 1`); err == nil || !broken(err) {
		t.Errorf("after it: %v: broken is %v", err, broken(err))
	}
	if _, err = pgx.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1"); err == nil || broken(err) {
		t.Errorf("nobody listens: %v: broken is %v", err, broken(err))
	}
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err = outsider(t, url).Exec(late, `SELECT pg_sleep(5)`); err == nil || broken(err) {
		t.Errorf("no answer in time: %v: broken is %v", err, broken(err))
	}
}
