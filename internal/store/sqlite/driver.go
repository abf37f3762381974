package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// This file is all that knows which SQLite is linked in. The store needs plain
// connections that it schedules itself, so database/sql and its pool stay out.

// conn is one connection. It is used by one goroutine at a time.
type conn struct {
	dc    driver.Conn
	stmts map[string]*stmt
}

type stmt struct {
	c    *conn
	ds   driver.Stmt
	args []driver.NamedValue
	row  []driver.Value
}

var syncOnce sync.Once

// openConn opens the database file at path, creating it when it is missing,
// and runs the pragmas on it.
func openConn(ctx context.Context, path string, pragmas ...string) (*conn, error) {
	// A commit is as durable with fdatasync and spares the journal of the file
	// system one write; every build of SQLite by a distribution does the same.
	syncOnce.Do(func() { sqlite.Fdatasync(true) })

	dsn := "file:" + strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	dc, err := (&sqlite.Driver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	c := &conn{dc: dc, stmts: make(map[string]*stmt)}
	for _, p := range pragmas {
		if err := c.script(ctx, "PRAGMA "+p); err != nil {
			c.close()
			return nil, fmt.Errorf("pragma %s: %w", p, err)
		}
	}
	return c, nil
}

func (c *conn) close() error {
	for _, s := range c.stmts {
		s.ds.Close()
	}
	c.stmts = nil
	return c.dc.Close()
}

// script runs SQL text of any number of statements, unprepared.
func (c *conn) script(ctx context.Context, sql string) error {
	_, err := c.dc.(driver.ExecerContext).ExecContext(ctx, sql, nil)
	return err
}

// prepare returns the statement for sql, prepared once in the connection's
// life.
func (c *conn) prepare(sql string) (*stmt, error) {
	if s, ok := c.stmts[sql]; ok {
		return s, nil
	}
	ds, err := c.dc.Prepare(sql)
	if err != nil {
		return nil, err
	}
	s := &stmt{c: c, ds: ds}
	c.stmts[sql] = s
	return s, nil
}

// exec runs one statement. Arguments are int64, string, []byte or nil.
func (c *conn) exec(ctx context.Context, sql string, args ...driver.Value) error {
	_, err := c.run(ctx, sql, args)
	return err
}

// change runs one statement and returns how many rows it has changed.
func (c *conn) change(ctx context.Context, sql string, args ...driver.Value) (int64, error) {
	r, err := c.run(ctx, sql, args)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (c *conn) run(ctx context.Context, sql string, args []driver.Value) (driver.Result, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return nil, err
	}
	s.bind(args)
	return s.ds.(driver.StmtExecContext).ExecContext(ctx, s.args)
}

// query runs one statement and calls each for every row; the row is valid only
// during the call. errStop from each ends the query without an error.
func (c *conn) query(ctx context.Context, sql string, each func(row []driver.Value) error, args ...driver.Value) error {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	s.bind(args)
	rows, err := s.ds.(driver.StmtQueryContext).QueryContext(ctx, s.args)
	if err != nil {
		return err
	}
	if s.row == nil {
		s.row = make([]driver.Value, len(rows.Columns()))
	}
	for {
		err = rows.Next(s.row)
		if err == nil {
			err = each(s.row)
		}
		if err != nil {
			break
		}
	}
	if err == io.EOF || err == errStop {
		err = nil
	}
	return errors.Join(err, rows.Close())
}

// first runs a query of at most one row and says whether there was one.
func (c *conn) first(ctx context.Context, sql string, each func(row []driver.Value), args ...driver.Value) (bool, error) {
	found := false
	err := c.query(ctx, sql, func(row []driver.Value) error {
		found = true
		each(row)
		return errStop
	}, args...)
	return found, err
}

// number runs a query for one integer; no row and NULL are zero.
func (c *conn) number(ctx context.Context, sql string, args ...driver.Value) (int64, error) {
	var n int64
	_, err := c.first(ctx, sql, func(row []driver.Value) { n, _ = row[0].(int64) }, args...)
	return n, err
}

var errStop = errors.New("sqlite: stop")

func (s *stmt) bind(args []driver.Value) {
	if len(s.args) != len(args) {
		s.args = make([]driver.NamedValue, len(args))
		for i := range s.args {
			s.args[i].Ordinal = i + 1
		}
	}
	for i, a := range args {
		s.args[i].Value = a
	}
}

// code returns the primary SQLite result code of err, 0 when it has none.
func code(err error) int { return extendedCode(err) & 0xff }

func extendedCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

const (
	codeBusy       = lib.SQLITE_BUSY
	codeLocked     = lib.SQLITE_LOCKED
	codeInterrupt  = lib.SQLITE_INTERRUPT
	codeFull       = lib.SQLITE_FULL
	codeIOErr      = lib.SQLITE_IOERR
	codeCorrupt    = lib.SQLITE_CORRUPT
	codeNotADB     = lib.SQLITE_NOTADB
	codeConstraint = lib.SQLITE_CONSTRAINT
	codeReadOnly   = lib.SQLITE_READONLY
	codeCantOpen   = lib.SQLITE_CANTOPEN

	codeIOErrShmSize = lib.SQLITE_IOERR_SHMSIZE // an extended code
)

// keepWAL stops the connection from deleting the write-ahead log by name when
// it is the last one to close.
func (c *conn) keepWAL() error {
	_, err := c.dc.(sqlite.FileControl).FileControlPersistWAL("main", 1)
	return err
}

// inTransaction says whether a transaction is open, by trying to open one.
func (c *conn) inTransaction() bool {
	if err := c.exec(context.Background(), "BEGIN"); err != nil {
		return true
	}
	return c.exec(context.Background(), "ROLLBACK") != nil
}
