package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/migrations"
)

// migrationLock is the advisory lock that lets one node migrate at a time.
const migrationLock = 0x6368726f6e6f

// Migrate brings the schema of the database at url up to date and returns the
// number of the newest migration. Several nodes may call it at once.
func Migrate(ctx context.Context, url string, log *zap.Logger) (int, error) {
	if log == nil {
		log = zap.NewNop()
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, fmt.Errorf("postgres: %w", err)
	}
	if err := migrate(ctx, config, log); err != nil {
		return 0, err
	}
	all, err := numbered()
	return len(all), err
}

type migration struct{ name, sql string }

// numbered returns the embedded migrations; number n stands at index n-1.
func numbered() ([]migration, error) {
	files, err := fs.Glob(migrations.Postgres, "postgres/*.sql") // in order of names
	if err != nil {
		return nil, fmt.Errorf("postgres: migrations: %w", err)
	}
	all := make([]migration, 0, len(files))
	for n, file := range files {
		text, err := fs.ReadFile(migrations.Postgres, file)
		if err != nil {
			return nil, fmt.Errorf("postgres: migrations: %w", err)
		}
		name := path.Base(file)
		if !strings.HasPrefix(name, fmt.Sprintf("%04d_", n+1)) {
			return nil, fmt.Errorf("postgres: migrations: %s stands where number %d should", name, n+1)
		}
		all = append(all, migration{name, string(text)})
	}
	return all, nil
}

// migrate applies what is missing, in order, all in one transaction under an
// advisory lock. What was applied before must have the same bytes still. A
// database that is newer than this binary is accepted: during a rolling deploy
// the old nodes go on for a while, and migrations only add.
func migrate(ctx context.Context, config *pgx.ConnConfig, log *zap.Logger) error {
	delete(config.RuntimeParams, "lock_timeout") // another node may be migrating
	delete(config.RuntimeParams, "statement_timeout")
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version int
	var encoding string
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding')`).Scan(&version, &encoding)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	if version < 130000 {
		return fmt.Errorf("postgres: the server is version %d; 13 or newer is needed", version/10000)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("postgres: the database's encoding is %s; stream names need UTF8", encoding)
	}
	all, err := numbered()
	if err != nil {
		return err
	}
	// A role that may not change the schema finds here that it need not.
	if current, err := upToDate(ctx, conn, all); err != nil || current {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	if err := takeTurn(ctx, tx, log); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	applied, there, err := appliedIn(ctx, tx)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	if !there {
		if err := createSchema(ctx, tx); err != nil {
			return fmt.Errorf("postgres: migrate: %w", err)
		}
		if _, err := tx.Exec(ctx, `CREATE TABLE chronocast.migrations (number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, at timestamptz NOT NULL DEFAULT now())`); err != nil {
			return fmt.Errorf("postgres: migrate: %w", err)
		}
	}
	for n, m := range all {
		done, err := m.isIn(applied, n+1)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return fmt.Errorf("postgres: migration %s: %w", m.name, err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO chronocast.migrations (number, name, checksum) VALUES ($1, $2, $3)`, n+1, m.name, m.checksum()); err != nil {
			return fmt.Errorf("postgres: migration %s: %w", m.name, err)
		}
		log.Info("migrated", zap.String("migration", m.name))
	}
	// Up to a second is taken off so that two databases made at the same
	// instant differ.
	epoch := time.Now().UnixMicro() - rand.Int64N(1_000_000)
	if _, err := tx.Exec(ctx, bornSQL, epoch); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	return nil
}

// pollTurn is how often the advisory lock is tried.
const pollTurn = 50 * time.Millisecond

// takeTurn takes the advisory lock until the transaction ends. Another node may
// be migrating, for as long as ctx allows; that is told after a second.
func takeTurn(ctx context.Context, tx pgx.Tx, log *zap.Logger) error {
	for began, told := time.Now(), false; ; {
		var mine bool
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, int64(migrationLock)).Scan(&mine)
		if err != nil || mine {
			return err
		}
		if !told && time.Since(began) >= time.Second {
			told = true
			log.Info("another node is migrating the database, waiting for it")
		}
		if !wait(ctx, pollTurn) {
			return fmt.Errorf("another node is migrating the database: %w", ctx.Err())
		}
	}
}

// upToDate says that nothing is to be done.
func upToDate(ctx context.Context, conn *pgx.Conn, all []migration) (bool, error) {
	applied, there, err := appliedIn(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("postgres: migrate: %w", err)
	}
	if !there {
		return false, nil
	}
	for n, m := range all {
		if done, err := m.isIn(applied, n+1); err != nil || !done {
			return false, err
		}
	}
	var alive bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM chronocast.life)`).Scan(&alive); err != nil && !isMissing(err) {
		return false, fmt.Errorf("postgres: migrate: %w", err)
	}
	return alive, nil
}

// appliedIn reads the checksums of what was applied, by number, and whether
// there is a place for them yet.
func appliedIn(ctx context.Context, q interface {
	querier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) (applied map[int]string, there bool, err error) {
	// The catalog itself is asked: within a transaction to_regclass may go on
	// saying what it said before another node's commit.
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'chronocast' AND c.relname = 'migrations')`).Scan(&there); err != nil || !there {
		return nil, false, err
	}
	found, err := q.Query(ctx, `SELECT number, checksum FROM chronocast.migrations`)
	if err != nil {
		return nil, false, err
	}
	applied = map[int]string{}
	var number int
	var checksum string
	_, err = pgx.ForEachRow(found, []any{&number, &checksum}, func() error { applied[number] = checksum; return nil })
	return applied, true, err
}

func (m migration) checksum() string {
	sum := sha256.Sum256([]byte(m.sql))
	return hex.EncodeToString(sum[:])
}

// isIn says that m, whose number is n, was applied, and has not changed since.
func (m migration) isIn(applied map[int]string, n int) (bool, error) {
	was, done := applied[n]
	if done && was != m.checksum() {
		return false, fmt.Errorf("postgres: migration %s was changed after it had been applied", m.name)
	}
	return done, nil
}

// createSchema makes the schema unless somebody with the right to has done so.
func createSchema(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace('chronocast') IS NOT NULL`).Scan(&there); err != nil || there {
		return err
	}
	_, err := tx.Exec(ctx, `CREATE SCHEMA chronocast`)
	return err
}
