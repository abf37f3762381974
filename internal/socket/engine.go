package socket

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Handler is the owner of a connection. Its methods are called without locks
// held, and may use the connection.
type Handler interface {
	// Message handles one text message, which is the handler's from then on. It
	// is called for one message after the other and may wait; ctx ends when the
	// connection begins to end.
	Message(ctx context.Context, text []byte)
	// Stalled tells that the client has taken nothing for [Options.WriteStall]
	// though something is waiting for it. It should end the connection.
	Stalled()
	// Ended is called once, after everything else: the connection is closed.
	Ended()
}

// Options are what the connections of an engine share. A zero field is its
// default.
type Options struct {
	MaxMessageBytes int           // of one message from a client, beyond which it is closed with 1009; 64 KiB
	QueueBytes      int           // waiting for one client; 1 MiB
	WriteStall      time.Duration // without progress before Stalled is called; 10 s

	// Goroutines has every connection served by goroutines of its own, also
	// where there is epoll.
	Goroutines bool

	Log *zap.Logger // nil logs nothing
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Engine runs connections.
type Engine struct {
	opts  Options
	start time.Time // what the times in connections are counted from
	tasks sync.WaitGroup
	pool  *pool
	poll  *poller // nil where there is no epoll

	eager   atomic.Int32 // connections that have sent a burst of commands and go on
	running atomic.Bool
	ready   chan struct{} // closed when Run serves
}

// New returns an engine. Before [Engine.Run], and after it, connections are
// served by goroutines of their own.
func New(opts Options) *Engine {
	orDefault(&opts.MaxMessageBytes, 64<<10)
	orDefault(&opts.QueueBytes, 1<<20)
	orDefault(&opts.WriteStall, 10*time.Second)
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	e := &Engine{opts: opts, start: time.Now(), ready: make(chan struct{})}
	e.pool = newPool(&e.tasks)
	return e
}

// Ready returns a channel that is closed when Run has begun to serve.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Run serves the connections opened meanwhile, until ctx ends; those that are
// left then and are read by its loop are closed. It returns when all connections
// are gone. It may be called once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.opts.Goroutines {
		p, err := newPoller(e)
		if err != nil {
			e.opts.Log.Warn("no epoll, every connection takes goroutines of its own", zap.Error(err))
		}
		e.poll = p
	}
	if e.poll == nil {
		close(e.ready)
		<-ctx.Done()
		e.tasks.Wait()
		return nil
	}
	e.running.Store(true)
	close(e.ready)
	err := e.poll.run(ctx, &e.running)
	e.pool.close()
	e.tasks.Wait()
	return err
}

// now is the time since the engine began.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

func (e *Engine) lowWater() int { return e.opts.QueueBytes / 4 }
