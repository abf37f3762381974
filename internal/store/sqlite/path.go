package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// locate returns the absolute path of the database file itself, with every
// symbolic link on the way resolved: the lock, the log and the life file have
// their names from it, whatever name the file was asked for by. It refuses
// what cannot be a database of its own. Nothing is opened, so nothing can
// block, and nothing is written.
func locate(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(abs)
	if info, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("the directory of the database must exist: %w", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", dir)
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		real, err = locateNew(abs)
	}
	if err != nil {
		return "", err
	}
	for _, suffix := range []string{"", "-life", "-wal", "-shm", "-journal"} {
		if err := checkName(real + suffix); err != nil {
			return "", err
		}
	}
	return real, nil
}

// locateNew is locate for a file that does not exist yet.
func locateNew(abs string) (string, error) {
	if _, err := os.Lstat(abs); err == nil {
		return "", fmt.Errorf("%s is a symbolic link that leads nowhere: make the file it should lead to, or remove it", abs)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

// checkName refuses a name that leads to anything but a regular file with this
// one name, or to nothing.
func checkName(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return checkInfo(path, info)
}

func checkInfo(path string, info os.FileInfo) error {
	if mode := info.Mode(); !mode.IsRegular() {
		return fmt.Errorf("%s is %s, not a regular file", path, kind(mode))
	}
	if n := links(info); n > 1 {
		return fmt.Errorf("%s has %d names (hard links): servers that came by different names would not see each other's lock and log; "+
			"remove the other names, or make a copy of the file", path, n)
	}
	return nil
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "something special"
}
