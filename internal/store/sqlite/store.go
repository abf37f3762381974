// Package sqlite keeps the log in one SQLite file. It has one connection that
// writes and a few that only read; in WAL mode neither waits for the other.
//
// Beside FILE there are FILE-wal and FILE-shm, which belong to it, and
// FILE-life, which tells a copy from the original (see lifeFile).
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/migrations"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

var (
	_ sequencer.Log = (*Store)(nil)
	_ history.Log   = (*Store)(nil)
)

// Options are wishes; the zero value of each field is its documented default.
type Options struct {
	// KeyWindow is how long an idempotency key is remembered, counted from its
	// first use; default 1 h.
	KeyWindow time.Duration
	// BusyTimeout is how long a write waits for another process that holds the
	// file's write lock; default 3 s.
	BusyTimeout time.Duration
	// Readers is the number of connections for reading; default 4.
	Readers int
	// MaxWAL is the size in bytes past which the write-ahead log is emptied
	// even if that makes one commit wait; default 64 MiB.
	MaxWAL int64
	// NewLife begins a new epoch even though the files look untouched: after
	// a machine was set back to a snapshot nothing in them tells.
	NewLife bool
	// Now is the clock; default time.Now.
	Now func() time.Time

	Logger *zap.Logger // nil means none
}

