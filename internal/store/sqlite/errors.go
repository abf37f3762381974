package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/sequencer"
)

// ErrReplaced: the path no longer names the files that the store has open, or
// they have lost a part, so that what it would write could not be found again. It is refused until the
// files are back or the server is started anew.
var ErrReplaced = errors.New("sqlite: the database file was moved, replaced, cut or deleted while it was open")

// ErrInUse: another process serves the same database file.
var ErrInUse = errors.New("sqlite: the database is in use by another process")

var errClosed = fmt.Errorf("%w: %w: sqlite: the store is closed", sequencer.ErrNotStored, sequencer.ErrClosed)

var errReadClosed = fmt.Errorf("%w: the store is closed", history.ErrUnavailable)

// notStored words an error of which it is known that nothing of the batch is
// stored.
func notStored(err error) error {
	switch {
	case errors.Is(err, sequencer.ErrNotStored):
		return err
	case busy(err):
		return fmt.Errorf("%w: %w: sqlite: %w", sequencer.ErrNotStored, sequencer.ErrBusy, err)
	case full(err):
		return fmt.Errorf("%w: %w: sqlite: %w", sequencer.ErrNotStored, sequencer.ErrDiskFull, err)
	}
	return fmt.Errorf("%w: sqlite: %w", sequencer.ErrNotStored, err)
}

func busy(err error) bool {
	switch code(err) {
	case codeBusy, codeLocked, codeInterrupt:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func full(err error) bool {
	// The file that the connections share for bookkeeping has its own code.
	return code(err) == codeFull || extendedCode(err) == codeIOErrShmSize || errors.Is(err, syscall.ENOSPC)
}

// readError words an error of a read.
func readError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, history.ErrUnavailable), errors.Is(err, context.Canceled):
		return fmt.Errorf("sqlite: %s: %w", what, err)
	case busy(err), full(err), code(err) == codeIOErr:
		return fmt.Errorf("%w: sqlite: %s: %w", history.ErrUnavailable, what, err)
	}
	return fmt.Errorf("sqlite: %s: %w", what, err)
}

// openFailed words an error of the file system about the files of the database.
func openFailed(path string, err error) error {
	switch {
	case errors.Is(err, ErrInUse):
		return err // worded already
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("sqlite: the database %s and its directory must be writable, for the file and those that SQLite and the server keep beside it: %w", path, err)
	}
	return fmt.Errorf("sqlite: %w", err)
}

// openError says what to do about a file that cannot be opened.
func openError(path string, err error) error {
	switch code(err) {
	case codeNotADB:
		return fmt.Errorf("sqlite: %s is not a SQLite database: %w", path, err)
	case codeCorrupt:
		return fmt.Errorf("sqlite: %s is damaged; restore it from a backup: %w", path, err)
	case codeCantOpen, codeReadOnly:
		return fmt.Errorf("sqlite: %s cannot be opened for writing; its directory must be writable too: %w", path, err)
	case codeBusy:
		return fmt.Errorf("%w: %s: %w", ErrInUse, path, err)
	}
	return fmt.Errorf("sqlite: open %s: %w", path, err)
}

// ended is the error of a context that is over, together with its cause.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
