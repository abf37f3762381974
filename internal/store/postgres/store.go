// Package postgres is the store for many nodes: any number of servers append
// to, read from and trim one PostgreSQL database (13 or newer).
//
// Three kinds of connection are used. The committing goroutine has one of its
// own, so that its journal row is its alone. Streams whose channel row is held
// by somebody's open transaction are waited for on lanes, a few more of the
// same kind. Readers share a pool. Every new connection, of whatever kind,
// first proves that it leads to the same life of the data as before; see
// life.go.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/sequencer"
)

// Options are wishes; the zero value of each field is its documented default.
type Options struct {
	// KeyWindow is how long an idempotency key is remembered after its first
	// use. Default one hour.
	KeyWindow time.Duration
	// LockWait is how long a batch waits for a channel row before the streams
	// that are held are put aside. Default 50 ms.
	LockWait time.Duration
	// LaneWait is how long a broadcast to a held stream waits before it is
	// refused. Default 2 s.
	LaneWait time.Duration
	// StatementTimeout bounds a read, and a batch with all its retries. Default
	// 3 s.
	StatementTimeout time.Duration
	// ConnectTimeout bounds one attempt to connect. Default 2 s.
	ConnectTimeout time.Duration
	// ResolveTimeout bounds the search for the outcome of a batch whose link
	// broke; it comes on top of StatementTimeout. Default 1.5 s.
	ResolveTimeout time.Duration
	// Readers is the number of pooled connections for reading. Default 8.
	Readers int
	// LifeFile names a small local file that remembers the database last seen.
	// Empty keeps it in memory only.
	LifeFile string
	// NewLife starts a new life of the numbering at once.
	NewLife bool
	// Now is the clock that stamps messages and ages them and their keys; nil
	// is the database server's own, which all nodes share.
	Now func() time.Time
	// Logger may be nil.
	Logger *zap.Logger
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.KeyWindow, time.Hour)
	def(&o.LockWait, 50*time.Millisecond)
	def(&o.LaneWait, 2*time.Second)
	def(&o.StatementTimeout, 3*time.Second)
	def(&o.ConnectTimeout, 2*time.Second)
	def(&o.ResolveTimeout, 1500*time.Millisecond)
	if o.Readers == 0 {
		o.Readers = 8
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Store is one node's access to the database. Append is for one goroutine;
// everything else may be called concurrently.
type Store struct {
	opts   Options
	log    *zap.Logger
	config *pgx.ConnConfig // of every connection; copied for each
	node   string          // this node's name on the doorbell
	ring   atomic.Bool

	pool *pgxpool.Pool
	main *writer
	life *lifeKeeper

	mu     sync.Mutex // guards what follows
	lanes  []*writer  // idle
	cursor int64      // where the next trim step goes on
	full   bool       // the trim round under way has found something to trim
}

var (
	_ sequencer.Waiter = (*Store)(nil)
	_ history.Log      = (*Store)(nil)
)

// Open connects to the database at url, brings its schema up to date and checks
// which life of the data it holds. It fails, with an error that tells no
// password, when the database does not answer within ctx.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	s := &Store{opts: opts, log: opts.Logger.Named("postgres"), node: uuid.NewString()[:8]}
	s.ring.Store(true)
	s.life = newLifeKeeper(opts.LifeFile, opts.NewLife, s.log)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s.config = config.ConnConfig.Copy()
	s.config.ConnectTimeout = opts.ConnectTimeout
	s.config.DialFunc = dialer(opts.StatementTimeout).DialContext
	if err := migrate(ctx, s.config.Copy(), s.log); err != nil {
		return nil, err
	}
	config.ConnConfig = s.config.Copy()
	s.prepare(config.ConnConfig, "reader", opts.LaneWait)
	config.MaxConns = int32(opts.Readers)
	config.PingTimeout = time.Second
	config.HealthCheckPeriod = 5 * time.Second
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := s.checkLife(ctx, conn)
		return err
	}
	s.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := s.pool.Ping(ctx); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	s.main = s.newWriter(opts.LockWait, 0)
	return s, nil
}

