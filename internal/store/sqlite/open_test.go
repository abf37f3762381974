package sqlite

import (
	"database/sql/driver"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/migrations"
)

func limits(s string) history.Retention {
	l, err := history.ParseLimits(s)
	if err != nil {
		panic(err)
	}
	return history.Retention{Default: l}
}

func TestOpen_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	write := func(content string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	database := func(sql string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			c := outsider(t, path)
			if err := c.script(background, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	ours := func(sql string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			mustClose(t, mustOpen(t, path, Options{}))
			database(sql)(t, path)
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"no database":   {write(strings.Repeat("just some text\n", 100)), "is not a SQLite database"},
		"short":         {write("x"), "is not a SQLite database"},
		"damaged":       {write("SQLite format 3\x00" + strings.Repeat("\xff", 5000)), "a.db"},
		"other program": {database("CREATE TABLE recipes (name TEXT)"), "another program"},
		"newer schema":  {ours("INSERT INTO migrations VALUES (99, '0099_future.sql', 'x')"), "newer version"},
		"other build":   {ours("UPDATE migrations SET sum = 'x'"), "another build"},
		"a directory": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "directory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.db")
			c.make(t, path)
			before, _ := os.ReadFile(path)
			s, err := Open(t.Context(), path, Options{})
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "sqlite: ") {
				t.Errorf("the message %q should contain %q", err, c.want)
			}
			foreign := name == "no database" || name == "short" || name == "other program"
			if after, _ := os.ReadFile(path); foreign && string(after) != string(before) {
				t.Error("the file was changed")
			}
			if files, _ := filepath.Glob(path + "?*"); foreign && len(files) > 0 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "missing", "a.db"), Options{}); err == nil || !strings.Contains(err.Error(), "directory of the database must exist") {
		t.Errorf("a missing directory: %v", err)
	}
}

func TestMigrate_AppliesWhatIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	mustClose(t, mustOpen(t, path, Options{}))
	first, err := migrations.SQLite.ReadFile("sqlite/0001_log.sql")
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{
		"sqlite/0001_log.sql":  {Data: first},
		"sqlite/0002_more.sql": {Data: []byte("CREATE TABLE more (x INTEGER); INSERT INTO more VALUES (7);")},
		"sqlite/0003_bad.sql":  {Data: []byte("CREATE TABLE bad (x INTEGER); INSERT INTO nowhere VALUES (1);")},
	}
	c := outsider(t, path)
	if err := migrate(background, c, files); err == nil || !strings.Contains(err.Error(), "0003_bad.sql") {
		t.Errorf("a bad migration: %v", err)
	}
	for sql, want := range map[string]int64{
		"SELECT max(number) FROM migrations":                          2,
		"SELECT x FROM more":                                          7,
		"SELECT count(*) FROM sqlite_schema WHERE name = 'bad'":       0,
		"SELECT count(*) FROM migrations WHERE sum = '' OR sum = 'x'": 0,
	} {
		if got, err := c.number(background, sql); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", sql, got, err, want)
		}
	}
	delete(files, "sqlite/0003_bad.sql")
	if err := migrate(background, c, files); err != nil {
		t.Error(err)
	}
	files["sqlite/0004_hole.sql"] = &fstest.MapFile{}
	if err := migrate(background, c, files); err == nil {
		t.Error("a hole in the numbering was accepted")
	}
}

// TestB112_CommitsAreSynced looks at what the writing connection really does;
// see also TestB112_OneSyncPerCommit.
func TestB112_CommitsAreSynced(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	check := func() {
		t.Helper()
		for sql, want := range map[string]string{
			"PRAGMA synchronous":    "2", // FULL
			"PRAGMA journal_mode":   "wal",
			"PRAGMA busy_timeout":   "3000",
			"PRAGMA application_id": fmt.Sprint(applicationID),
		} {
			got := ""
			if _, err := s.w.first(background, sql, func(row []driver.Value) { got = fmt.Sprint(row[0]) }); err != nil || got != want {
				t.Errorf("%s: %s, %v, want %s", sql, got, err, want)
			}
		}
	}
	check()
	s.dropWriter() // as after a failed rollback
	fill(t, s, "s", 3)
	check()
	if err := s.read(t.Context(), "test", func(c *conn) error { return c.exec(background, "DELETE FROM messages") }); err == nil {
		t.Error("a reading connection can write")
	}
}

// TestB34_ReadsUseAnIndex looks at the plans of the statements that run over
// messages: none may scan a table or sort.
func TestB34_ReadsUseAnIndex(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	fill(t, s, "s", 3)
	for _, sql := range []string{
		sqlSpan, sqlPage, sqlAt, sqlSizes, sqlChannel, sqlChannelByID, sqlFindKey, sqlNextChannels, sqlOldest, sqlOldestKeys,
		sqlDeleteRange, sqlDeleteRuns, sqlDeleteOldKeys, sqlRaiseFloor,
	} {
		args := make([]driver.Value, strings.Count(sql, "?"))
		if strings.Contains(sql, "?1") {
			args = args[:3] // numbered: three at most
		}
		err := s.w.query(background, "EXPLAIN QUERY PLAN "+sql, func(row []driver.Value) error {
			plan := row[3].(string)
			if strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("%s: %s", sql, plan)
			}
			return nil
		}, args...)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
