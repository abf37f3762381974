//go:build unix

package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/sequencer"
)

// TestCheckFile_LogCutFromOutside: what was in the log is gone, and what came
// after the hole would be lost at the next start.
func TestCheckFile_LogCutFromOutside(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]int64{"to nothing": 0, "to its header": 32, "by a little": -1} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.db")
			core, logs := observer.New(zap.ErrorLevel)
			s := mustOpen(t, path, Options{Logger: zap.New(core)})
			fill(t, s, "s", 5)
			epoch := s.epoch
			cutLog(t, path, to)
			for range 3 {
				_, err := s.Append(t.Context(), []sequencer.Request{one("s", "7")})
				if !errors.Is(err, ErrReplaced) || !errors.Is(err, sequencer.ErrNotStored) || !errors.Is(err, sequencer.ErrBusy) {
					t.Fatalf("append: %v", err)
				}
				if err := s.CheckFile(); !errors.Is(err, ErrReplaced) {
					t.Fatalf("check: %v", err)
				}
			}
			if _, err := s.Trim(t.Context(), limits("count:1")); err == nil {
				t.Error("trimmed")
			}
			if logs.Len() != 1 {
				t.Errorf("told %d times, want once", logs.Len())
			}
			mustClose(t, s)
			// A process that starts then finds a database in order. (A copy: in
			// this process SQLite would still know the log as it was.)
			dir := t.TempDir()
			copyDir(t, filepath.Dir(path), dir)
			must(t, os.Remove(filepath.Join(dir, "a.db-shm")))
			if s = mustOpen(t, filepath.Join(dir, "a.db"), Options{}); s.epoch <= epoch {
				t.Errorf("epoch %d after %d", s.epoch, epoch)
			}
			fill(t, s, "s", 5)
			whole(t, s, "s", 0)
			if problem := integrity(t, s); problem != "ok" {
				t.Error(problem)
			}
		})
	}
}

// cutLog makes the log of the database shorter, by one byte when to is -1.
func cutLog(t *testing.T, path string, to int64) {
	t.Helper()
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if to < 0 {
		to += info.Size()
	}
	if err := os.Truncate(path+"-wal", to); err != nil {
		t.Fatal(err)
	}
}

// TestCheckFile_LogCutInACommit cuts the log while a transaction is open.
func TestCheckFile_LogCutInACommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 5)
	// The request cuts the log when it is asked whether it has ended: last
	// before the commit.
	ctx := &cutter{Context: t.Context(), cut: func() { cutLog(t, path, 0) }}
	if _, err := s.Append(ctx, []sequencer.Request{one("s", "6")}); !errors.Is(err, ErrReplaced) || !errors.Is(err, sequencer.ErrNotStored) {
		t.Fatalf("append: %v", err)
	}
	if err := s.CheckFile(); !errors.Is(err, ErrReplaced) {
		t.Fatalf("check: %v", err)
	}
}

// TestCheckFile_LogWrittenOverAHole: the commit was under way when the log was
// cut, so the file is long again, but begins with nothing.
func TestCheckFile_LogWrittenOverAHole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 5)
	cutLog(t, path, 0)
	cutLog(t, path, 1<<20)
	if err := s.CheckFile(); err != nil && !errors.Is(err, ErrReplaced) {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "6")}); !errors.Is(err, ErrReplaced) {
		t.Fatalf("append: %v", err)
	}
}

// TestCheckFile_LogThatShrinksByItself: SQLite cuts the log too, for us or for
// another program that may.
func TestCheckFile_LogThatShrinksByItself(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{MaxWAL: 64 << 10})
	other := outsider(t, path)
	for round := range 40 {
		fill(t, s, "s", 100)
		switch round % 4 {
		case 0:
			if err := other.script(background, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path + "-wal"); err != nil || info.Size() != 0 {
				t.Fatalf("not cut: %v, %v", info, err)
			}
		case 1:
			s.wmu.Lock()
			s.limitWAL()
			s.wmu.Unlock()
		case 2:
			if err := other.script(background, "PRAGMA journal_size_limit = 0; PRAGMA wal_checkpoint(RESTART); UPDATE meta SET value = value WHERE name = 'epoch'"); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.CheckFile(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if more, err := s.Trim(t.Context(), limits("count:50")); err != nil {
			t.Fatalf("round %d: %v, %v", round, more, err)
		}
	}
	fill(t, s, "s", 1)
}

func integrity(t *testing.T, s *Store) (said string) {
	t.Helper()
	if _, err := s.w.first(background, "PRAGMA integrity_check", func(row []driver.Value) { said, _ = row[0].(string) }); err != nil {
		t.Fatal(err)
	}
	return said
}

// cutter is a context that calls cut when it is first asked for its error.
type cutter struct {
	context.Context
	cut func()
}

func (c *cutter) Err() error {
	if c.cut != nil {
		c.cut()
		c.cut = nil
	}
	return c.Context.Err()
}
