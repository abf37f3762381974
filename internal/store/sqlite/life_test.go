package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// reset says why a reader at position p is not continued.
func reset(t *testing.T, s *Store, stream string, p protocol.Position) protocol.Reason {
	t.Helper()
	return head(t, s, stream).Check(p)
}

// TestB58_DeletedFile: the file is deleted while the server is down; the
// numbering begins anew and must not look like the old one.
func TestB58_DeletedFile(t *testing.T) {
	t.Parallel()
	for _, also := range []bool{false, true} {
		t.Run(fmt.Sprintf("life file too %v", also), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.db")
			// The clock stands still, as a coarse one might.
			o := Options{Now: func() time.Time { return time.UnixMicro(1_800_000_000_000_000) }}
			s := mustOpen(t, path, o)
			fill(t, s, "s", 500)
			old := head(t, s, "s").Head()
			mustClose(t, s)
			for _, suffix := range []string{"", "-wal", "-shm"} {
				os.Remove(path + suffix)
			}
			if also {
				os.Remove(lifePath(path))
			}
			s = mustOpen(t, path, o)
			if got := reset(t, s, "s", old); got != protocol.ReasonEpochChanged {
				t.Fatalf("a position of the deleted log: %q", got)
			}
			if !also && int64(old.Epoch) >= s.epoch {
				t.Errorf("epoch %d after %d", s.epoch, old.Epoch)
			}
			p := mustAppend(t, s, one("s", `"new"`))[0].Placed[0]
			if p.Offset != 1 || p.Epoch == old.Epoch {
				t.Fatalf("first position of the new log: %v", p.Position)
			}
			fill(t, s, "s", 600)
			if got := reset(t, s, "s", old); got != protocol.ReasonEpochChanged {
				t.Fatalf("once the new log is longer: %q", got)
			}
		})
	}
}

// TestB59_RestoredCopy: a copy taken at 800 is put back when the head is at
// 1,000, in every way a copy can be put back. The readers start over, whatever
// they had seen; the messages of the copy are there, and the offsets go on.
func TestB59_RestoredCopy(t *testing.T) {
	remove := func(t *testing.T, path string) {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			os.Remove(path + suffix)
		}
	}
	for name, restore := range map[string]func(t *testing.T, backup, path string){
		"over the same file": func(t *testing.T, backup, path string) { copyFile(t, backup+"/a.db", path) },
		"as another file": func(t *testing.T, backup, path string) {
			remove(t, path)
			copyFile(t, backup+"/a.db", path)
		},
		"over the same files, life file too": func(t *testing.T, backup, path string) { copyDir(t, backup, filepath.Dir(path)) },
		"as a whole directory": func(t *testing.T, backup, path string) {
			os.RemoveAll(filepath.Dir(path))
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			copyDir(t, backup, filepath.Dir(path))
		},
		"without a life file": func(t *testing.T, backup, path string) {
			copyFile(t, backup+"/a.db", path)
			os.Remove(lifePath(path))
		},
		"with a damaged life file": func(t *testing.T, backup, path string) {
			copyFile(t, backup+"/a.db", path)
			if err := os.WriteFile(lifePath(path), []byte("what?"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path, backup := filepath.Join(root, "data", "a.db"), filepath.Join(root, "backup")
			for _, dir := range []string{"data", "backup"} {
				if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var o Options
			s := mustOpen(t, path, o)
			fill(t, s, "s", 800)
			mustClose(t, s)
			copyDir(t, filepath.Dir(path), backup)
			s = mustOpen(t, path, o)
			fill(t, s, "s", 200)
			old := head(t, s, "s")
			mustClose(t, s)

			restore(t, backup, path)
			if name == "over the same files, life file too" {
				// Nothing in the files can tell: this is what the option is for.
				o.NewLife = true
			}
			s = mustOpen(t, path, o)
			fill(t, s, "s", 250)
			for _, offset := range []uint64{0, 500, 800, 900, 1000} {
				if got := reset(t, s, "s", protocol.Position{Epoch: old.Epoch, Offset: offset}); got != protocol.ReasonEpochChanged {
					t.Errorf("a reader at %d of the old epoch: %q", offset, got)
				}
			}
			if now := head(t, s, "s"); now.Last != 1050 || now.Epoch <= old.Epoch {
				t.Errorf("span %+v, was %+v", now, old)
			}
			for i, m := range whole(t, s, "s", 0) {
				if string(m.Data) != fmt.Sprint(i+1) {
					t.Fatalf("offset %d holds %s", m.Offset, m.Data)
				}
			}
			epoch := s.epoch
			mustClose(t, s)
			if s = mustOpen(t, path, Options{}); s.epoch != epoch {
				t.Errorf("the next start began another epoch: %d after %d", s.epoch, epoch)
			}
		})
	}
}

// TestB59_OtherDatabase: the file of another server is put in place.
func TestB59_OtherDatabase(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 10)
	old := head(t, s, "s").Head()
	mustClose(t, s)
	s = mustOpen(t, filepath.Join(other, "b.db"), Options{})
	fill(t, s, "s", 50)
	foreign := head(t, s, "s").Head()
	mustClose(t, s)
	if err := os.Rename(filepath.Join(other, "b.db"), path); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, Options{})
	for _, p := range []protocol.Position{old, foreign} {
		if got := reset(t, s, "s", p); got != protocol.ReasonEpochChanged {
			t.Errorf("position %v: %q", p, got)
		}
	}
	if s.Epoch() <= max(old.Epoch, foreign.Epoch) {
		t.Errorf("epoch %d after %d and %d", s.Epoch(), old.Epoch, foreign.Epoch)
	}
}

