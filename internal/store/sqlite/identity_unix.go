//go:build unix && !linux

package sqlite

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// identity names the file behind path so that a copy of it has another name.
func identity(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
