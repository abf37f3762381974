// Package pgnotify carries the news of commits between the nodes of one
// PostgreSQL database. News is a hint: it may be lost, doubled or late, and
// brings channel ids and offsets but no payloads; the log is read for those.
//
// One connection of its own listens. It is never pooled, and it is proved alive
// by what it hears: every few seconds the node rings a beat through the store,
// on another connection, and a beat that is rung but not heard ends the
// listening connection. Ringing on another connection matters. A pooler in
// transaction mode delivers what a client rings itself, and nothing else; it
// would pass for a working connection otherwise. It is found out at the first
// beat, said loudly, and polling takes over. So is an address that leads to
// another database than the store's.
package pgnotify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// Topic is the NOTIFY channel.
const Topic = "chronocast"

// Store is the database whose commits the news is about.
type Store interface {
	// Node is this node's name on the doorbell.
	Node() string
	// Names looks stream names up by channel id.
	Names(ctx context.Context, ids []int64) (map[int64]string, error)
	// Notify rings the doorbell with text, on no connection of the bus.
	Notify(ctx context.Context, text string) error
	// Ring says whether any other node listens: a lone node need not ring.
	Ring(on bool)
}

// Listener is whom the news is for.
type Listener interface {
	// Hint says that the stream has reached the offset last, at least.
	Hint(stream string, last uint64)
	// Sweep asks for the heads of all live streams to be compared with the log.
	Sweep()
}

// Options are wishes; the zero value of each field is its documented default.
type Options struct {
	// Beat is the time between two proofs of life, and how long one may take to
	// be heard. A dead connection is replaced within two. Default 3 s.
	Beat time.Duration
	// Poll is the time between two sweeps while notifications do not arrive.
	// Default 100 ms.
	Poll time.Duration
	// Retry is how often listening is tried again meanwhile. Default 10 s.
	Retry time.Duration
	// Told is given what a node tells all of them with [Bus.Tell]; it must not
	// wait. May be nil.
	Told func(text []byte)
	// Logger may be nil.
	Logger *zap.Logger
}

func (o Options) withDefaults() Options {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.Beat, 3 * time.Second}, {&o.Poll, 100 * time.Millisecond}, {&o.Retry, 10 * time.Second}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	if o.Told == nil {
		o.Told = func([]byte) {}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Bus listens for one node.
type Bus struct {
	config   *pgx.ConnConfig
	store    Store
	node     string
	listener Listener
	opts     Options
	log      *zap.Logger

	beats    chan string // what to ring now, beside the regular beats
	news     atomic.Uint64
	connects atomic.Uint64

	mu        sync.Mutex // guards what follows
	state     State
	connected bool          // there is a connection that listens, or should
	heard     uint64        // counts what proved it alive
	unheard   time.Time     // since when a beat is rung and not heard; zero when all were
	polling   chan struct{} // closed while Deaf

	// owned by the goroutine that listens
	known   map[int64]string // channel id → stream name, bounded
	cleared time.Time        // when known was emptied last
	others  map[string]time.Time
	lostAt  time.Time // when the connection was lost; zero while there is one
	warned  time.Time
}

// State is how the bus gets its news.
type State int32

// The states of a bus.
const (
	// Connecting: there is no listening connection. The hub's own sweeps go on.
	Connecting State = iota
	// Listening: notifications arrive.
	Listening
	// Deaf: there is a connection and nothing comes through it; heads are
	// polled.
	Deaf
)

// New makes the bus of the node that store belongs to. url is where to listen:
// a direct address of the same database.
func New(url string, store Store, l Listener, opts Options) (*Bus, error) {
	opts = opts.withDefaults()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("pgnotify: %w", err)
	}
	config.ConnectTimeout = 2 * time.Second
	config.RuntimeParams["application_name"] = "chronocast listener " + store.Node()
	// A peer that is gone without a word is noticed without beats too, while
	// the rest of the database is away and none can be rung.
	config.DialFunc = (&net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
	}).DialContext
	return &Bus{
		config: config, store: store, node: store.Node(), listener: l, opts: opts, log: opts.Logger.Named("bus"),
		beats: make(chan string, 1), polling: make(chan struct{}),
		known: map[int64]string{}, others: map[string]time.Time{},
	}, nil
}

// State tells how the bus gets its news.
func (b *Bus) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Stats counts the doorbells heard from other nodes and the connections made.
func (b *Bus) Stats() (news, connects uint64) { return b.news.Load(), b.connects.Load() }

// Run listens until ctx ends, and returns nil then. It reconnects for ever: at
// once after a loss, then with growing, jittered pauses of up to two seconds.
func (b *Bus) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { b.ringer(ctx) })
	wg.Go(func() { b.poller(ctx) })
	defer wg.Wait()
	failures := 0
	for ctx.Err() == nil {
		heard, err := b.listen(ctx)
		if ctx.Err() != nil {
			break
		}
		b.store.Ring(true) // who else listens is not known now
		if heard {
			failures = 0
		}
		failures++
		if errors.Is(err, errDeaf) {
			b.become(Deaf)
			pause(ctx, jittered(b.opts.Retry))
			continue
		}
		b.lost(err)
		if failures > 1 {
			pause(ctx, jittered(min(time.Duration(failures)*100*time.Millisecond, 2*time.Second)))
		}
	}
	return nil
}