func TestLife_SurvivesRestartsAndTrimming(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	now := time.UnixMicro(1_800_000_000_000_000)
	o := Options{Now: func() time.Time { return now }}
	s := mustOpen(t, path, o)
	epoch := s.epoch
	for round := range 5 {
		fill(t, s, "s", 20)
		mustClose(t, s)
		now = now.Add(-time.Hour) // and the clock goes wherever it likes
		if s = mustOpen(t, path, o); s.epoch != epoch {
			t.Fatalf("restart %d began epoch %d after %d", round, s.epoch, epoch)
		}
		for more := true; more; {
			var err error
			if more, err = s.Trim(t.Context(), limits("count:1")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLife_FilesMadeAtOneInstantDiffer(t *testing.T) {
	seen := map[int64]bool{}
	for range 5 {
		s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{Now: func() time.Time { return time.UnixMicro(1_800_000_000_000_000) }})
		if seen[s.epoch] {
			t.Fatalf("epoch %d twice", s.epoch)
		}
		seen[s.epoch] = true
	}
}

func TestLife_NewLifeIsForcedOnceAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 3)
	old := head(t, s, "s").Head()
	mustClose(t, s)
	core, logs := observer.New(zap.WarnLevel)
	s = mustOpen(t, path, Options{NewLife: true, Logger: zap.New(core)})
	if got := reset(t, s, "s", old); got != protocol.ReasonEpochChanged {
		t.Errorf("%q", got)
	}
	if logs.Len() != 1 {
		t.Errorf("%d warnings: a new epoch must be told once", logs.Len())
	}
	whole(t, s, "s", 0)
}

func TestOpen_SecondServerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	if second, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrInUse) {
		second.Close()
		t.Fatalf("a second server: %v", err)
	} else if !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("the message %q does not tell", err)
	}
	fill(t, s, "s", 3) // the first goes on
	mustClose(t, s)
	mustOpen(t, path, Options{})
}

// TestCheckFile_NothingIsAcknowledgedIntoALostFile takes the files away under
// the running server, in every way. The one batch that may be under way is
// answered unknown, all others are refused, and reading goes on.
func TestCheckFile_NothingIsAcknowledgedIntoALostFile(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(path string) error{
		"moved":                 func(path string) error { return os.Rename(path, path+".old") },
		"deleted":               os.Remove,
		"log deleted":           func(path string) error { return os.Remove(path + "-wal") },
		"replaced":              func(path string) error { os.Rename(path, path+".old"); return os.WriteFile(path, nil, 0o600) },
		"directory moved":       func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
		"life file deleted":     func(path string) error { return os.Remove(lifePath(path)) },
		"all of them deleted":   func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"moved by a link, kept": func(path string) error { os.Link(path, path+".old"); return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "data", "a.db")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zap.ErrorLevel)
			s := mustOpen(t, path, Options{Logger: zap.New(core)})
			fill(t, s, "s", 5)
			if err := take(path); err != nil {
				t.Fatal(err)
			}
			if name == "life file deleted" { // looked at by the periodic check only
				s.CheckFile()
			}
			s.checked = time.Time{} // as if a moment had passed
			if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "6")}); !errors.Is(err, ErrReplaced) ||
				!errors.Is(err, sequencer.ErrOutcomeUnknown) && !errors.Is(err, sequencer.ErrNotStored) {
				t.Fatalf("first append: %v", err)
			}
			for range 3 {
				_, err := s.Append(t.Context(), []sequencer.Request{one("s", "7")})
				if !errors.Is(err, ErrReplaced) || !errors.Is(err, sequencer.ErrNotStored) || !errors.Is(err, sequencer.ErrBusy) {
					t.Fatalf("next append: %v", err)
				}
				s.CheckFile()
			}
			if got := len(whole(t, s, "s", 0)); got < 5 {
				t.Errorf("%d messages can be read", got)
			}
			if logs.Len() != 1 {
				t.Errorf("told %d times, want once", logs.Len())
			}
			s.Close()
		})
	}
}

func TestCheckFile_HealsWhenTheFileIsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 5)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckFile(); !errors.Is(err, ErrReplaced) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "6")}); !errors.Is(err, sequencer.ErrNotStored) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Trim(t.Context(), limits("count:1")); err == nil {
		t.Fatal("trimmed a file that is not in place")
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	fill(t, s, "s", 5)
	if got := len(whole(t, s, "s", 0)); got != 10 {
		t.Errorf("%d messages", got)
	}
	mustClose(t, s)
	if got := len(whole(t, mustOpen(t, path, Options{}), "s", 0)); got != 10 {
		t.Errorf("%d messages after a restart", got)
	}
}
