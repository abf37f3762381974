// Package server is the door of Chronocast: the HTTP endpoints and the
// WebSocket connections.
package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/internal/socket"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// Appender commits broadcasts; a sequencer.Sequencer does.
type Appender interface {
	Append(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error)
}

// Reader reads what is kept of a stream; a hub.Hub does.
type Reader interface {
	Head(ctx context.Context, stream string) (protocol.Span, error)
	Read(ctx context.Context, stream string, after protocol.Position, limit, maxBytes int) (history.Page, protocol.Reason, error)
}

// Options say how a server behaves. The first block is required, of the rest a
// zero field is its default.
type Options struct {
	Hub        *hub.Hub
	Authorizer Authorizer
	Appender   Appender
	Reader     Reader // Hub when nil

	// Ready tells whether broadcasts and history can be served; nil means
	// always. It is given one second.
	Ready func(ctx context.Context) error
	// Pages are served beside the API. A path that ends with a slash, other
	// than "/" itself, stands for everything below it.
	Pages map[string]http.Handler
	// Samples adds figures to /metrics.
	Samples func() []Sample
	// Announce tells the other nodes what their Announced is to be given; nil
	// when there are none.
	Announce func(ctx context.Context, text []byte) error
	// Proxies are those whose X-Forwarded-For is believed.
	Proxies auth.Proxies

	MaxConnections        int           // 0 is no limit
	MaxAddressConnections int           // of one address; 0 is no limit
	MaxCommandRate        int           // of one connection, in a second; 1,000
	FirstCommandTimeout   time.Duration // for the client to say something; 60 s, negative is no limit
	MaxPayloadBytes       int           // of one broadcast; 1 MiB
	MaxBroadcastBytes     int           // of the body of /broadcast; 8 MiB
	MaxBroadcastItems     int           // in one body of /broadcast; 1,000
	MaxFrameBytes         int           // of one frame from a client; 64 KiB
	MaxIdentifierBytes    int           // of a subscription identifier; 4 KiB
	MaxSubscriptions      int           // of one connection; 1,000
	MaxPage               int           // messages in one page of history; 10,000
	MaxPageBytes          int           // payload bytes in one page of history; 4 MiB
	QueueBytes            int           // waiting for one connection; 1 MiB
	BodyBudget            int           // of all bodies being received; 64 MiB, and never less than one takes
	CommandTimeout        time.Duration // for a client's command; 5 s
	PublishTimeout        time.Duration // for a broadcast to be committed; 5 s
	PingEvery             time.Duration // 3 s
	WriteStall            time.Duration // without progress before a connection is cut; 10 s
	ShutdownTimeout       time.Duration // for everything to end in good order; 10 s

	// Goroutines has every connection served by goroutines of its own, also
	// where a loop could serve all.
	Goroutines bool

	Log *zap.Logger // nil logs nothing
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) withDefaults() Options {
	orDefault(&o.MaxPayloadBytes, 1<<20)
	orDefault(&o.MaxBroadcastBytes, 8<<20)
	orDefault(&o.MaxBroadcastItems, 1000)
	orDefault(&o.MaxFrameBytes, 64<<10)
	orDefault(&o.MaxIdentifierBytes, 4<<10)
	orDefault(&o.MaxSubscriptions, 1000)
	orDefault(&o.MaxPage, 10_000)
	orDefault(&o.MaxPageBytes, 4<<20)
	orDefault(&o.QueueBytes, 1<<20)
	orDefault(&o.BodyBudget, 64<<20)
	o.BodyBudget = max(o.BodyBudget, o.MaxBroadcastBytes+1, o.MaxPayloadBytes+1) // see readBody
	orDefault(&o.MaxCommandRate, 1000)
	orDefault(&o.FirstCommandTimeout, 60*time.Second)
	orDefault(&o.CommandTimeout, 5*time.Second)
	orDefault(&o.PublishTimeout, 5*time.Second)
	orDefault(&o.PingEvery, 3*time.Second)
	orDefault(&o.WriteStall, 10*time.Second)
	orDefault(&o.ShutdownTimeout, 10*time.Second)
	if o.Reader == nil {
		o.Reader = o.Hub
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// Server is the HTTP handler and the owner of the WebSocket connections.
type Server struct {
	opts     Options
	log      *zap.Logger
	sessions *session.Factory
	engine   *socket.Engine
	metrics  metrics
	door     door

	tasks   sync.WaitGroup // connections
	bodies  atomic.Int64   // bytes held of the bodies being received
	refusal atomic.Pointer[refusal]

	mu       sync.Mutex         // guards what follows
	wheel    [pingSlots][]*conn // the connections, by the moment they are pinged
	open     int                // how many there are
	next     int                // slot of the next one
	frames   uint64             // text frames written to those that are gone
	bytes    uint64             // and their payload
	draining bool
}

// New returns a server. It serves as an http.Handler at once; pings and an
// orderly end need [Server.Run].
func New(opts Options) *Server {
	s := &Server{opts: opts.withDefaults()}
	s.log = s.opts.Log.Named("server")
	s.door = door{proxies: s.opts.Proxies, max: s.opts.MaxConnections, maxEach: s.opts.MaxAddressConnections, firstCommand: s.opts.FirstCommandTimeout}
	s.engine = socket.New(socket.Options{
		MaxMessageBytes: s.opts.MaxFrameBytes,
		QueueBytes:      s.opts.QueueBytes,
		WriteStall:      s.opts.WriteStall,
		Goroutines:      s.opts.Goroutines,
		Log:             s.log,
	})
	s.sessions = session.NewFactory(session.Config{
		Hub:                s.opts.Hub,
		Authorizer:         s.opts.Authorizer,
		MaxIdentifierBytes: s.opts.MaxIdentifierBytes,
		MaxSubscriptions:   s.opts.MaxSubscriptions,
		MaxCommandRate:     s.opts.MaxCommandRate,
		CommandTimeout:     s.opts.CommandTimeout,
		Refused:            s.metrics.refused,
		Log:                s.log,
	})
	return s
}

// errStopping is the cause of what is cut short by the end of the server.
var errStopping = errors.New("server: stopping")

// Run serves l until ctx ends, then stops in good order: no new connections,
// requests under way are finished, every client is told to come back, and what
// is queued for it is written. Whatever is left after the shutdown timeout is
// closed. Run closes l, and returns nil unless serving failed. It may be
// called once.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	lst := newListener(l, s.log)
	webLog, err := zap.NewStdLogAt(s.log, zap.WarnLevel)
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headTimeout,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      120 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    maxHeadBytes,
		ConnState:         settled,
		ConnContext:       withConn,
		ErrorLog:          webLog,
	}
	pings, stopPings := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPings()
	failed := make(chan error, 3)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.engine.Run(pings); err != nil {
			failed <- err
		}
	})
	<-s.engine.Ready()
	wg.Go(func() {
		if err := lst.run(pings); err != nil {
			failed <- err
		}
	})
	wg.Go(func() {
		if err := web.Serve(lst); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			failed <- err
		}
	})
	wg.Go(func() { s.pings(pings) })
	wg.Go(func() { s.watch(pings) })

	select {
	case <-ctx.Done():
	case err = <-failed:
		s.log.Error("serving failed", zap.Error(err))
	}

	s.log.Info("stopping", zap.Int("connections", s.Connections()))
	deadline := time.Now().Add(s.opts.ShutdownTimeout)
	end, cancel := context.WithDeadlineCause(context.WithoutCancel(ctx), deadline, errStopping)
	defer cancel()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	if web.Shutdown(end) != nil {
		_ = web.Close()
	}
	s.drain(deadline)
	stopPings()
	wg.Wait()
	s.log.Info("stopped")
	return err
}

