package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/sequencer"
)

func codeOf(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestBroadcast_CommitAndRollback(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	conn := outsider(t, url)
	listener := outsider(t, url)
	execute(t, listener, `LISTEN chronocast`)

	tx := begin(t, conn)
	epoch, offset := broadcastIn(t, tx, "s", `{"a": 1}`)
	if span := head(t, s, "s"); span.Last != 0 || int64(span.Epoch) != epoch || offset != 1 {
		t.Errorf("before the commit: head %+v, broadcast at %d:%d", span, epoch, offset)
	}
	if _, next := broadcastIn(t, tx, "s", `2`); next != 2 {
		t.Errorf("the second of a transaction is at %d", next)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, s, "s"); strings.Join(got, " ") != `{"a": 1} 2` {
		t.Errorf("stored %v: bytes in are bytes out", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ids, err := s.Names(t.Context(), []int64{1})
	if err != nil || ids[1] != "s" {
		t.Fatal(ids, err)
	}
	for _, want := range []string{"sql 1:1", "sql 1:2"} {
		if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload != want {
			t.Errorf("the doorbell said %+v, %v; want %s", n, err, want)
		}
	}

	tx = begin(t, conn)
	broadcastIn(t, tx, "s", `3`)
	broadcastIn(t, tx, "never", `1`)
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, offset := broadcastAlone(t, conn, "s", `3`); offset != 3 {
		t.Errorf("after a rollback the next is at %d", offset)
	}
	if span := head(t, s, "never"); span.Last != 0 {
		t.Errorf("a stream of a rolled back transaction has the head %+v", span)
	}
	// Part of a transaction can be taken back.
	tx = begin(t, conn)
	broadcastIn(t, tx, "s", `4`)
	part, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	broadcastIn(t, part, "s", `"gone"`)
	if err := part.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, offset := broadcastIn(t, tx, "s", `5`); offset != 5 {
		t.Errorf("after a savepoint the next is at %d", offset)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, s, "s"); strings.Join(got, " ") != `{"a": 1} 2 3 4 5` {
		t.Errorf("stored %v", got)
	}
}

func broadcastAlone(t testing.TB, conn *pgx.Conn, stream, data string) (epoch, offset int64) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), `SELECT * FROM chronocast.broadcast($1, $2::text)`, stream, data).Scan(&epoch, &offset); err != nil {
		t.Fatal(err)
	}
	return epoch, offset
}

