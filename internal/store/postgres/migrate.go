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
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrationLock)); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT to_regclass('chronocast.migrations') IS NOT NULL`).Scan(&there); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	applied := map[int]string{}
	if there {
		found, err := tx.Query(ctx, `SELECT number, checksum FROM chronocast.migrations`)
		if err != nil {
			return fmt.Errorf("postgres: migrate: %w", err)
		}
		var number int
		var checksum string
		if _, err := pgx.ForEachRow(found, []any{&number, &checksum}, func() error { applied[number] = checksum; return nil }); err != nil {
			return fmt.Errorf("postgres: migrate: %w", err)
		}
	} else if err := createSchema(ctx, tx); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	} else if _, err := tx.Exec(ctx, `CREATE TABLE chronocast.migrations (number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	for n, m := range all {
		sum := sha256.Sum256([]byte(m.sql))
		checksum := hex.EncodeToString(sum[:])
		if was, done := applied[n+1]; done {
			if was != checksum {
				return fmt.Errorf("postgres: migration %s was changed after it had been applied", m.name)
			}
			continue
		}
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return fmt.Errorf("postgres: migration %s: %w", m.name, err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO chronocast.migrations (number, name, checksum) VALUES ($1, $2, $3)`, n+1, m.name, checksum); err != nil {
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

// createSchema makes the schema unless somebody with the right to has done so.
func createSchema(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace('chronocast') IS NOT NULL`).Scan(&there); err != nil || there {
		return err
	}
	_, err := tx.Exec(ctx, `CREATE SCHEMA chronocast`)
	return err
}