func (o Options) withDefaults() Options {
	if o.KeyWindow <= 0 {
		o.KeyWindow = time.Hour
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 3 * time.Second
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	if o.MaxWAL <= 0 {
		o.MaxWAL = 64 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Store is an open database. Its methods may be called concurrently, Append
// by one goroutine at a time.
type Store struct {
	given string // the path that was asked for, perhaps through links
	path  string // of the file itself
	opts  Options
	log   *zap.Logger
	epoch int64 // the life epoch; immutable

	files    []openFile  // the files that must stay where they are; immutable
	replaced atomic.Bool // told already
	cut      atomic.Bool // the log lacks something; written under wmu

	readers chan *conn    // the idle ones
	size    int           // how many there are in all
	done    chan struct{} // closed by Close

	clockBack atomic.Int64 // highest message id that follows a step of the clock backwards

	wmu      sync.Mutex // guards what follows: the right to write
	w        *conn      // nil after it broke; opened again by the next writer
	closed   bool
	life     *lifeFile
	wal      *logFile
	nextID   int64 // of the next message
	tail     int64 // channel id of the message before it; 0 when its id is not nextID-1
	lastAt   int64 // commit time of the newest message
	known    map[string]channelState
	checked  time.Time // when the files were last looked at
	plan     plan      // scratch of Append
	walBytes int64     // payload written since the log was last looked at
	walTry   time.Time // when emptying the write-ahead log was last tried
	walWarn  time.Time // when its failure was last told

	tmu  sync.Mutex // guards trim; held while a step is chosen, never with wmu wanted by Append
	trim trimmer

	dmu   sync.Mutex // guards dirty
	dirty map[int64]struct{}
}

type openFile struct {
	path string
	look func(path string) (os.FileInfo, error)
	info os.FileInfo
}

// maxKnown bounds the channel rows that are remembered between batches.
const maxKnown = 100_000

// checkPause is how long commits may follow each other without a look at the
// files: a server that commits all the time looks a hundred times a second.
const checkPause = 10 * time.Millisecond

// Open opens the database file at path, creating it when it is missing; its
// directory must exist. Symbolic links are followed. Open decides in which epoch the log is served before
// anything can be read from it. It refuses a file that another process serves,
// that is no database of ours, that has a second name, or that a newer version
// has written.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	given, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	real, err := locate(given)
	if err != nil {
		return nil, openFailed(given, err)
	}
	s := &Store{
		given: given,
		path:  real,
		opts:  opts,
		log:   opts.Logger.Named("sqlite"),
		known: make(map[string]channelState),
		dirty: make(map[int64]struct{}),
		done:  make(chan struct{}),
	}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	life, err := openLife(s.path)
	if err != nil {
		return openFailed(s.path, err)
	}
	s.life = life
	if err := createFile(s.path); err != nil {
		return openFailed(s.path, err)
	}
	if err := s.checkOwner(ctx); err != nil {
		return openError(s.path, err)
	}
	if s.w, err = s.openWriter(ctx); err != nil {
		return openError(s.path, err)
	}
	if err := s.prepareFile(ctx); err != nil {
		return openError(s.path, err)
	}
	for _, f := range []openFile{
		// A link that has taken the place of a file is another file.
		{path: s.path, look: os.Lstat},
		{path: s.path + "-wal", look: os.Lstat},
		{path: s.given, look: os.Stat},
		{path: lifePath(s.path), look: os.Lstat},
	} {
		if f.info, err = f.look(f.path); err != nil {
			return fmt.Errorf("sqlite: %w", err)
		}
		s.files = append(s.files, f)
	}
	s.readers = make(chan *conn, s.opts.Readers)
	for range s.opts.Readers {
		c, err := openConn(ctx, s.path, "busy_timeout = 1000", "query_only = 1", "cache_size = -4000")
		if err != nil {
			return openError(s.path, err)
		}
		s.size++
		s.readers <- c
	}
	f, err := os.Open(s.path + "-wal")
	if err != nil {
		return openFailed(s.path, err)
	}
	s.wal = &logFile{f: f}
	// Last, because it writes: what is refused above is left as it was.
	if err := s.decideLife(ctx); err != nil {
		return openError(s.path, err)
	}
	return nil
}

// createFile makes the database file with a mode of its own choice, which
// SQLite then gives to the files beside it too. It must not run while SQLite
// has the file open: closing the descriptor would drop SQLite's locks.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return checkHeader(path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Chmod(0o600)
}

// checkHeader refuses what SQLite would only refuse later and less clearly.
func checkHeader(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var header [16]byte
	n, err := io.ReadFull(f, header[:])
	switch {
	case err == io.EOF: // empty: about to become a database
		return nil
	case err != nil && err != io.ErrUnexpectedEOF:
		return err
	case string(header[:n]) != "SQLite format 3\x00":
		return fmt.Errorf("%s is not a SQLite database; it was left untouched", path)
	}
	return nil
}

// applicationID marks our files in the header of the database: "CHRC".
const applicationID = 0x43485243

func (s *Store) openWriter(ctx context.Context) (*conn, error) {
	return openConn(ctx, s.path,
		strings.TrimPrefix(s.busyTimeout(), "PRAGMA "),
		"journal_mode = WAL",
		"synchronous = FULL",
		"wal_autocheckpoint = 1000",
		fmt.Sprintf("journal_size_limit = %d", min(s.opts.MaxWAL, 16<<20)),
		"cache_size = -16000",
		"temp_store = MEMORY",
	)
}

// checkOwner refuses the database of another program before anything in it is
// changed.
func (s *Store) checkOwner(ctx context.Context) error {
	c, err := openConn(ctx, s.path, strings.TrimPrefix(s.busyTimeout(), "PRAGMA "))
	if err != nil {
		return err
	}
	defer c.close()
	app, err := c.number(ctx, "PRAGMA application_id")
	if err != nil {
		return err
	}
	tables, err := c.number(ctx, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	if app != applicationID && (app != 0 || tables != 0) {
		return errors.New("the file is the database of another program; it was left untouched")
	}
	return nil
}

// prepareFile gives the file the schema we know.
func (s *Store) prepareFile(ctx context.Context) error {
	mode := ""
	if _, err := s.w.first(ctx, "PRAGMA journal_mode", func(row []driver.Value) { mode, _ = row[0].(string) }); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file system does not allow a write-ahead log (journal mode %q)", mode)
	}
	// What is in place is not written again: a full disk must not keep the
	// server from starting and serving what there is.
	app, err := s.w.number(ctx, "PRAGMA application_id")
	if err == nil && app != applicationID {
		err = s.w.script(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID))
	}
	if err != nil {
		return err
	}
	return migrate(ctx, s.w, migrations.SQLite)
}

