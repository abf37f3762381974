package sqlite

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// TestOpen_FileModes: whatever the umask, nobody else may read the messages.
func TestOpen_FileModes(t *testing.T) {
	// Not parallel: the umask belongs to the process.
	for _, mask := range []int{0, 0o022, 0o077} {
		before := syscall.Umask(mask)
		path := filepath.Join(t.TempDir(), "a.db")
		s := mustOpen(t, path, Options{})
		fill(t, s, "s", 3)
		whole(t, s, "s", 0)
		for _, p := range []string{path, path + "-wal", path + "-shm", lifePath(path)} {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("umask %03o: %s has mode %o", mask, filepath.Base(p), info.Mode().Perm())
			}
		}
		mustClose(t, s)
		syscall.Umask(before)
	}
}

// TestB113_FileSystemFull fills a small file system of its own, where the
// process may mount one. TestB113_DatabaseFull is the same without.
func TestB113_FileSystemFull(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Logf("no file system may be mounted here (%v): only what runs everywhere is checked", err)
	} else {
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), filepath.Join(dir, "a.db"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		testDiskFull(t, s, func() {
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		})
		epoch := s.epoch
		mustClose(t, s)
		s, err = Open(t.Context(), filepath.Join(dir, "a.db"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if s.epoch != epoch {
			t.Error("a full disk began another epoch")
		}
		whole(t, s, "s", 0)
		mustClose(t, s)

		// A server can be started on a disk that has no room at all.
		fillDisk(t, ballast)
		s, err = Open(t.Context(), filepath.Join(dir, "a.db"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if s.epoch != epoch {
			t.Error("a start on a full disk began another epoch")
		}
		whole(t, s, "s", 0)
	}
}

// fillDisk writes a file until there is no room for a byte more.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
}

const syncsEnv = "CHRONOCAST_TEST_SYNCS"

// TestB112_OneSyncPerCommit counts the system calls of a process that commits
// a known number of times, where they can be traced.
func TestB112_OneSyncPerCommit(t *testing.T) {
	t.Parallel()
	const commits = 40
	if path := os.Getenv(syncsEnv); path != "" { // the traced process
		s := mustOpen(t, path, Options{})
		for range commits {
			mustAppend(t, s, one("s", "1"))
		}
		return
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-o", trace, "-e", "trace=fsync,fdatasync", os.Args[0], "-test.run=^TestB112_OneSyncPerCommit$")
	cmd.Env = append(os.Environ(), syncsEnv+"="+filepath.Join(t.TempDir(), "a.db"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("system calls cannot be traced here (%v: %.200s); TestB112_CommitsAreSynced looks at the setting", err, out)
		return
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	syncs := len(regexp.MustCompile(`\bf(data)?sync\(`).FindAllString(string(text), -1))
	if syncs < commits {
		t.Errorf("%d commits made %d syncs", commits, syncs)
	}
	t.Logf("%d commits made %d syncs", commits, syncs)
}