func TestBroadcast_Inputs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	conn := outsider(t, url)
	for _, c := range []struct{ call, code string }{
		{`broadcast('ok', '"text"')`, ""}, // an untyped literal is text
		{`broadcast('ok', '"text"'::text)`, ""},
		{`broadcast('ok', '"bytea"'::bytea)`, ""},
		{`broadcast('ok', convert_to('"ü"', 'UTF8'))`, ""},
		{`broadcast('ok', to_json(now())::text)`, ""},
		{`broadcast('ok', ' [1, 2] ')`, ""},
		{`broadcast('ok', '"\ud800 \u0000"')`, ""},
		{`broadcast('ok', '1', 'key')`, ""},
		{`broadcast(stream => 'ok', data => '2', key => NULL)`, ""},
		{`broadcast(repeat('漢', 85), '1')`, ""},
		{`broadcast(repeat('漢', 86), '1')`, "22023"},
		{`broadcast('', '1')`, "22023"},
		{`broadcast(NULL, '1')`, "22023"},
		{`broadcast(E'a\tb', '1')`, "22023"},
		{`broadcast(E'a\u0085b', '1')`, "22023"},
		{`broadcast(E'a\u007f', '1')`, "22023"},
		{`broadcast(E'a\u00a0', '1')`, ""},
		{`broadcast('bad', NULL::text)`, "22023"},
		{`broadcast('bad', NULL::bytea)`, "22023"},
		{`broadcast('bad', '')`, "22023"},
		{`broadcast('bad', 'text')`, "22P02"},
		{`broadcast('bad', '{"a":}')`, "22P02"},
		{`broadcast('bad', '1 2')`, "22P02"},
		{`broadcast('bad', '\xff'::bytea)`, "22021"},
		{`broadcast('bad', '\x22c328'::bytea)`, "22021"},
		{`broadcast('bad', '"' || repeat('x', 1048575) || '"')`, "54000"},
		{`broadcast('big', '"' || repeat('x', 1048574) || '"')`, ""},
		{`broadcast('bad', '1', '')`, "22023"},
		{`broadcast('bad', '1', '  ')`, "22023"},
		{`broadcast('bad', '1', repeat('k', 256))`, "22023"},
		{`broadcast('bad', '1'::jsonb)`, "42883"}, // say ::text: the bytes are the caller's to choose
	} {
		_, err := conn.Exec(t.Context(), `SELECT chronocast.`+c.call)
		if got := codeOf(err); got != c.code && !(c.code == "" && err == nil) {
			t.Errorf("%s: %v, want code %q", c.call, err, c.code)
		}
	}
	if span := head(t, s, "bad"); span.Last != 0 {
		t.Errorf("a refused broadcast took an offset: %+v", span)
	}
	for _, m := range contents(t, s, "ok") {
		if !json.Valid(m.Data) {
			t.Errorf("offset %d holds %s", m.Offset, m.Data)
		}
	}
	if got := len(contents(t, s, "big")); got != 1 {
		t.Errorf("%d large messages", got)
	}
}

