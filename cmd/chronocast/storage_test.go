package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/internal/pgtest"
)

const password = "s3cr3t%40word"

// withPassword gives an address a password, which a server that trusts everyone
// does not ask for.
func withPassword(url string) string {
	return strings.Replace(url, "postgres@", "postgres:"+password+"@", 1)
}

func quiet(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{password, "s3cr3t@word", "s3cr3t"} {
		if strings.Contains(text, secret) {
			t.Errorf("the password is shown: %s", text)
		}
	}
}

// TestServe_PostgreSQL: publish, end in good order, start again, read on; the
// life file is where it was asked for, and the password nowhere.
func TestServe_PostgreSQL(t *testing.T) {
	url := withPassword(pgtest.Database(t))
	life := filepath.Join(t.TempDir(), "life.json")
	first := startServe(t, "--database", url, "--life-file", life, "--log-level", "debug")
	status, published := fetch(t, "POST", first.url+"/streams/chat%2F42/messages", `{"a":1}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, published)
	}
	if status, body := fetch(t, "GET", first.url+"/metrics", ""); status != 200 || !strings.Contains(body, "chronocast_bus_news_total") {
		t.Errorf("/metrics: %d without the bus", status)
	}
	if code := first.stop(); code != exitOK {
		t.Fatalf("ended with %d: %s", code, first.stderr)
	}
	if _, err := os.Stat(life); err != nil {
		t.Error(err)
	}
	again := startServe(t, "--database", url, "--life-file", life)
	status, second := fetch(t, "POST", again.url+"/streams/chat%2F42/messages", `{"a":2}`)
	if want := strings.Replace(published, `"offset":1`, `"offset":2`, 1); status != http.StatusCreated || second != want {
		t.Errorf("%d %s, want %s", status, second, want)
	}
	quiet(t, first.stderr.String()+again.stderr.String())
}

// TestServe_DatabaseDown: it waits for as long as it was told, with one line,
// then says what is wrong and ends with 1. The password is not shown.
func TestServe_DatabaseDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	began := time.Now()
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--database-wait", "1200ms", "--life-file", filepath.Join(t.TempDir(), "life"),
		"--database", "postgres://me:"+password+"@"+addr+"/app?sslmode=disable")
	if r.code != exitFailed || !strings.Contains(r.stderr, "did not answer for 1.2s") || !strings.Contains(r.stderr, addr) {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
	if n := strings.Count(r.stderr, "waiting for it"); n != 1 {
		t.Errorf("%d lines about waiting: %s", n, r.stderr)
	}
	if d := time.Since(began); d < time.Second || d > 10*time.Second {
		t.Errorf("it waited %v", d)
	}
	quiet(t, r.stderr+r.stdout)
}

// TestServe_AnotherNodeMigrates: the wait for it is bounded like any other.
func TestServe_AnotherNodeMigrates(t *testing.T) {
	url := pgtest.Database(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(0x6368726f6e6f)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--database-wait", "1500ms", "--life-file", filepath.Join(t.TempDir(), "life"), "--database", url)
	if d := time.Since(began); r.code != exitFailed || d > 6*time.Second {
		t.Errorf("code %d after %v", r.code, d)
	}
	if !strings.Contains(r.stderr, "another node is migrating") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// TestServe_RoleWithoutGrants is told what to do.
func TestServe_RoleWithoutGrants(t *testing.T) {
	url := pgtest.Database(t)
	if r := cli(t, runMigrate, nil, "--database", url); r.code != exitOK {
		t.Fatal(r.stderr)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `CREATE ROLE cc_test_bare LOGIN`); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := conn.Exec(ctx, `DROP ROLE cc_test_bare`); err != nil {
			t.Error(err)
		}
	}()
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--life-file", filepath.Join(t.TempDir(), "life"), "--database", strings.Replace(url, "postgres@", "cc_test_bare@", 1))
	if r.code != exitFailed || !strings.Contains(r.stderr, "as the schema's owner") {
		t.Errorf("code %d, stderr %q", r.code, r.stderr)
	}
}

// TestServe_DatabaseThatWillNeverDo fails at once: waiting would not help.
func TestServe_DatabaseThatWillNeverDo(t *testing.T) {
	url := withPassword(pgtest.Database(t))
	began := time.Now()
	r := cli(t, runServe, nil, "--addr", "127.0.0.1:0", "--life-file", filepath.Join(t.TempDir(), "life"), "--database", url[:strings.LastIndex(url, "/")]+"/missing?sslmode=disable")
	if r.code != exitFailed || !strings.Contains(r.stderr, "missing") || time.Since(began) > 10*time.Second {
		t.Errorf("code %d after %v, stderr %q", r.code, time.Since(began), r.stderr)
	}
	quiet(t, r.stderr)
}

// TestServe_WrongAddressesKeepTheirPassword: an address that cannot be read is
// refused without being shown.
func TestServe_WrongAddressesKeepTheirPassword(t *testing.T) {
	for _, url := range []string{"postgress://u:s3cr3t@h/db", "postgres://u:s3cr3t%zz@h/db", "postgres://u:s3cr3t@h:x/db", "postgres://u:s3cr3t@h/db?sslmode=no", "s3cr3t"} {
		r := cli(t, runServe, nil, "--database", url)
		if r.code != exitUsage || !strings.Contains(r.stderr, "--database") {
			t.Errorf("%s: code %d, stderr %q", url, r.code, r.stderr)
		}
		quiet(t, r.stderr)
		if r = cli(t, runMigrate, nil, "--database", url); r.code != exitUsage {
			t.Errorf("migrate %s: code %d", url, r.code)
		}
		quiet(t, r.stderr)
	}
}

// TestMigrate_AnyTimeAndTwice, beside a server that runs.
func TestMigrate_AnyTimeAndTwice(t *testing.T) {
	url := pgtest.Database(t)
	var said []string
	for range 2 {
		r := cli(t, runMigrate, nil, "--database", withPassword(url))
		if r.code != exitOK || !strings.HasPrefix(r.stdout, "schema ") {
			t.Fatalf("code %d, %q, %q", r.code, r.stdout, r.stderr)
		}
		quiet(t, r.stdout+r.stderr)
		said = append(said, strings.Fields(r.stdout)[1])
		startServe(t, "--database", url, "--life-file", filepath.Join(t.TempDir(), "life"))
	}
	if said[0] != said[1] {
		t.Errorf("schema %s, then %s", said[0], said[1])
	}
	if r := cli(t, runMigrate, nil, "--database", "sqlite:x.db"); r.code != exitUsage || !strings.Contains(r.stderr, "serve") {
		t.Errorf("SQLite: code %d, %q", r.code, r.stderr)
	}
}

// TestServe_RoleWithoutOwnership: what docs/operations.md grants is enough for a
// server, and for an application that broadcasts from SQL.
func TestServe_RoleWithoutOwnership(t *testing.T) {
	url := pgtest.Database(t)
	if r := cli(t, runMigrate, nil, "--database", url); r.code != exitOK {
		t.Fatal(r.stderr)
	}
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, grants, _ := strings.Cut(string(text), "```sql\n")
	grants, _, found := strings.Cut(grants, "```")
	if !found {
		t.Fatal("docs/operations.md has no SQL")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	// Roles belong to the whole server: this test's own names.
	grants = strings.NewReplacer("chronocast_node", "cc_test_node", "my_app", "cc_test_app").Replace(grants)
	if _, err := conn.Exec(ctx, `CREATE ROLE cc_test_app LOGIN; `+grants); err != nil {
		t.Fatalf("%v\n%s", err, grants)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, `DROP OWNED BY cc_test_node, cc_test_app CASCADE; DROP ROLE cc_test_node, cc_test_app`); err != nil {
			t.Error(err)
		}
	})
	as := func(role string) string { return strings.Replace(url, "postgres@", role+"@", 1) }
	s := startServe(t, "--database", as("cc_test_node"), "--life-file", filepath.Join(t.TempDir(), "life"), "--retain-count", "1")
	if status, body := fetch(t, "POST", s.url+"/streams/a/messages", `1`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	app, err := pgx.Connect(ctx, as("cc_test_app"))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close(ctx)
	if _, err := app.Exec(ctx, `SELECT chronocast.broadcast('a', '2'::text)`); err != nil {
		t.Errorf("broadcast: %v", err)
	}
	if _, err := app.Exec(ctx, `SELECT FROM chronocast.messages`); err == nil {
		t.Error("the application may read the tables")
	}
	if status, body := fetch(t, "GET", s.url+"/streams/a", ""); status != 200 || !strings.Contains(body, `"last":2`) {
		t.Errorf("%d %s", status, body)
	}
	s.stop()
	if text := s.stderr.String(); strings.Contains(text, "denied") {
		t.Errorf("a right is missing: %s", text)
	}
}

func TestConfig_LifeFile(t *testing.T) {
	c := defaults()
	c.Database = "postgres://me:" + password + "@h/db"
	state := t.TempDir()
	t.Setenv("STATE_DIRECTORY", "")
	t.Setenv("XDG_STATE_HOME", state)
	one, err := c.lifeFile()
	if err != nil || filepath.Dir(one) != filepath.Join(state, "chronocast") {
		t.Errorf("%s %v", one, err)
	}
	quiet(t, one)
	c.Addr = "127.0.0.1:9"
	if two, _ := c.lifeFile(); two == one {
		t.Error("two nodes of one machine share a life file")
	}
	t.Setenv("STATE_DIRECTORY", filepath.Join(state, "svc"))
	if three, err := c.lifeFile(); err != nil || filepath.Dir(three) != filepath.Join(state, "svc") {
		t.Errorf("%s %v", three, err)
	}
	c.LifeFile = "x"
	if named, err := c.lifeFile(); err != nil || named != "x" {
		t.Errorf("%s %v", named, err)
	}
}
