package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/bus/pgnotify"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/server"
	"github.com/chronocast/chronocast/internal/store/postgres"
	"github.com/chronocast/chronocast/internal/store/sqlite"
	"github.com/chronocast/chronocast/sequencer"
)

// storage is the log a server runs on, whichever database holds it.
type storage interface {
	sequencer.Log
	history.Log
	// Ready returns why broadcasts and history cannot be served now.
	Ready(ctx context.Context) error
	// Background returns what runs beside the hub, as long as it does. told is
	// given what some node has told all of them.
	Background(h *hub.Hub, told func(text []byte)) ([]func(context.Context) error, error)
	// Tell tells all nodes; nil when there are no others. After Background.
	Tell() func(ctx context.Context, text []byte) error
	// Samples are its figures for /metrics.
	Samples() []server.Sample
	// String says where the log is, without secrets.
	String() string
	Close() error
}

// open opens the database, waiting for a server that is not there yet.
func (c config) open(ctx context.Context, log *zap.Logger) (storage, error) {
	if c.isPostgres() {
		return c.openPostgres(ctx, log)
	}
	path, err := c.path()
	if err != nil {
		return nil, err
	}
	store, err := sqlite.Open(ctx, path, sqlite.Options{KeyWindow: c.KeyWindow, NewLife: c.NewLife, Logger: log})
	if err != nil {
		return nil, err
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return sqliteStorage{store, path}, nil
}

// probe is a stream name to ask the database for something cheap with.
const probe = "ready"

type sqliteStorage struct {
	*sqlite.Store
	path string
}

func (s sqliteStorage) String() string           { return "sqlite:" + s.path }
func (s sqliteStorage) Samples() []server.Sample { return nil }

func (s sqliteStorage) Ready(ctx context.Context) error {
	if err := s.CheckFile(); err != nil {
		return err
	}
	_, err := s.Heads(ctx, []string{probe})
	return err
}

func (s sqliteStorage) Tell() func(context.Context, []byte) error { return nil }

func (s sqliteStorage) Background(*hub.Hub, func([]byte)) ([]func(context.Context) error, error) {
	return []func(context.Context) error{s.Run}, nil
}

type postgresStorage struct {
	*postgres.Store
	name   string
	listen string
	root   *zap.Logger
	log    *zap.Logger
	bus    *pgnotify.Bus // nil until Background
}

func (c config) openPostgres(ctx context.Context, log *zap.Logger) (storage, error) {
	s := &postgresStorage{name: postgres.Redact(c.Database), listen: c.Database, root: log, log: log.Named("storage")}
	if c.ListenDatabase != "" {
		s.listen = c.ListenDatabase
	}
	life, err := c.lifeFile()
	if err != nil {
		log.Warn("no place for the life file: a backup that is put back while no node runs may go unnoticed; name one with --life-file", zap.Error(err))
	}
	err = c.awaitDatabase(ctx, log, func(ctx context.Context) (err error) {
		s.Store, err = postgres.Open(ctx, c.Database, postgres.Options{
			KeyWindow: c.KeyWindow, LaneWait: min(2*time.Second, c.PublishTimeout/2), LifeFile: life, NewLife: c.NewLife, Logger: log,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// awaitDatabase calls try until it works, fails for good, or DatabaseWait is
// over: at a deploy the server often starts before its database.
func (c config) awaitDatabase(ctx context.Context, log *zap.Logger, try func(context.Context) error) error {
	name := postgres.Redact(c.Database)
	deadline := time.Now().Add(c.DatabaseWait)
	for told := false; ; {
		// One attempt is made even when there is no time to wait.
		attempt, cancel := context.WithTimeout(ctx, min(10*time.Second, max(time.Until(deadline), time.Second)))
		err := try(attempt)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("stopped while waiting for the database %s: %w", name, err)
		case lacksRights(err):
			return fmt.Errorf("the database %s refuses this role; run `chronocast migrate` as the schema's owner and grant the role its rights (see docs/operations.md): %w", name, err)
		case !passing(err):
			return fmt.Errorf("the database %s cannot be used: %w", name, err)
		case time.Now().After(deadline):
			return fmt.Errorf("the database %s did not answer for %v (--database-wait); is it running, and is the address right? %w",
				name, c.DatabaseWait, err)
		}
		if !told {
			told = true
			log.Warn("the database does not answer yet, waiting for it", zap.String("database", name), zap.Duration("at most", c.DatabaseWait), zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(500*time.Millisecond, max(time.Until(deadline), 10*time.Millisecond))):
		}
	}
}

// lacksRights says that the server knows the role, and does not let it do what
// is needed.
func lacksRights(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// passing says whether waiting may help against err.
func passing(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch refused.Code[:2] {
		case "08", "40", "53", "55", "57", "58":
			return true
		}
		return refused.Code == "25006" // a replica that may be promoted in a moment
	}
	var unreachable *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &unreachable) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (s *postgresStorage) String() string { return s.name }

func (s *postgresStorage) Ready(ctx context.Context) error {
	_, err := s.Heads(ctx, []string{probe})
	return err
}

func (s *postgresStorage) Tell() func(context.Context, []byte) error { return s.bus.Tell }

func (s *postgresStorage) Background(h *hub.Hub, told func([]byte)) (_ []func(context.Context) error, err error) {
	if s.bus, err = pgnotify.New(s.listen, s.Store, h, pgnotify.Options{Told: told, Logger: s.root}); err != nil {
		return nil, err
	}
	return []func(context.Context) error{s.bus.Run, func(ctx context.Context) error { return s.watch(ctx, h) }}, nil
}

// watch looks once a second whether the database is still the same one.
func (s *postgresStorage) watch(ctx context.Context, h *hub.Hub) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for down := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch err := s.Sight(ctx); {
		case err == nil && down:
			s.log.Info("the database answers again")
			h.Sweep()
			down = false
		case err != nil && !down && ctx.Err() == nil:
			s.log.Warn("the database does not answer", zap.Error(err))
			down = true
		}
	}
}

func (s *postgresStorage) Samples() []server.Sample {
	if s.bus == nil {
		return nil
	}
	news, connects := s.bus.Stats()
	var listening uint64
	if s.bus.State() == pgnotify.Listening {
		listening = 1
	}
	return []server.Sample{
		{Name: "bus_listening", Help: "1 while news of other nodes' commits arrives by notification.", Value: listening},
		{Name: "bus_news_total", Help: "Doorbells heard from other nodes.", Counter: true, Value: news},
		{Name: "bus_connects_total", Help: "Attempts to make the listening connection.", Counter: true, Value: connects},
	}
}

// isPostgres says which of the two databases is meant.
func (c config) isPostgres() bool { return isPostgresURL(c.Database) }

func isPostgresURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// checkDatabase returns what is wrong with the addresses, without showing them:
// they may hold a password.
func (c config) checkDatabase() error {
	if !c.isPostgres() {
		if c.ListenDatabase != "" {
			return errors.New("--listen-database is for PostgreSQL; --database names SQLite")
		}
		_, err := c.path()
		return err
	}
	for _, a := range []struct{ flag, url string }{{"database", c.Database}, {"listen-database", c.ListenDatabase}} {
		if a.url == "" && a.flag == "listen-database" {
			continue
		}
		if _, err := url.Parse(a.url); err != nil || !isPostgresURL(a.url) {
			return fmt.Errorf("--%s must be postgres://USER:PASSWORD@HOST:PORT/NAME, with special characters percent-encoded", a.flag)
		}
		if _, err := pgx.ParseConfig(a.url); err != nil {
			return fmt.Errorf("--%s: PostgreSQL's client cannot make sense of the address: check its host, port and parameters", a.flag)
		}
	}
	return nil
}

// lifeFile is where this node remembers the database it has seen last: as it
// was named, or in the user's state directory, one for each database and
// address to serve on.
func (c config) lifeFile() (string, error) {
	if c.LifeFile != "" {
		return c.LifeFile, nil
	}
	dir := os.Getenv("STATE_DIRECTORY") // systemd's
	if dir, _, _ = strings.Cut(dir, ":"); dir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "chronocast")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(postgres.Redact(c.Database) + " " + c.Addr))
	return filepath.Join(dir, "life-"+hex.EncodeToString(sum[:8])+".json"), nil
}
