package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/internal/pgtest"
)

func TestMigrate_ManyAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if n, err := Migrate(t.Context(), url, nil); err != nil || n != 3 {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	wg.Wait()
	conn := outsider(t, url)
	var lives, done int
	if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM chronocast.life), (SELECT count(*) FROM chronocast.migrations)`).Scan(&lives, &done); err != nil {
		t.Fatal(err)
	}
	if lives != 1 || done != 3 {
		t.Errorf("%d lives, %d migrations noted", lives, done)
	}
}

func TestMigrate_ChangedFileIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	if _, err := Migrate(t.Context(), url, nil); err != nil {
		t.Fatal(err)
	}
	execute(t, outsider(t, url), `UPDATE chronocast.migrations SET checksum = 'other' WHERE number = 2`)
	if _, err := Migrate(t.Context(), url, nil); err == nil || !strings.Contains(err.Error(), "0002_broadcast.sql was changed") {
		t.Errorf("%v", err)
	}
	if _, err := Open(t.Context(), url, Options{}); err == nil {
		t.Error("a database of another schema was opened")
	}
}

// During a rolling deploy the new nodes migrate and the old ones go on.
func TestMigrate_NewerDatabaseIsAccepted(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	old := startNode(t, url, Options{})
	old.publish(t, "s", `1`)
	conn := outsider(t, url)
	execute(t, conn, `INSERT INTO chronocast.migrations (number, name, checksum) VALUES (4, '0004_later.sql', 'x')`)
	execute(t, conn, `ALTER TABLE chronocast.messages ADD COLUMN later text; ALTER TABLE chronocast.channels ADD COLUMN later int DEFAULT 1`)
	if n, err := Migrate(t.Context(), url, nil); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	old.publish(t, "s", `2`)
	newer := startNode(t, url, Options{})
	newer.publish(t, "s", `3`)
	if got := payloads(t, old.Store, "s"); len(got) != 3 {
		t.Errorf("stored %v", got)
	}
}

// A role that may not create schemas gets along with one made for it.
func TestMigrate_WithoutTheRightToMakeSchemas(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := outsider(t, url)
	role := strings.TrimPrefix(url[strings.LastIndex(url, "chronocast_"):], "chronocast_")[:12]
	role = "r" + role
	execute(t, admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'p'`)
	defer func() {
		execute(t, admin, `DROP OWNED BY `+role)
		execute(t, admin, `DROP ROLE `+role)
	}()
	execute(t, admin, `CREATE SCHEMA chronocast AUTHORIZATION `+role)
	at := strings.Index(url, "@")
	s := mustOpen(t, "postgres://"+role+":p"+url[at:], Options{})
	if results, err := s.Append(t.Context(), nil); err != nil || len(results) != 0 {
		t.Errorf("%v, %v", results, err)
	}
	if span := head(t, s, "s"); span.Epoch == 0 {
		t.Errorf("%+v", span)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Where nothing is to be done nobody's turn is waited for; where something is,
// the wait ends with the caller's patience, and is told.
func TestMigrate_WhileAnotherNodeDoes(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	holder := outsider(t, url)
	execute(t, holder, `SELECT pg_advisory_lock($1)`, int64(migrationLock))
	core, lines := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := Migrate(ctx, url, zap.New(core))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if n := lines.FilterMessageSnippet("another node is migrating").Len(); n != 1 {
		t.Errorf("%d lines about it", n)
	}
	execute(t, holder, `SELECT pg_advisory_unlock($1)`, int64(migrationLock))
	if _, err := Migrate(t.Context(), url, nil); err != nil {
		t.Fatal(err)
	}
	execute(t, holder, `SELECT pg_advisory_lock($1)`, int64(migrationLock))
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if n, err := Migrate(ctx, url, nil); err != nil || n != 3 {
		t.Errorf("nothing to be done: %d, %v", n, err)
	}
}
