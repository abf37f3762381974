package sqlite

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// identity names the file behind path so that a copy of it has another name:
// its number and, where the file system keeps it, the moment it was made. The
// device is left out when that moment is known, because device numbers may
// change at a reboot.
func identity(path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", fmt.Errorf("statx %s: %w", path, err)
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		return fmt.Sprintf("%d@%d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
	}
	return fmt.Sprintf("%d:%d:%d", st.Dev_major, st.Dev_minor, st.Ino), nil
}
