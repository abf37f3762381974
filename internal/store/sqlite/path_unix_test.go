//go:build unix

package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chronocast/chronocast/sequencer"
)

// refused opens path, which must fail soon, with a message that contains want
// and names no package twice.
func refused(t *testing.T, path, want string) {
	t.Helper()
	answer := make(chan error, 1)
	go func() {
		s, err := Open(background, path, Options{})
		if err == nil {
			s.Close()
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		if err == nil {
			t.Fatalf("%s was opened", path)
		}
		if !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "sqlite: ") != 1 {
			t.Errorf("the message %q should contain %q, and one prefix", err, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("opening %s hangs", path)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// detours are ways to reach real/a.db by another path.
var detours = map[string]func(t *testing.T, root string) string{
	"of the file": func(t *testing.T, root string) string {
		must(t, os.Mkdir(filepath.Join(root, "links"), 0o700))
		must(t, os.Symlink("../real/a.db", filepath.Join(root, "links", "b.db")))
		return filepath.Join(root, "links", "b.db")
	},
	"of a link": func(t *testing.T, root string) string {
		must(t, os.Symlink("real/a.db", filepath.Join(root, "one")))
		must(t, os.Symlink("one", filepath.Join(root, "two")))
		return filepath.Join(root, "two")
	},
	"of the directory": func(t *testing.T, root string) string {
		must(t, os.Symlink("real", filepath.Join(root, "links")))
		return filepath.Join(root, "links", "a.db")
	},
}

// TestOpen_SymlinkIsTheFileItLeadsTo: lock, log and life are those of the file.
func TestOpen_SymlinkIsTheFileItLeadsTo(t *testing.T) {
	t.Parallel()
	for name, link := range detours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			must(t, os.Mkdir(filepath.Join(root, "real"), 0o700))
			path := filepath.Join(root, "real", "a.db")
			s := mustOpen(t, path, Options{})
			fill(t, s, "s", 3)
			epoch := s.epoch
			other := link(t, root)
			if second, err := Open(t.Context(), other, Options{}); !errors.Is(err, ErrInUse) {
				if err == nil {
					second.Close()
				}
				t.Fatalf("a second server through the link: %v", err)
			}
			mustClose(t, s)
			if s = mustOpen(t, other, Options{}); s.epoch != epoch {
				t.Errorf("the link began epoch %d after %d", s.epoch, epoch)
			}
			fill(t, s, "s", 3)
			if second, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrInUse) {
				if err == nil {
					second.Close()
				}
				t.Fatalf("a second server beside the link: %v", err)
			}
			mustClose(t, s)
			if s = mustOpen(t, path, Options{}); s.epoch != epoch || len(whole(t, s, "s", 0)) != 6 {
				t.Errorf("epoch %d after %d", s.epoch, epoch)
			}
		})
	}
}

// TestOpen_NewFileInALinkedDirectory has no file yet to resolve.
func TestOpen_NewFileInALinkedDirectory(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "real"), 0o700))
	must(t, os.Symlink("real", filepath.Join(root, "link")))
	s := mustOpen(t, filepath.Join(root, "link", "a.db"), Options{})
	if real, err := filepath.EvalSymlinks(root); err != nil || s.path != filepath.Join(real, "real", "a.db") {
		t.Errorf("opened %s, %v", s.path, err)
	}
}

// TestCheckFile_LinkLeadsElsewhere: who starts the server again would find
// another file, so this one takes nothing more.
func TestCheckFile_LinkLeadsElsewhere(t *testing.T) {
	t.Parallel()
	for name, link := range detours {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			real := filepath.Join(root, "real")
			must(t, os.Mkdir(real, 0o700))
			mustClose(t, mustOpen(t, filepath.Join(real, "a.db"), Options{}))
			other := link(t, root)
			s := mustOpen(t, other, Options{})
			fill(t, s, "s", 3)
			turn := other
			if info, err := os.Lstat(other); err != nil || info.Mode().IsRegular() {
				turn = filepath.Dir(other)
			}
			must(t, os.Remove(turn))
			must(t, os.Symlink(t.TempDir(), turn))
			if err := s.CheckFile(); !errors.Is(err, ErrReplaced) {
				t.Fatalf("%v", err)
			}
			if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "4")}); !errors.Is(err, sequencer.ErrNotStored) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCheckFile_MovedBehindALink: the path still leads to the file, but the
