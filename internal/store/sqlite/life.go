package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// lifeFile is the small file beside the database that remembers, outside of
// it, which database it was and how far it had come. A database that has been
// deleted, restored from a copy or exchanged is recognized by it: the copy is
// behind, or has another id.
//
// The file also carries the lock that keeps a second server away; the lock is
// on this file and not on the database because closing any descriptor of the
// database would drop the locks that SQLite holds on it.
type lifeFile struct {
	f    *os.File
	info os.FileInfo
	lifeRecord
	empty bool // nothing was ever written to it
	buf   [lifeSize]byte
}

// lifeRecord is what the file says. The zero record is of no database.
type lifeRecord struct {
	database [16]byte
	epoch    int64
	// top is the highest message id whose commit was acknowledged. It is
	// written after each commit without a sync, so after a power loss it may
	// be too low and never too high.
	top int64
}

const lifeSize = 64

var lifeMagic = [16]byte{'c', 'h', 'r', 'o', 'n', 'o', 'c', 'a', 's', 't', '-', 'l', 'i', 'f', 'e', 1}

func lifePath(path string) string { return path + "-life" }

// openLife opens and locks the life file, creating it when it is missing. A
// record that cannot be read counts as none.
func openLife(path string) (*lifeFile, error) {
	f, err := os.OpenFile(lifePath(path), os.O_RDWR|os.O_CREATE|nonblock, 0o600)
	if err != nil {
		return nil, err
	}
	l := &lifeFile{f: f}
	if err := l.open(); err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

func (l *lifeFile) open() error {
	info, err := l.f.Stat()
	if err != nil {
		return err
	}
	if err := checkInfo(l.f.Name(), info); err != nil {
		return err
	}
	if err := lockFile(l.f); err != nil {
		if errors.Is(err, errLocked) {
			return fmt.Errorf("%w (its lock on %s is held)", ErrInUse, l.f.Name())
		}
		return fmt.Errorf("lock %s: %w", l.f.Name(), err)
	}
	l.info = info
	if info.Mode().Perm() != 0o600 {
		if err := l.f.Chmod(0o600); err != nil {
			return err
		}
	}
	n, err := l.f.ReadAt(l.buf[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	l.empty = n == 0
	l.lifeRecord, _ = decodeLife(l.buf[:n])
	return nil
}

// close gives up the lock. A file that was made by an Open that failed is
// removed, so that nothing is left beside a file that is not ours.
func (l *lifeFile) close(failed bool) error {
	if failed && l.empty {
		return errors.Join(os.Remove(l.f.Name()), l.f.Close())
	}
	return errors.Join(l.f.Sync(), l.f.Close())
}

// write replaces the record with one write, durable when sync is set.
func (l *lifeFile) write(r lifeRecord, sync bool) error {
	l.lifeRecord, l.empty = r, false
	r.encode(&l.buf)
	if _, err := l.f.WriteAt(l.buf[:], 0); err != nil {
		return err
	}
	if sync {
		return l.f.Sync()
	}
	return nil
}

// advance notes that messages up to top are committed.
func (l *lifeFile) advance(top int64) error {
	r := l.lifeRecord
	r.top = top
	return l.write(r, false)
}

func (r lifeRecord) encode(buf *[lifeSize]byte) {
	copy(buf[:], lifeMagic[:])
	copy(buf[16:], r.database[:])
	binary.LittleEndian.PutUint64(buf[32:], uint64(r.epoch))
	binary.LittleEndian.PutUint64(buf[40:], uint64(r.top))
	binary.LittleEndian.PutUint32(buf[60:], crc32.ChecksumIEEE(buf[:60]))
}

func decodeLife(b []byte) (lifeRecord, bool) {
	var r lifeRecord
	if len(b) != lifeSize || [16]byte(b[:16]) != lifeMagic ||
		binary.LittleEndian.Uint32(b[60:]) != crc32.ChecksumIEEE(b[:60]) {
		return r, false
	}
	copy(r.database[:], b[16:])
	r.epoch = int64(binary.LittleEndian.Uint64(b[32:]))
	r.top = int64(binary.LittleEndian.Uint64(b[40:]))
	return r, r.epoch > 0 && r.top >= 0
}
