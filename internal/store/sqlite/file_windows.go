package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

var errLocked = errors.New("locked")

const nonblock = 0

// links is not known here: os.FileInfo does not carry it.
func links(os.FileInfo) uint64 { return 1 }

// lockFile takes an exclusive lock that ends with the handle, and so with the
// process. The locked range lies beyond the record, which stays readable.
func lockFile(f *os.File) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{Offset: 1 << 20})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errLocked
	}
	return err
}

// identity is not known here: os.FileInfo carries no stable file number. A
// restored copy is still found by its id and by being behind.
func identity(path string) (string, error) { return "", nil }