// prepare sets what connections of a kind ask of the server, where the address
// does not ask for something else.
func (s *Store) prepare(c *pgx.ConnConfig, kind string, lock time.Duration) {
	set := func(name, value string) {
		if _, chosen := c.RuntimeParams[name]; !chosen {
			c.RuntimeParams[name] = value
		}
	}
	set("application_name", "chronocast "+kind+" "+s.node)
	set("statement_timeout", milliseconds(s.opts.StatementTimeout))
	set("lock_timeout", milliseconds(lock))
	set("idle_in_transaction_session_timeout", milliseconds(2*s.opts.StatementTimeout))
	set("default_transaction_isolation", "read committed")
	set("client_encoding", "UTF8")
	set("timezone", "UTC")
	set("jit", "off")
	// Every statement finds its rows by a key. Plans are made once, and some
	// while a table is still empty: they must not count on that.
	set("enable_seqscan", "off")
	set("enable_bitmapscan", "off")
	set("plan_cache_mode", "force_generic_plan")

}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// dialer makes connections that notice a peer that is gone without a word.
func dialer(patience time.Duration) *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
		Control:         userTimeout(patience),
	}
}

// Node is this node's name on the doorbell.
func (s *Store) Node() string { return s.node }

// Ring says whether commits are to ring the doorbell: they need not when no
// other node listens. It begins as true.
func (s *Store) Ring(on bool) { s.ring.Store(on) }

// clock is the time to be used instead of the server's, or nil.
func (s *Store) clock() *time.Time {
	if s.opts.Now == nil {
		return nil
	}
	now := s.opts.Now()
	return &now
}

// Append implements [sequencer.Log].
func (s *Store) Append(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	return s.main.Append(ctx, batch)
}

// laneTry is the longest a lane waits for a lock in one go. It is shorter than
// PostgreSQL's default deadlock_timeout: when an application's transaction and
// a lane each hold a stream that the other wants, the lane gives way before
// the server picks a victim.
const laneTry = 900 * time.Millisecond

// AppendWaiting implements [sequencer.Waiter]: it appends to streams whose channel row
// is held by somebody else, waiting for it up to LaneWait. It may be called by
// several goroutines.
func (s *Store) AppendWaiting(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	s.mu.Lock()
	var lane *writer
	if n := len(s.lanes); n > 0 {
		lane, s.lanes = s.lanes[n-1], s.lanes[:n-1]
	}
	s.mu.Unlock()
	if lane == nil {
		try := min(s.opts.LaneWait, laneTry)
		lane = s.newWriter(try, s.opts.LaneWait-try)
	}
	results, err := lane.Append(ctx, batch)
	s.mu.Lock()
	s.lanes = append(s.lanes, lane)
	s.mu.Unlock()
	return results, err
}

// Close ends all connections. Nothing may be called after it.
func (s *Store) Close() error {
	s.main.disconnect()
	s.mu.Lock()
	lanes := s.lanes
	s.lanes = nil
	s.mu.Unlock()
	for _, lane := range lanes {
		lane.disconnect()
	}
	s.pool.Close()
	s.life.save()
	return nil
}

// unavailable turns the error of a read into what callers branch on. When it
// was the link that failed, the pool's other connections are given up too: each
// of them would cost the next reader its patience.
func (s *Store) unavailable(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("postgres: %s: %w", what, err)
	}
	if refusal(err) == nil {
		s.pool.Reset()
	}
	return fmt.Errorf("postgres: %s: %w: %w", what, history.ErrUnavailable, err)
}

// Redact returns what url connects to, without its secrets, for people to read.
func Redact(url string) string {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return "postgres"
	}
	return fmt.Sprintf("postgres %s:%d/%s", config.Host, config.Port, config.Database)
}
