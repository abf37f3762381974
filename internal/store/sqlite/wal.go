package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/sequencer"
)

// errLogCut ends a transaction in whose log something seems to be missing.
var errLogCut = fmt.Errorf("%w (the write-ahead log became shorter)", ErrReplaced)

// logFile is the write-ahead log as a file, seen past SQLite, which does not
// notice when somebody cuts it: it goes on writing behind the hole, and all of
// it is gone at the next start.
type logFile struct {
	f    *os.File // there are no locks on this file that a close could drop
	size int64    // the last one known to be right
}

const (
	walHeader  = 32
	walMagic   = 0x377f0682 // the lowest bit tells the byte order of the checksums
	frameExtra = 24         // what the log holds with each page
)

// look returns the size and whether the log begins as one does.
func (l *logFile) look() (size int64, begins bool, err error) {
	info, err := l.f.Stat()
	if err != nil || info.Size() < walHeader {
		return 0, false, err
	}
	var magic [4]byte
	if _, err := l.f.ReadAt(magic[:], 0); err != nil {
		return 0, false, nil // cut at this moment
	}
	return info.Size(), binary.BigEndian.Uint32(magic[:])&^1 == walMagic, nil
}

// plausible says, at little cost, that nothing can be missing. A log of another
// process's making may be implausible and right.
func (l *logFile) plausible() bool {
	size, begins, err := l.look()
	if err != nil || size < l.size || size > 0 && !begins {
		return false
	}
	l.size = size
	return true
}

// checkLog, under wmu and outside of a transaction, returns an error while the
// log lacks something that SQLite counts on. SQLite itself makes the log
// shorter after it has moved everything to the database file, for us or for
// another process; then it counts on nothing.
func (s *Store) checkLog() error {
	if s.wal == nil || !s.cut.Load() && s.wal.plausible() {
		return nil
	}
	var err error
	for range 2 { // another process may empty the log between the two looks
		if err = s.compareLog(); err == nil {
			s.cut.Store(false)
			return nil
		}
	}
	s.cut.Store(true)
	if !s.replaced.Swap(true) {
		s.log.Error("the write-ahead log was cut from outside: nothing is stored until the server is restarted",
			zap.String("file", s.wal.f.Name()), zap.Error(err))
	}
	return errLogCut
}

// compareLog compares the file with what SQLite says to be in it.
func (s *Store) compareLog() error {
	ctx := context.Background()
	if s.w == nil {
		w, err := s.openWriter(ctx)
		if err != nil {
			return err
		}
		s.w = w
	}
	page, err := s.w.number(ctx, "PRAGMA page_size")
	if err != nil {
		return err
	}
	frames := int64(-1)
	// It moves nothing: a checkpoint of a log with a hole would carry the hole
	// into the database.
	if _, err := s.w.first(ctx, "PRAGMA wal_checkpoint(NOOP)", func(row []driver.Value) { frames, _ = row[1].(int64) }); err != nil {
		return err
	}
	size, begins, err := s.wal.look()
	switch need := walHeader + frames*(page+frameExtra); {
	case err != nil:
		return err
	case frames < 0:
		return errors.New("the log cannot be looked at")
	case frames > 0 && (size < need || !begins):
		return fmt.Errorf("it should have %d bytes or more and has %d", need, size)
	}
	s.wal.size = size
	return nil
}

// refusal is the answer to a batch while the files are not in order.
func refusal(err error) error {
	return fmt.Errorf("%w: %w: %w", sequencer.ErrNotStored, sequencer.ErrBusy, err)
}
