// Package sequencer gives broadcasts their committed places. Callers that
// arrive while a commit is under way share the next one: the more there are,
// the larger the commits become, and no one waits for a timer.
package sequencer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
)

// Options are wishes; the zero value of each field is its documented default.
type Options struct {
	// Committed is told of every committed batch before the callers are
	// answered. Batches of one stream come in commit order, except around a
	// lock that somebody else held; calls may overlap then. It must not block.
	Committed func([]protocol.Batch)

	MaxBatch      int           // broadcasts in one commit; default 256
	MaxBatchBytes int           // payload bytes in one commit; default 1 MiB
	MaxQueue      int           // broadcasts waiting; default 16,384
	MaxQueueBytes int           // payload bytes waiting; default 64 MiB
	CommitTimeout time.Duration // for one commit, whatever its callers allow; default 5 s

	Logger *zap.Logger // nil means none
}

func (o Options) withDefaults() Options {
	if o.Committed == nil {
		o.Committed = func([]protocol.Batch) {}
	}
	for _, f := range []struct {
		field *int
		value int
	}{{&o.MaxBatch, 256}, {&o.MaxBatchBytes, 1 << 20}, {&o.MaxQueue, 16384}, {&o.MaxQueueBytes, 64 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	if o.CommitTimeout <= 0 {
		o.CommitTimeout = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Sequencer queues requests and commits them in batches. Append may be called
// from any number of goroutines; one goroutine runs Run.
type Sequencer struct {
	log  Log
	opts Options
	zap  *zap.Logger

	wake  chan struct{} // holds a token when the queue may not be empty
	ready chan struct{} // closed when Run has begun

	mu      sync.Mutex // guards what follows; never held across the log
	running bool
	ran     bool
	queue   []*waiter
	gone    int // withdrawn waiters still in queue
	count   int // broadcasts in queue
	bytes   int // payload bytes in queue

	// owned by Run
	requests []Request
	news     batcher
	warned   time.Time // when a failed commit was last logged
	failed   int       // requests of failed commits since
	lanes    *lanes    // nil unless the log is a Waiter
}

// waiter is one call of Append.
type waiter struct {
	request Request
	bytes   int
	taken   bool        // guarded by Sequencer.mu: part of a commit, or answered
	parked  bool        // guarded by Sequencer.mu: in a lane, and not part of a commit
	answer  chan Result // has room for the one answer
}

// New returns a Sequencer that commits to log once Run is called.
func New(log Log, opts Options) *Sequencer {
	opts = opts.withDefaults()
	s := &Sequencer{
		log:   log,
		opts:  opts,
		zap:   opts.Logger.Named("sequencer"),
		wake:  make(chan struct{}, 1),
		ready: make(chan struct{}),
	}
	if waiter, ok := log.(Waiter); ok {
		s.lanes = &lanes{s: s, waiter: waiter}
	}
	return s
}

// Ready is closed once Run has begun. Append refuses with ErrClosed before.
func (s *Sequencer) Ready() <-chan struct{} { return s.ready }

// ErrInvalid: the request can never be stored as it is. Comes together with
// ErrNotStored.
var ErrInvalid = errors.New("sequencer: invalid broadcast")

func check(r Request) (bytes int, err error) {
	for i := range r {
		b := &r[i]
		switch {
		case len(b.Data) == 0:
			return 0, fmt.Errorf("%w: %w: empty payload", ErrNotStored, ErrInvalid)
		case len(b.Key) > MaxKeyBytes:
			return 0, fmt.Errorf("%w: %w: the key has %d bytes, at most %d are allowed", ErrNotStored, ErrInvalid, len(b.Key), MaxKeyBytes)
		}
		if err := protocol.CheckStream(b.Stream); err != nil {
			return 0, fmt.Errorf("%w: %w: %w", ErrNotStored, ErrInvalid, err)
		}
		bytes += len(b.Data)
	}
	return bytes, nil
}

// Append waits until the request is committed and returns the place of each of
// its broadcasts. Requests are committed in the order in which their calls
// began, as seen by one caller. The sequencer keeps r until it is answered.
//
// When ctx ends while the request is queued it is withdrawn and the error is
// ErrNotStored; when its commit is under way already the error is
// ErrOutcomeUnknown. Both wrap the error of ctx.
func (s *Sequencer) Append(ctx context.Context, r Request) ([]Placed, error) {
	bytes, err := check(r)
	if err != nil || len(r) == 0 {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotStored, ended(ctx))
	}
	w := &waiter{request: r, bytes: bytes, answer: make(chan Result, 1)}
	if err := s.enqueue(w); err != nil {
		return nil, err
	}
	select {
	case a := <-w.answer:
		return a.Placed, a.Err
	case <-ctx.Done():
	}
	if s.withdraw(w) {
		return nil, fmt.Errorf("%w: %w", ErrNotStored, ended(ctx))
	}
	select {
	case a := <-w.answer: // it came at the same moment
		return a.Placed, a.Err
	default:
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, ended(ctx))
	}
}

func (s *Sequencer) enqueue(w *waiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return errClosed
	}
	// An empty queue takes anything: otherwise a request larger than the
	// bounds could never be stored.
	if s.count > 0 && (s.count+len(w.request) > s.opts.MaxQueue || s.bytes+w.bytes > s.opts.MaxQueueBytes) {
		return errOverloaded
	}
	s.queue = append(s.queue, w)
	s.count += len(w.request)
	s.bytes += w.bytes
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

var (
	errClosed     = fmt.Errorf("%w: %w", ErrNotStored, ErrClosed)
	errOverloaded = fmt.Errorf("%w: %w", ErrNotStored, ErrOverloaded)
)

// withdraw takes w out of the queue and says whether it was still there.
func (s *Sequencer) withdraw(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.parked {
		w.parked = false // its lane passes over it
		return true
	}
	if w.taken {
		return false
	}
	// It is skipped when its turn comes, or swept out when half of the queue
	// is like it: finding it now would make mass withdrawal quadratic.
	if s.gone++; s.gone > len(s.queue)/2 {
		s.queue = slices.DeleteFunc(s.queue, func(q *waiter) bool { return q.taken || q == w })
		s.gone = 0
	}
	s.count -= len(w.request)
	s.bytes -= w.bytes
	w.taken, w.request = true, nil
	return true
}

// Run commits until ctx ends. The commit then under way is finished and
// answered, and what is still queued is refused with ErrClosed. Run is called
// once.
func (s *Sequencer) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.ran {
		s.mu.Unlock()
		return errors.New("sequencer: Run was called before")
	}
	s.running, s.ran = true, true
	s.mu.Unlock()
	close(s.ready)
	defer func() {
		s.stop()
		if s.lanes != nil {
			s.lanes.wg.Wait()
		}
	}()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		for ctx.Err() == nil {
			s.gather()
			batch := s.take()
			if len(batch) == 0 {
				break
			}
			s.commit(ctx, batch)
		}
	}
}