// log beside it would be opened by another name.
func TestCheckFile_MovedBehindALink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	elsewhere := filepath.Join(t.TempDir(), "a.db")
	must(t, os.Rename(path, elsewhere))
	must(t, os.Symlink(elsewhere, path))
	if err := s.CheckFile(); !errors.Is(err, ErrReplaced) {
		t.Fatalf("%v", err)
	}
}

// TestOpen_RefusesWhatIsNoFileOfItsOwn: soon, clearly, and nothing is left
// behind.
func TestOpen_RefusesWhatIsNoFileOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"pipe":           {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is a named pipe, not a regular file"},
		"directory":      {func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory, not a regular file"},
		"device":         {func(path string) error { return os.Symlink("/dev/null", path) }, "/dev/null is a device, not a regular file"},
		"dangling link":  {func(path string) error { return os.Symlink("nowhere/x.db", path) }, "a symbolic link that leads nowhere"},
		"link to itself": {func(path string) error { return os.Symlink("a.db", path) }, "too many"},
		"link to a pipe": {func(path string) error {
			return errors.Join(syscall.Mkfifo(path+".pipe", 0o600), os.Symlink("a.db.pipe", path))
		}, "is a named pipe"},
		"life file is a pipe":      {func(path string) error { return syscall.Mkfifo(lifePath(path), 0o600) }, "a.db-life is a named pipe"},
		"life file is a directory": {func(path string) error { return os.Mkdir(lifePath(path), 0o700) }, "a.db-life is a directory"},
		"life file is a link": {func(path string) error {
			return os.Symlink("other-life", lifePath(path))
		}, "a.db-life is a symbolic link"},
		"log is a link":       {func(path string) error { return os.Symlink("other", path+"-wal") }, "a.db-wal is a symbolic link"},
		"log is a pipe":       {func(path string) error { return syscall.Mkfifo(path+"-wal", 0o600) }, "a.db-wal is a named pipe"},
		"index is a pipe":     {func(path string) error { return syscall.Mkfifo(path+"-shm", 0o600) }, "a.db-shm is a named pipe"},
		"journal is a pipe":   {func(path string) error { return syscall.Mkfifo(path+"-journal", 0o600) }, "a.db-journal is a named pipe"},
		"empty file, 2 names": {func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Link(path, path+".2")) }, "has 2 names"},
		"a file as directory": {func(path string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(path)), os.WriteFile(filepath.Dir(path), nil, 0o600))
		}, "is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, "data")
			must(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, "a.db")
			must(t, c.make(path))
			list := func() string {
				if name == "a file as directory" {
					return names(t, root)
				}
				return names(t, dir)
			}
			before := list()
			refused(t, path, c.want)
			if after := list(); after != before {
				t.Errorf("before: %s; after: %s", before, after)
			}
		})
	}
}

// TestOpen_HardLink: two servers on one file under two names would have two
// locks and two logs.
func TestOpen_HardLink(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), "a.db"), filepath.Join(t.TempDir(), "b.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 3)
	epoch := s.epoch
	must(t, os.Link(path, other))
	refused(t, other, "has 2 names (hard links)")
	mustClose(t, s)
	refused(t, path, "has 2 names (hard links)")
	must(t, os.Remove(other))
	if s = mustOpen(t, path, Options{}); s.epoch != epoch || len(whole(t, s, "s", 0)) != 3 {
		t.Errorf("epoch %d after %d", s.epoch, epoch)
	}
}

// TestOpen_DirectoryThatCannotBeWritten says what needs to be.
func TestOpen_DirectoryThatCannotBeWritten(t *testing.T) {
	const want = "must be writable"
	if err := openFailed("/data/a.db", &os.PathError{Op: "open", Path: "/data/a.db-life", Err: syscall.EACCES}); !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { os.Chmod(dir, 0o700) })
	if f, err := os.CreateTemp(dir, ""); err == nil {
		f.Close()
		os.Remove(f.Name())
		return // root may write anywhere
	}
	refused(t, filepath.Join(dir, "a.db"), want)
}