func TestBroadcast_Keys(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{})
	conn := outsider(t, url)
	call := func(data, key string) (offset int64, err error) {
		err = conn.QueryRow(t.Context(), `SELECT "offset" FROM chronocast.broadcast('s', $1::text, $2)`, data, key).Scan(&offset)
		return offset, err
	}
	n.publish(t, "s", `0`)
	for range 3 {
		if offset, err := call(`1`, "key"); offset != 2 || err != nil {
			t.Fatal(offset, err)
		}
	}
	if _, err := call(`2`, "key"); codeOf(err) != "23505" {
		t.Errorf("another body under a key: %v", err)
	}
	// The key is one key, whichever way it comes.
	placed, err := n.seq.Append(t.Context(), withKey("s", `1`, "key"))
	if err != nil || placed[0].Offset != 2 || !placed[0].Repeat {
		t.Errorf("the same key over HTTP: %+v, %v", placed, err)
	}
	if _, err := n.seq.Append(t.Context(), withKey("s", `2`, "key")); !errors.Is(err, sequencer.ErrKeyConflict) {
		t.Errorf("another body over HTTP: %v", err)
	}
	if placed, err = n.seq.Append(t.Context(), withKey("s", `3`, "other")); err != nil {
		t.Fatal(err)
	}
	if offset, err := call(`3`, "other"); uint64(offset) != placed[0].Offset || err != nil {
		t.Errorf("a key that came over HTTP: %d, %v", offset, err)
	}
	// In an open transaction the second waits for the first, and finds its key.
	tx := begin(t, conn)
	if _, err := tx.Exec(t.Context(), `SELECT chronocast.broadcast('s', '4', 'open')`); err != nil {
		t.Fatal(err)
	}
	answer := make(chan sequencer.Placed, 1)
	go func() {
		placed, err := n.seq.Append(context.Background(), withKey("s", `4`, "open"))
		if err != nil {
			t.Error(err)
			placed = make([]sequencer.Placed, 1)
		}
		answer <- placed[0]
	}()
	awaitWaiter(t, url)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := <-answer; p.Offset != 4 || !p.Repeat {
		t.Errorf("a key of a transaction that was open: %+v", p)
	}
	// So does a second transaction.
	tx = begin(t, conn)
	if _, err := tx.Exec(t.Context(), `SELECT chronocast.broadcast('s', '4.5', 'both')`); err != nil {
		t.Fatal(err)
	}
	second, offset := outsider(t, url), make(chan int64, 1)
	go func() {
		var n int64
		if err := second.QueryRow(context.Background(), `SELECT "offset" FROM chronocast.broadcast('s', '4.5', 'both')`).Scan(&n); err != nil {
			t.Error(err)
		}
		offset <- n
	}()
	awaitWaiter(t, url)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-offset; n != 5 {
		t.Errorf("the key of another transaction that was open: %d", n)
	}
	// A key that was rolled back was never used.
	tx = begin(t, conn)
	if _, err := tx.Exec(t.Context(), `SELECT chronocast.broadcast('s', '5', 'undone')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if placed, err := n.seq.Append(t.Context(), withKey("s", `6`, "undone")); err != nil || placed[0].Repeat || placed[0].Offset != 6 {
		t.Errorf("a key that was rolled back: %+v, %v", placed, err)
	}
	// At the end of its window a key is new.
	for _, c := range []struct {
		age  string
		want int64
	}{{"59 minutes 59 seconds", 2}, {"1 hour", 7}} {
		execute(t, conn, `UPDATE chronocast.keys SET at = clock_timestamp() - $1::interval WHERE offset_ = 2`, c.age)
		if offset, err := call(`1`, "key"); offset != c.want || err != nil {
			t.Errorf("a key aged %s: %d, %v", c.age, offset, err)
		}
	}
}

// Transactions and nodes that publish to one stream: the order is the order of
// commits, without holes, and everybody was told the truth.
func TestBroadcast_OrderIsCommitOrder(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{LaneWait: 5 * time.Second})
	var wg sync.WaitGroup
	var mu sync.Mutex
	told := map[uint64]string{}
	note := func(offset uint64, data string) {
		mu.Lock()
		defer mu.Unlock()
		if was, twice := told[offset]; twice {
			t.Errorf("offset %d was given to %s and %s", offset, was, data)
		}
		told[offset] = data
	}
	for w := range 4 {
		conn := outsider(t, url)
		wg.Go(func() {
			for i := range 40 {
				tx := begin(t, conn)
				data := fmt.Sprintf(`["sql",%d,%d]`, w, i)
				_, offset := broadcastIn(t, tx, "s", data)
				if i%4 == 3 {
					if err := tx.Rollback(context.Background()); err != nil {
						t.Error(err)
					}
					continue
				}
				if err := tx.Commit(context.Background()); err != nil {
					t.Error(err)
				}
				note(uint64(offset), data)
			}
		})
		wg.Go(func() {
			for i := range 40 {
				data := fmt.Sprintf(`["node",%d,%d]`, w, i)
				placed, err := n.seq.Append(context.Background(), one("s", data))
				if err != nil {
					t.Error(err)
					return
				}
				note(placed[0].Offset, data)
			}
		})
	}
	wg.Wait()
	all := contents(t, n.Store, "s")
	if len(all) != 4*40+4*30 || len(told) != len(all) {
		t.Fatalf("%d messages, %d told", len(all), len(told))
	}
	for _, m := range all {
		if told[m.Offset] != string(m.Data) {
			t.Errorf("offset %d holds %s, told was %s", m.Offset, m.Data, told[m.Offset])
		}
	}
}

// What docs/sql.md says a caller sees.
func TestBroadcast_DocumentedTraps(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	n := startNode(t, url, Options{})
	n.publish(t, "a", `0`)
	n.publish(t, "b", `0`)
	first, second := outsider(t, url), outsider(t, url)
	ctx := context.Background()

	t.Run("OppositeOrders", func(t *testing.T) { // one of the two is ended by the server
		tx1, tx2 := begin(t, first), begin(t, second)
		broadcastIn(t, tx1, "a", `1`)
		broadcastIn(t, tx2, "b", `2`)
		errs := make(chan error, 2)
		go func() {
			_, err := tx1.Exec(ctx, `SELECT chronocast.broadcast('b', '1')`)
			errs <- errors.Join(err, tx1.Rollback(ctx))
		}()
		go func() {
			_, err := tx2.Exec(ctx, `SELECT chronocast.broadcast('a', '2')`)
			errs <- errors.Join(err, tx2.Rollback(ctx))
		}()
		codes := codeOf(<-errs) + codeOf(<-errs)
		if codes != "40P01<nil>" && codes != "<nil>40P01" {
			t.Errorf("the two transactions saw %s", codes)
		}
	})
	t.Run("LockTimeout", func(t *testing.T) {
		tx := begin(t, first)
		defer tx.Rollback(ctx) //nolint:errcheck // the end of the test
		broadcastIn(t, tx, "a", `1`)
		execute(t, second, `SET lock_timeout = '50ms'`)
		if _, err := second.Exec(ctx, `SELECT chronocast.broadcast('a', '2')`); codeOf(err) != "55P03" {
			t.Errorf("a broadcast to a held stream: %v", err)
		}
		execute(t, second, `RESET lock_timeout`)
	})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			tx, err := first.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, `SELECT count(*) FROM chronocast.streams`); err != nil {
				t.Fatal(err)
			}
			n.publish(t, "a", `"meanwhile"`)
			n.publish(t, "new "+string(level), `"meanwhile"`)
			part, err := tx.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := part.Exec(ctx, `SELECT chronocast.broadcast('a', '1')`); codeOf(err) != "40001" {
				t.Errorf("a broadcast to a stream that has moved since the snapshot: %v", err)
			}
			_ = part.Rollback(ctx)
			if part, err = tx.Begin(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := part.Exec(ctx, `SELECT chronocast.broadcast($1, '1'::text)`, "new "+string(level)); codeOf(err) != "40001" {
				t.Errorf("a broadcast to a stream made since the snapshot: %v", err)
			}
			_ = part.Rollback(ctx)
			broadcastIn(t, tx, "b", `1`) // that one has not moved
			if err := tx.Commit(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("FullStream", func(t *testing.T) {
		execute(t, first, `UPDATE chronocast.channels SET last_offset = 9007199254740991 WHERE id = (SELECT id FROM chronocast.streams WHERE name = 'b')`)
		if _, err := first.Exec(ctx, `SELECT chronocast.broadcast('b', '1')`); codeOf(err) != "23514" {
			t.Errorf("a broadcast to a full stream: %v", err)
		}
	})
	t.Run("NoRight", func(t *testing.T) {
		role := "app_" + strings.ReplaceAll(n.Node(), "-", "")
		execute(t, first, `CREATE ROLE `+role)
		defer func() {
			execute(t, first, `RESET ROLE`)
			execute(t, first, `DROP OWNED BY `+role)
			execute(t, first, `DROP ROLE `+role)
		}()
		execute(t, first, `SET ROLE `+role)
		if _, err := first.Exec(ctx, `SELECT chronocast.broadcast('a', '1')`); codeOf(err) != "42501" {
			t.Errorf("a broadcast without the right to: %v", err)
		}
		execute(t, first, `RESET ROLE`)
		execute(t, first, `GRANT USAGE ON SCHEMA chronocast TO `+role)
		execute(t, first, `GRANT EXECUTE ON FUNCTION chronocast.broadcast(text, text, text), chronocast.broadcast(text, bytea, text) TO `+role)
		execute(t, first, `SET ROLE `+role)
		if _, err := first.Exec(ctx, `SELECT chronocast.broadcast('a', '1')`); err != nil {
			t.Errorf("a broadcast with the rights of docs/sql.md: %v", err)
		}
		if _, err := first.Exec(ctx, `DELETE FROM chronocast.messages`); codeOf(err) != "42501" {
			t.Errorf("these rights allow more than broadcasting: %v", err)
		}
	})
}