// gather gives way to callers that are ready to run, as long as that makes the
// queue grow: those answered a moment ago may be about to ask again. Under
// load this doubles the size of the commits; a lone caller waits for nothing.
func (s *Sequencer) gather() {
	const yields = 4
	before := -1
	for range yields {
		s.mu.Lock()
		now := s.count
		s.mu.Unlock()
		if now <= before || now >= s.opts.MaxBatch {
			return
		}
		before = now
		runtime.Gosched()
	}
}

func (s *Sequencer) stop() {
	s.mu.Lock()
	s.running = false
	left := slices.DeleteFunc(s.queue, func(w *waiter) bool { return w.taken })
	s.queue, s.gone, s.count, s.bytes = nil, 0, 0, 0
	for _, w := range left {
		w.taken = true
	}
	s.mu.Unlock()
	for _, w := range left {
		w.answer <- Result{Err: errClosed}
	}
}

// take removes the next batch from the queue: as many requests as fit the
// bounds, and one at least.
func (s *Sequencer) take() []*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []*waiter
	n, count, bytes := 0, 0, 0
	for _, w := range s.queue {
		if w.taken {
			n++
			s.gone--
			continue
		}
		if len(batch) > 0 && (count+len(w.request) > s.opts.MaxBatch || bytes+w.bytes > s.opts.MaxBatchBytes) {
			break
		}
		w.taken = true
		batch = append(batch, w)
		n, count, bytes = n+1, count+len(w.request), bytes+w.bytes
	}
	clear(s.queue[:n])
	s.queue = s.queue[n:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	s.count -= count
	s.bytes -= bytes
	return batch
}

func (s *Sequencer) commit(ctx context.Context, batch []*waiter) {
	// Neither the callers' contexts nor the end of Run may break a commit.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.CommitTimeout)
	defer cancel()
	if s.lanes != nil {
		batch = slices.DeleteFunc(batch, func(w *waiter) bool {
			stream, held := s.lanes.laneOf(w.request)
			if held {
				s.lanes.put(ctx, stream, w)
			}
			return held
		})
	}
	if len(batch) > 0 {
		s.attempt(ctx, batch)
	}
}