// drain tells every client to come back and waits until all are gone.
func (s *Server) drain(deadline time.Time) {
	for _, c := range s.all() {
		c.restart(deadline)
	}
	gone := make(chan struct{})
	go func() {
		s.tasks.Wait()
		close(gone)
	}()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-gone:
		return
	case <-timer.C:
	}
	left := s.all()
	s.log.Warn("connections closed before their clients had read everything", zap.Int("connections", len(left)))
	for _, c := range left {
		c.sock.Abort()
	}
	<-gone
}

// Connections returns how many WebSockets are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// load returns how many connections are open and how many subscriptions they
// have.
func (s *Server) load() (connections, subscriptions int) {
	conns := s.all()
	for _, c := range conns {
		subscriptions += c.sess.Subscriptions()
	}
	return len(conns), subscriptions
}

// written returns how many text frames were written and the bytes of their
// payload.
func (s *Server) written() (frames, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames, bytes = s.frames, s.bytes
	for _, slot := range s.wheel {
		for _, c := range slot {
			f, b := c.sock.Sent()
			frames, bytes = frames+f, bytes+b
		}
	}
	return frames, bytes
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, s.open)
	for _, slot := range s.wheel {
		conns = append(conns, slot...)
	}
	return conns
}

// enter counts a new connection; false once the server is
// stopping. Nothing may be added to tasks when they are being waited for.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.tasks.Add(1)
	return true
}

// add takes a connection in that has entered. When the server began to stop
// meanwhile, so does the connection.
func (s *Server) add(c *conn) {
	s.metrics.upgrades.Add(1)
	s.mu.Lock()
	s.open++
	slot := &s.wheel[s.next]
	c.slot, c.index = int32(s.next), int32(len(*slot))
	*slot = append(*slot, c)
	s.next = (s.next + 1) % pingSlots
	draining := s.draining
	s.mu.Unlock()
	if draining {
		c.restart(time.Now().Add(2 * lingerTime))
	}
}

// remove is the end of what enter and add began.
func (s *Server) remove(c *conn) {
	defer s.tasks.Done()
	s.door.leave(c.seat)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	slot := s.wheel[c.slot]
	last := len(slot) - 1
	slot[c.index] = slot[last]
	slot[c.index].index = c.index
	slot[last] = nil
	s.wheel[c.slot] = slot[:last]
	frames, bytes := c.sock.Sent()
	s.frames += frames
	s.bytes += bytes
}

// pingSlots spreads the pings of all connections over the interval, so that
// they do not hold up everything else at once.
const pingSlots = 64

// pings pings every connection once in an interval.
func (s *Server) pings(ctx context.Context) {
	tick := time.NewTicker(max(s.opts.PingEvery/pingSlots, time.Millisecond))
	defer tick.Stop()
	frames := make(map[protocol.Codec][]byte)
	var conns []*conn
	for slot := 0; ; slot = (slot + 1) % pingSlots {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		conns = append(conns[:0], s.wheel[slot]...)
		s.mu.Unlock()
		now := time.Now().Unix()
		clear(frames)
		for i, c := range conns {
			if i%64 == 63 {
				runtime.Gosched() // a write that cannot wait holds its processor
			}
			if c.sess.Ping(now) {
				continue
			}
			frame, ok := frames[c.codec]
			if !ok {
				frame = protocol.AppendTextFrame(nil, c.codec.AppendPing(nil, now, nil))
				frames[c.codec] = frame
			}
			c.sock.Ping(frame)
		}
		clear(conns)
	}
}