var (
	errDeaf   = errors.New("pgnotify: the connection hears nothing")
	errSilent = errors.New("pgnotify: the connection has gone silent")
)

// lost notes the end of a connection, telling it once in ten seconds.
func (b *Bus) lost(err error) {
	if b.State() != Deaf {
		b.become(Connecting)
	}
	if b.lostAt.IsZero() {
		b.lostAt = time.Now()
	}
	if time.Since(b.warned) >= 10*time.Second {
		b.warned = time.Now()
		b.log.Warn("no listening connection, trying again; news is found by sweeps meanwhile",
			zap.Duration("for", time.Since(b.lostAt).Round(time.Millisecond)), zap.Error(err))
	}
}

func (b *Bus) become(now State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.state
	if now == was {
		return
	}
	b.state = now
	switch {
	case now == Deaf:
		b.log.Error("notifications do not arrive although the connection works: polling takes over, at a cost. " +
			"Is a pooler in transaction mode in between, or another database? Give --listen-database a direct address")
		close(b.polling)
	case was == Deaf:
		b.log.Info("notifications arrive again")
		b.polling = make(chan struct{})
	}
}

// listen serves one connection until it fails. heard says that it worked.
func (b *Bus) listen(ctx context.Context) (heard bool, err error) {
	b.connects.Add(1)
	conn, err := pgx.ConnectConfig(ctx, b.config)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
		defer cancel()
		_ = conn.Close(closing)
	}()
	starting, cancel := context.WithTimeout(ctx, b.opts.Beat)
	_, err = conn.Exec(starting, `LISTEN `+Topic)
	cancel()
	if err != nil {
		return false, err
	}
	b.connect(true)
	defer b.connect(false)
	// What was committed before rang for nobody here.
	b.listener.Sweep()
	b.forget() // the database may be another one
	started, tick := time.Now(), b.opts.Beat/4
	b.ringNow("hello")
	for {
		wait, cancel := context.WithTimeout(ctx, tick)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return heard, ctx.Err()
		case err == nil && b.take(ctx, n):
			b.heardBeat()
			if !heard {
				heard = true
				b.hears()
			}
		case err == nil:
			if heard {
				b.heardBeat() // any news proves it alive
			}
		case !pgconn.Timeout(err):
			return heard, err
		}
		switch waited := b.waited(); {
		case !heard && waited > min(b.opts.Beat, 2*time.Second):
			return false, errDeaf
		case waited > b.opts.Beat:
			return heard, errSilent
		}
		for node, seen := range b.others {
			if time.Since(seen) > 5*b.opts.Beat {
				delete(b.others, node)
			}
		}
		b.store.Ring(len(b.others) > 0 || time.Since(started) < 3*b.opts.Beat)
	}
}

// hears is called when a connection has proved to work.
func (b *Bus) hears() {
	b.become(Listening)
	if !b.lostAt.IsZero() {
		b.log.Info("listening again", zap.Duration("after", time.Since(b.lostAt).Round(time.Millisecond)))
		b.lostAt = time.Time{}
	}
}

func (b *Bus) connect(now bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected = now
	b.heard++
	b.unheard = time.Time{} // what was rung before was for another connection
}

// heardBeat forgets the beats that were rung and not heard.
func (b *Bus) heardBeat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard++
	b.unheard = time.Time{}
}

// waited is for how long a beat has been rung and not heard.
func (b *Bus) waited() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unheard.IsZero() {
		return 0
	}
	return time.Since(b.unheard)
}

func (b *Bus) ringNow(word string) {
	select {
	case b.beats <- word:
	default:
	}
}

// ringer rings beats while there is a connection to hear them. It has a
// goroutine of its own so that a database that answers late holds up no news.
func (b *Bus) ringer(ctx context.Context) {
	tick := time.NewTicker(b.opts.Beat)
	defer tick.Stop()
	for {
		word := "beat"
		select {
		case <-ctx.Done():
			return
		case word = <-b.beats:
		case <-tick.C:
		}
		b.mu.Lock()
		connected, before := b.connected, b.heard
		b.mu.Unlock()
		if !connected {
			continue
		}
		if err := b.store.Notify(ctx, word+" "+b.node); err != nil {
			b.log.Debug("a beat could not be rung", zap.Error(err)) // it proves nothing
			continue
		}
		b.mu.Lock()
		if b.heard == before && b.unheard.IsZero() {
			b.unheard = time.Now()
		}
		b.mu.Unlock()
	}
}

// poller sweeps in place of notifications while none arrive.
func (b *Bus) poller(ctx context.Context) {
	tick := time.NewTicker(b.opts.Poll)
	defer tick.Stop()
	for {
		b.mu.Lock()
		polling := b.polling
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-polling:
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.listener.Sweep()
		}
	}
}

func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