// decideLife finds out whether the database is the one that was served last,
// with all that was acknowledged, and raises the life epoch when it is not.
// Streams then go on with the offset they have, in the new epoch, so that no
// reader takes what comes for the continuation of what it saw.
func (s *Store) decideLife(ctx context.Context) error {
	identity, err := identity(s.path)
	if err != nil {
		return err
	}
	remembered := s.life.lifeRecord
	now := s.lifeTime()
	var record lifeRecord
	var why string
	err = inTransaction(ctx, s.w, func() error {
		meta, err := s.readMeta(ctx)
		if err != nil {
			return err
		}
		newest, err := s.w.number(ctx, "SELECT max(id) FROM messages")
		if err != nil {
			return err
		}
		if s.lastAt, err = s.w.number(ctx, "SELECT at FROM messages WHERE id = ?", newest); err != nil {
			return err
		}
		top := max(newest, meta.trimmedID)
		s.nextID = max(top, remembered.top) + 1
		s.clockBack.Store(meta.clockBack)

		record = lifeRecord{database: meta.database, epoch: meta.epoch, top: top}
		switch why = otherLife(meta, identity, top, remembered); {
		case meta.epoch == 0:
			why = "" // a fresh database is no cause for alarm
			rand.Read(record.database[:])
			record.epoch = max(now, remembered.epoch+1)
		case why == "" && s.opts.NewLife:
			why = "it was asked for"
			fallthrough
		case why != "":
			record.epoch = max(now, meta.epoch+1, remembered.epoch+1)
		}
		before := meta
		if meta.database, meta.epoch, meta.identity = record.database, record.epoch, identity; meta == before {
			return nil
		}
		return s.writeMeta(ctx, meta)
	})
	if err != nil {
		return err
	}
	s.epoch = record.epoch
	if err := s.life.write(record, true); err != nil {
		return err
	}
	if why != "" {
		s.log.Warn("the database begins a new epoch: readers are told to start over",
			zap.String("reason", why), zap.Int64("epoch", s.epoch))
	}
	return nil
}

// otherLife says why the database cannot be taken for the one remembered, or
// "".
func otherLife(meta meta, identity string, top int64, remembered lifeRecord) string {
	switch {
	case remembered.epoch == 0:
		return "the life file beside the database is missing or damaged"
	case remembered.database != meta.database:
		return "it is not the database that was served here before"
	case remembered.epoch != meta.epoch:
		return "it is a copy from another epoch"
	case top < remembered.top:
		return "it is an older copy: messages that were acknowledged are missing"
	case identity != meta.identity:
		return "the file was copied, moved to another file system or restored"
	}
	return ""
}

// lifeTime is the clock in microseconds and up to a second of chance, so that
// databases made at one instant by a standing clock differ.
func (s *Store) lifeTime() int64 {
	n, err := rand.Int(rand.Reader, big.NewInt(1e6))
	if err != nil {
		panic(err) // cannot happen
	}
	return s.opts.Now().UnixMicro() + n.Int64()
}

// meta is the content of the table of that name.
type meta struct {
	database  [16]byte
	epoch     int64
	identity  string
	trimmedID int64 // highest id of a message that was trimmed
	clockBack int64
}

func (s *Store) readMeta(ctx context.Context) (meta, error) {
	var m meta
	err := s.w.query(ctx, "SELECT name, value FROM meta", func(row []driver.Value) error {
		switch row[0].(string) {
		case "database":
			id, _ := row[1].([]byte)
			copy(m.database[:], id)
		case "epoch":
			m.epoch, _ = row[1].(int64)
		case "identity":
			m.identity, _ = row[1].(string)
		case "trimmed_id":
			m.trimmedID, _ = row[1].(int64)
		case "clock_back":
			m.clockBack, _ = row[1].(int64)
		}
		return nil
	})
	return m, err
}

const sqlMeta = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

func (s *Store) writeMeta(ctx context.Context, m meta) error {
	for _, v := range []struct {
		name  string
		value driver.Value
	}{{"database", m.database[:]}, {"epoch", m.epoch}, {"identity", m.identity}} {
		if err := s.w.exec(ctx, sqlMeta, v.name, v.value); err != nil {
			return err
		}
	}
	return nil
}