// attempt commits batch and answers it. When the log refused the batch as a
// whole for a reason that may lie in one of its requests, the halves are tried
// by themselves, so that a bad request fails alone.
func (s *Sequencer) attempt(ctx context.Context, batch []*waiter) {
	results, err := s.append(ctx, batch)
	if err == nil && !answers(results, batch) {
		err = fmt.Errorf("%w: the log's answer does not fit the question", ErrOutcomeUnknown)
	}
	switch {
	case err == nil:
		s.tell(&s.news, batch, results)
		for i, w := range batch {
			if s.lanes != nil && errors.Is(results[i].Err, ErrLocked) {
				s.lanes.put(ctx, heldStream(results[i].Err, w.request), w)
				continue
			}
			w.answer <- results[i]
		}
		return
	case errors.Is(err, ErrNotStored):
		if len(batch) > 1 && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrClosed) && ctx.Err() == nil {
			half := len(batch) / 2
			s.attempt(ctx, batch[:half])
			s.attempt(ctx, batch[half:])
			return
		}
	case !errors.Is(err, ErrOutcomeUnknown):
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	s.warn(len(batch), err)
	for _, w := range batch {
		w.answer <- Result{Err: err}
	}
}

// warn logs a failed commit: the first of a row at once, and then one line a
// second for all of them.
func (s *Sequencer) warn(requests int, err error) {
	s.failed += requests
	if now := time.Now(); now.Sub(s.warned) >= time.Second {
		s.zap.Warn("commit failed", zap.Int("requests", s.failed), zap.Error(err))
		s.warned, s.failed = now, 0
	}
}

func answers(results []Result, batch []*waiter) bool {
	if len(results) != len(batch) {
		return false
	}
	for i, r := range results {
		if r.Err == nil && len(r.Placed) != len(batch[i].request) {
			return false
		}
	}
	return true
}

func (s *Sequencer) append(ctx context.Context, batch []*waiter) ([]Result, error) {
	s.requests = s.requests[:0]
	for _, w := range batch {
		s.requests = append(s.requests, w.request)
	}
	defer clear(s.requests)
	return guard(s.zap, func() ([]Result, error) { return s.log.Append(ctx, s.requests) })
}

// guard turns a panic of the log into an unknown outcome, so that no caller is
// left waiting.
func guard(log *zap.Logger, call func() ([]Result, error)) (results []Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("the log panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			results, err = nil, fmt.Errorf("%w: the log panicked: %v", ErrOutcomeUnknown, p)
		}
	}()
	return call()
}

// tell passes what was newly stored to Committed. What it panics with is
// logged: the broadcasts are stored, and their callers must hear so.
func (s *Sequencer) tell(news *batcher, batch []*waiter, results []Result) {
	defer func() {
		if p := recover(); p != nil {
			s.zap.Error("the listener of commits panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	for i, w := range batch {
		if results[i].Err != nil {
			continue
		}
		for j := range w.request {
			news.add(w.request[j].Stream, results[i].Placed[j], w.request[j].Data)
		}
	}
	if told := news.take(); len(told) > 0 {
		s.opts.Committed(told)
	}
}

// batcher groups placed broadcasts into runs of consecutive messages.
type batcher struct {
	batches []protocol.Batch
	last    map[string]int // index in batches of each stream's newest run
}

func (b *batcher) add(stream string, p Placed, data []byte) {
	if p.Repeat {
		return
	}
	m := protocol.Message{Offset: p.Offset, At: p.At, Data: data}
	if i, ok := b.last[stream]; ok {
		run := &b.batches[i]
		if run.Epoch == p.Epoch && run.Messages[len(run.Messages)-1].Offset+1 == p.Offset {
			run.Messages = append(run.Messages, m)
			return
		}
	}
	if b.last == nil {
		b.last = make(map[string]int)
	}
	b.last[stream] = len(b.batches)
	b.batches = append(b.batches, protocol.Batch{Stream: stream, Epoch: p.Epoch, Messages: []protocol.Message{m}})
}

func (b *batcher) take() []protocol.Batch {
	batches := b.batches
	b.batches = nil
	clear(b.last)
	return batches
}

// ended is the error of a context that is over, together with its cause.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
