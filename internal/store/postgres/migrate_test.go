package postgres

import (
	"strings"
	"sync"
	"testing"

	"github.com/chronocast/chronocast/internal/pgtest"
)

func TestMigrate_ManyAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if n, err := Migrate(t.Context(), url, nil); err != nil || n != 2 {
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
	if lives != 1 || done != 2 {
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
	execute(t, conn, `INSERT INTO chronocast.migrations (number, name, checksum) VALUES (3, '0003_later.sql', 'x')`)
	execute(t, conn, `ALTER TABLE chronocast.messages ADD COLUMN later text; ALTER TABLE chronocast.channels ADD COLUMN later int DEFAULT 1`)
	if n, err := Migrate(t.Context(), url, nil); err != nil || n != 2 {
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
