package hub

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

// Sink is one connection's outlet. All its methods may be called concurrently.
type Sink interface {
	// Push takes whole frames in order, all or none, and never blocks. It
	// returns false when there is no room now. A Push on an empty queue always
	// succeeds. Each element is ready for the wire: one or more whole unmasked
	// WebSocket text frames, headers included. The bytes are shared by all
	// receivers: the sink must not change them. The slice that holds them is
	// the caller's again when Push returns.
	Push(frames [][]byte) bool
	// Room arranges for f to be called once, from another goroutine and
	// without locks held, when the queue has fallen below its low-water mark:
	// at once when it is below now.
	Room(f func())
	// Cut ends the connection: what is queued so far is dropped but a partly
	// written frame, a disconnect frame with the reason and reconnect:true is
	// sent, then the connection is closed.
	Cut(reason protocol.DisconnectReason)
}

// ErrClosed: the hub has stopped, or the subscription was closed.
var ErrClosed = errors.New("hub: closed")

// Options are the wishes of a hub's owner. Zero fields take the defaults.
type Options struct {
	Shards         int           // fan-out goroutines; default GOMAXPROCS
	TurnSize       int           // subscriptions of a stream served before others have their turn; default 128
	CatchUpWorkers int           // goroutines that serve replays and lagging readers; default 8
	FillWorkers    int           // goroutines that fill the gaps of streams; default 4
	GapDelay       time.Duration // how long a gap may close by itself before the log is read; default 5 ms
	SweepEvery     time.Duration // how often heads are compared with the log; default 1 s
	ReadTimeout    time.Duration // bound of one read of the log; default 5 s
	Linger         time.Duration // how long a stream is kept after its last subscriber; default 60 s
	MaxIdle        int           // how many such streams are kept; default 10,000

	InboxMessages int // hints waiting per shard, over which the log is read instead; default 65,536
	InboxBytes    int // and their bytes; default 32 MiB

	Tail        history.TailLimits // window and held messages of one stream
	Shared      bool               // other nodes commit to the log too: what this one knows of a head may be old
	WindowTotal int64              // bytes of all windows together; default 64 MiB
	CacheBytes  int                // pages and frames kept for readers that catch up; default 16 MiB

	Logger *zap.Logger // nil means none
}

func orDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (o Options) withDefaults() Options {
	orDefault(&o.Shards, runtime.GOMAXPROCS(0))
	orDefault(&o.TurnSize, 128)
	orDefault(&o.CatchUpWorkers, 8)
	orDefault(&o.FillWorkers, 4)
	orDefault(&o.GapDelay, 5*time.Millisecond)
	orDefault(&o.SweepEvery, time.Second)
	orDefault(&o.ReadTimeout, 5*time.Second)
	orDefault(&o.Linger, 60*time.Second)
	orDefault(&o.MaxIdle, 10_000)
	orDefault(&o.InboxMessages, 65_536)
	orDefault(&o.InboxBytes, 32<<20)
	orDefault(&o.WindowTotal, 64<<20)
	orDefault(&o.CacheBytes, 16<<20)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Hub is the fan-out of one node. Its methods may be called concurrently.
type Hub struct {
	log    history.Log
	opts   Options
	logger *zap.Logger

	seed   maphash.Seed
	shards []*shard
	lives  atomic.Uint64 // last number given to a life of a stream in memory
	uses   atomic.Uint64 // clock of the least recently used windows
	window atomic.Int64  // bytes of all windows

	catchups queue[*Subscription]
	fills    queue[*stream]
	later    later
	cache    cache
	spans    flights[protocol.Span]
	pages    flights[history.Page]
	sinces   flights[since]

	sweepNow chan struct{}
	evictNow chan struct{}
	outage   outage
	resets   atomic.Int64 // when a reset was last told in the log, in nanoseconds since 1970
	n        counters

	// ctx bounds the reads of the log that callers share; it ends with Run.
	// background counts those reads, so that Run can wait for them.
	ctx        context.Context
	stop       context.CancelCauseFunc
	background sync.WaitGroup
	closeMu    sync.Mutex // guards closed, and background.Add against Wait
	closed     bool
}

// New returns a hub that reads from log. It delivers while [Hub.Run] runs.
func New(log history.Log, opts Options) *Hub {
	opts = opts.withDefaults()
	h := &Hub{
		log:      log,
		opts:     opts,
		logger:   opts.Logger.Named("hub"),
		seed:     maphash.MakeSeed(),
		sweepNow: make(chan struct{}, 1),
		evictNow: make(chan struct{}, 1),
	}
	h.ctx, h.stop = context.WithCancelCause(context.Background())
	h.catchups.init()
	h.fills.init()
	h.later.init()
	h.cache.limit = opts.CacheBytes / 2
	h.spans.hub, h.pages.hub, h.sinces.hub = h, h, h
	for range opts.Shards {
		h.shards = append(h.shards, newShard(h))
	}
	return h
}

// Run delivers until ctx ends, and returns nil when all its goroutines are
// gone. It may be called once. Afterwards nothing is pushed any more.
func (h *Hub) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for i, sh := range h.shards {
		w := &worker{hub: h, shard: sh, index: i}
		wg.Go(func() { w.work(h.ctx) })
	}
	for range h.opts.CatchUpWorkers {
		f := new(feeder)
		wg.Go(func() { h.catchups.work(h.ctx, f.catchUp) })
	}
	for range h.opts.FillWorkers {
		wg.Go(func() { h.fills.work(h.ctx, (*stream).fill) })
	}
	wg.Go(func() { h.later.run(h.ctx) })
	wg.Go(func() { h.sweeper(h.ctx) })
	wg.Go(func() { h.keeper(h.ctx) })

	<-ctx.Done()
	h.closeMu.Lock()
	h.closed = true
	h.closeMu.Unlock()
	h.stop(ErrClosed)
	wg.Wait()
	h.background.Wait()
	return nil
}

// goBackground runs f in a goroutine that Run waits for; false when the hub
// has stopped.
func (h *Hub) goBackground(f func()) bool {
	h.closeMu.Lock()
	defer h.closeMu.Unlock()
	if h.closed {
		return false
	}
	h.background.Go(f)
	return true
}

// Publish hands committed messages to the hub, in any order, any number of
// times. It never blocks on a reader. Batches of streams nobody listens to are
// dropped; when too much is waiting the messages are dropped as well, and read
// from the log instead. The hub keeps the messages: do not change them.
func (h *Hub) Publish(batches []protocol.Batch) {
	for i := range batches {
		if len(batches[i].Messages) == 0 {
			continue
		}
		sh := h.shard(batches[i].Stream)
		if s := sh.lookup(batches[i].Stream); s != nil && s.post(batches[i]) {
			sh.enqueue(s)
		}
	}
}

// Hint tells that the stream has reached the offset last, at least, somewhere
// else: the log is read at once when this node has subscribers who miss it. It
// never blocks.
func (h *Hub) Hint(stream string, last uint64) {
	s := h.shard(stream).lookup(stream)
	if s == nil {
		return
	}
	if s.hint(last) {
		h.fills.push(s)
	}
}

// Sweep asks for heads to be compared with the log now. It does not wait. Call
// it when hints may have been lost, or when messages were trimmed.
func (h *Hub) Sweep() { signal(h.sweepNow) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (h *Hub) shard(stream string) *shard {
	return h.shards[maphash.String(h.seed, stream)%uint64(len(h.shards))]
}

// logReset tells that a stream begins anew: a new life of the log resets
// every stream at once, so only the first of a minute is a warning.
func (h *Hub) logReset(stream string, reason protocol.Reason, had, head protocol.Position) {
	level := zap.DebugLevel
	now, last := time.Now().UnixNano(), h.resets.Load()
	if now-last >= int64(time.Minute) && h.resets.CompareAndSwap(last, now) {
		level = zap.WarnLevel
	}
	h.logger.Log(level, "stream cannot be continued, restarting at the head of the log", zap.String("stream", stream),
		zap.String("reason", string(reason)), zap.Stringer("had", had), zap.Stringer("head", head))
}
