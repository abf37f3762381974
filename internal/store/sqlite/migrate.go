package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// migration is one numbered file of the schema.
type migration struct {
	number int64
	name   string
	text   string
	sum    string
}

func readMigrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "sqlite/*.sql")
	if err != nil {
		return nil, err
	}
	var all []migration
	for i, name := range names { // sorted
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		base := path.Base(name)
		digits, _, _ := strings.Cut(base, "_")
		number, err := strconv.ParseInt(digits, 10, 32)
		if err != nil || number != int64(i+1) {
			return nil, fmt.Errorf("migration %s should have the number %d", base, i+1)
		}
		sum := sha256.Sum256(text)
		all = append(all, migration{number, base, string(text), hex.EncodeToString(sum[:])})
	}
	return all, nil
}

// migrate brings the schema up to date, each file in a transaction of its own
// together with the note that it was applied.
func migrate(ctx context.Context, c *conn, files fs.FS) error {
	known, err := readMigrations(files)
	if err != nil {
		return err
	}
	if err := c.script(ctx, `CREATE TABLE IF NOT EXISTS migrations (
		number INTEGER PRIMARY KEY, name TEXT NOT NULL, sum TEXT NOT NULL) STRICT`); err != nil {
		return err
	}
	done := 0
	err = c.query(ctx, `SELECT number, name, sum FROM migrations ORDER BY number`, func(row []driver.Value) error {
		number, name, sum := row[0].(int64), row[1].(string), row[2].(string)
		switch {
		case done >= len(known):
			return fmt.Errorf("the database has schema %s, written by a newer version; this one knows it up to %d: run the newer version", name, len(known))
		case number != known[done].number || sum != known[done].sum:
			return fmt.Errorf("the database has schema %s with another content than this version knows: it was written by another build", name)
		}
		done++
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range known[done:] {
		err := inTransaction(ctx, c, func() error {
			if err := c.script(ctx, m.text); err != nil {
				return err
			}
			return c.exec(ctx, `INSERT INTO migrations (number, name, sum) VALUES (?, ?, ?)`, m.number, m.name, m.sum)
		})
		if err != nil {
			return fmt.Errorf("migration %s: %w", m.name, err)
		}
	}
	return nil
}

// inTransaction runs f between BEGIN IMMEDIATE and COMMIT; an error of f or of
// the commit rolls back. It is for rare work: Append has its own.
func inTransaction(ctx context.Context, c *conn, f func() error) error {
	if err := c.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		err = c.exec(context.WithoutCancel(ctx), "COMMIT")
	}
	if err != nil {
		c.exec(context.WithoutCancel(ctx), "ROLLBACK") // fails when SQLite has rolled back by itself
	}
	return err
}