// Epoch is the epoch of streams that were never used, and of all streams
// unless their channel row has a newer one.
func (s *Store) Epoch() protocol.Epoch { return protocol.Epoch(s.epoch) }

// CheckFile returns [ErrReplaced] while the path does not name the files that
// are open, or the log was found to have been cut.
func (s *Store) CheckFile() error {
	if err := s.checkFiles(s.files); err != nil {
		return err
	}
	if s.cut.Load() {
		return errLogCut
	}
	if s.replaced.Swap(false) {
		s.log.Info("the database file is back")
	}
	return nil
}

func (s *Store) checkFiles(files []openFile) error {
	for _, f := range files {
		info, err := f.look(f.path)
		if err == nil && os.SameFile(info, f.info) {
			continue
		}
		if !s.replaced.Swap(true) {
			s.log.Error("the database file was moved, replaced or deleted: nothing is stored until it is back or the server is restarted",
				zap.String("file", f.path), zap.Error(err))
		}
		return fmt.Errorf("%w (%s)", ErrReplaced, f.path)
	}
	return nil
}

// Run looks after the files every second until ctx ends: that they are where
// they were, and that the write-ahead log does not outgrow its bound.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.wmu.Lock()
		if !s.closed && s.checkLog() == nil && s.CheckFile() == nil {
			s.limitWAL()
		}
		s.wmu.Unlock()
	}
}

// limitWAL empties the write-ahead log, under wmu, when it has outgrown its
// bound, as it does while readers overlap without a pause: SQLite begins it
// anew only when nobody reads from it. While nothing is written the readers
// soon all read from the database file, and the log can be cut.
func (s *Store) limitWAL() {
	const wait, pause = 100, time.Second // milliseconds for the readers; between attempts
	if s.closed || s.w == nil {
		return
	}
	info, err := os.Stat(s.path + "-wal")
	if err != nil || info.Size() <= s.opts.MaxWAL || time.Since(s.walTry) < pause {
		return
	}
	s.walTry = time.Now()
	ctx := context.Background()
	blocked := int64(0)
	err = s.w.script(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", wait))
	if err == nil {
		_, err = s.w.first(ctx, "PRAGMA wal_checkpoint(TRUNCATE)", func(row []driver.Value) { blocked, _ = row[0].(int64) })
		err = errors.Join(err, s.w.script(ctx, s.busyTimeout()))
	}
	if (err != nil || blocked != 0) && time.Since(s.walWarn) > time.Minute {
		s.walWarn = time.Now()
		s.log.Warn("the write-ahead log cannot be emptied: a long read or another process is in the way",
			zap.Int64("bytes", info.Size()), zap.Error(err))
	}
}

func (s *Store) busyTimeout() string {
	return fmt.Sprintf("PRAGMA busy_timeout = %d", s.opts.BusyTimeout.Milliseconds())
}

// Close waits for the reads under way and closes the files. It may be called
// twice.
func (s *Store) Close() error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if s.closed {
		return nil
	}
	s.checkLog()
	s.closed = true
	close(s.done)
	var conns []*conn
	for range s.size {
		conns = append(conns, <-s.readers)
	}
	if s.w != nil {
		conns = append(conns, s.w)
		s.w = nil
	}
	// SQLite deletes the log by name when the last connection closes. That
	// name may belong to another database by now.
	keep := len(s.files) > 0 && s.CheckFile() != nil
	var errs []error
	if s.wal != nil {
		errs = append(errs, s.wal.f.Close())
	}
	if s.cut.Load() {
		// Closing the last one would move what is left of the log to the
		// database, page by page and without order. They stay open to the end
		// of the process; the next start reads the log as after a crash.
		conns = nil
	}
	for _, c := range conns {
		if keep {
			errs = append(errs, c.keepWAL())
		}
		errs = append(errs, c.close())
	}
	if s.life != nil {
		errs = append(errs, s.life.close(s.epoch == 0))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sqlite: close: %w", err)
	}
	return nil
}
