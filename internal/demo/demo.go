// Package demo is the page a newcomer sees: a long text, streamed token by
// token through the real publish path and rendered by the bundled client.
//
// The Go side does two things. [Demo.Handler] serves the page and takes orders
// for answers; [Demo.Run] owns the goroutines that publish them. Everything
// the page shows travels as ordinary broadcasts: the package has no access to
// the log, the hub or a socket.
package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/sequencer"
)

// Bounds of the tokens per second an order may ask for.
const (
	MinRate = 5
	MaxRate = 400
)

// StreamPrefix begins the name of every stream the demo publishes to.
const StreamPrefix = "demo/"

// maxBurst is how many tokens that have fallen due are published as one
// request. Each is still a broadcast of its own.
const maxBurst = 16

// maxDebt bounds what is made up for at once after a stall.
const maxDebt = 250 * time.Millisecond

// Publish commits the request and returns the place of each broadcast.
type Publish func(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error)

// Options are wishes; the zero value of each field is its default.
type Options struct {
	Logger *zap.Logger // nil: none

	// Rate is the tokens per second of an answer whose order names none, from
	// MinRate to MaxRate. Defaults to 60.
	Rate float64
	// Answers is how many answers are written at the same time; one more is
	// refused with 429. Defaults to 8.
	Answers int
	// Deadline ends an answer that has not come to its end by itself.
	// Defaults to 10 minutes, which is ample at the lowest rate.
	Deadline time.Duration
	// PublishDeadline bounds one attempt to publish. Defaults to 5 s.
	PublishDeadline time.Duration
	// Attempts is how often a token is tried before its answer is given up.
	// Defaults to 20, about half a minute with the pauses between.
	Attempts int
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Rate == 0 {
		o.Rate = 60
	}
	o.Rate = min(max(o.Rate, MinRate), MaxRate)
	if o.Answers <= 0 {
		o.Answers = 8
	}
	if o.Deadline <= 0 {
		o.Deadline = 10 * time.Minute
	}
	if o.PublishDeadline <= 0 {
		o.PublishDeadline = 5 * time.Second
	}
	if o.Attempts <= 0 {
		o.Attempts = 20
	}
	return o
}

//go:embed answer.txt
var answerText string

// Demo writes answers and serves the page that shows them. Its methods may be
// called concurrently; Run at most once.
type Demo struct {
	publish Publish
	opts    Options
	log     *zap.Logger
	text    string
	tokens  [][]byte // each one JSON string
	id      string   // of the text; names the generation in idempotency keys

	mu      sync.Mutex // guards what follows; never held while publishing
	running bool
	answers map[string]*answer // being written, by stream
	orders  chan *answer       // never full: it has room for opts.Answers
}

// answer is one order being carried out.
type answer struct {
	stream string
	from   int // index of the first token to publish

	mu   sync.Mutex
	rate float64
}

func (a *answer) setRate(r float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rate = r
}

// interval is the time from one token to the next at the present rate.
func (a *answer) interval() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(float64(time.Second) / a.rate)
}

// New returns a Demo that publishes through publish. Nothing happens until
// [Demo.Run] is called.
func New(publish func(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error), opts Options) *Demo {
	opts = opts.withDefaults()
	return &Demo{
		publish: publish,
		opts:    opts,
		log:     opts.Logger.Named("demo"),
		text:    answerText,
		tokens:  encodeTokens(split(answerText)),
		id:      digest(answerText),
		answers: make(map[string]*answer),
		orders:  make(chan *answer, opts.Answers),
	}
}

// encodeTokens makes each token one JSON string, its characters as they are.
func encodeTokens(tokens []string) [][]byte {
	out := make([][]byte, len(tokens))
	for i, t := range tokens {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		// A string always encodes: the only error is one of the writer.
		_ = e.Encode(t)
		out[i] = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	}
	return out
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Run carries out orders until ctx ends, then stops every answer and returns
// when the last one has stopped. Orders that come outside Run are refused.
func (d *Demo) Run(ctx context.Context) error {
	d.mu.Lock()
	d.running = true
	d.mu.Unlock()

	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case a := <-d.orders:
			wg.Go(func() {
				defer d.finish(a)
				d.write(ctx, a)
			})
		case <-ctx.Done():
			d.stop()
			return nil
		}
	}
}

// stop refuses further orders and drops those not begun.
func (d *Demo) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = false
	for {
		select {
		case a := <-d.orders:
			delete(d.answers, a.stream)
		default:
			return
		}
	}
}

func (d *Demo) finish(a *answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.answers, a.stream)
}

var (
	errBusy    = errors.New("demo: all answers are taken")
	errStopped = errors.New("demo: not running")
)

// order takes an order: an answer into the stream from the token with this
// index on. For a stream whose answer is being written it only sets the rate
// and reports false. An empty stream means a fresh one.
func (d *Demo) order(stream string, rate float64, from int) (string, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		return "", false, errStopped
	}
	if a, ok := d.answers[stream]; ok {
		if rate != 0 {
			a.setRate(rate)
		}
		return stream, false, nil
	}
	if len(d.answers) >= d.opts.Answers {
		return "", false, errBusy
	}
	if stream == "" {
		stream = StreamPrefix + strings.ToLower(rand.Text()[:10])
	}
	if rate == 0 {
		rate = d.opts.Rate
	}
	a := &answer{stream: stream, rate: rate, from: from}
	d.answers[stream] = a
	d.orders <- a
	return stream, true, nil
}

// write publishes the tokens of a, each when it falls due. What has fallen due
// together goes in one request. Tokens that turn out to be stored already
// (someone orders the rest of an answer that was cut off) are not waited for.
func (d *Demo) write(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Deadline)
	defer cancel()
	log := d.log.With(zap.String("stream", a.stream))
	log.Debug("answer begins", zap.Int("from", a.from))

	timer := time.NewTimer(0)
	defer timer.Stop()
	due, repeats := time.Now(), false
	for i := a.from; i < len(d.tokens); {
		if !repeats {
			timer.Reset(time.Until(due))
			select {
			case <-timer.C:
			case <-ctx.Done():
				log.Info("answer stopped", zap.Int("next", i), zap.Error(context.Cause(ctx)))
				return
			}
		}
		interval := a.interval()
		n := 1 + int(max(0, time.Since(due))/interval)
		if repeats {
			n = maxBurst
		}
		n = min(n, maxBurst, len(d.tokens)-i)
		placed, err := d.publishTokens(ctx, a.stream, i, n)
		if err != nil && ctx.Err() != nil {
			log.Info("answer stopped", zap.Int("next", i), zap.Error(context.Cause(ctx)))
			return
		}
		if err != nil {
			log.Warn("answer given up", zap.Int("next", i), zap.Error(err))
			return
		}
		i += n
		repeats = len(placed) > 0 && placed[len(placed)-1].Repeat
		due = due.Add(time.Duration(n) * interval)
		if oldest := time.Now().Add(-maxDebt); due.Before(oldest) {
			due = oldest
		}
		if repeats {
			due = time.Now()
		}
	}
	log.Debug("answer complete")
}

// publishTokens commits n tokens from index i on, trying again while the log
// cannot be reached. Each carries the key of its generation and index, so that
// an attempt whose outcome is unknown can be repeated without doubling a token.
func (d *Demo) publishTokens(ctx context.Context, stream string, i, n int) ([]sequencer.Placed, error) {
	r := make(sequencer.Request, n)
	for j := range r {
		r[j] = sequencer.Broadcast{
			Stream: stream,
			Data:   d.tokens[i+j],
			Key:    "answer/" + d.id + "/" + strconv.Itoa(i+j),
		}
	}
	for attempt := 1; ; attempt++ {
		placed, err := d.publishOnce(ctx, r)
		switch {
		case err == nil:
			return placed, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("demo: publish token %d: %w", i, context.Cause(ctx))
		case !retriable(err):
			return nil, fmt.Errorf("demo: publish token %d: %w", i, err)
		case attempt == d.opts.Attempts:
			return nil, fmt.Errorf("demo: publish token %d, %d attempts: %w", i, attempt, err)
		}
		timer := time.NewTimer(pause(attempt))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("demo: publish token %d: %w", i, context.Cause(ctx))
		}
	}
}

func (d *Demo) publishOnce(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.PublishDeadline)
	defer cancel()
	return d.publish(ctx, r)
}

// retriable reports whether the same request may succeed later. A key that
// stands for another payload or a full stream never will, and a sequencer that
// closes is gone.
func retriable(err error) bool {
	return !errors.Is(err, sequencer.ErrKeyConflict) &&
		!errors.Is(err, sequencer.ErrStreamFull) &&
		!errors.Is(err, sequencer.ErrClosed)
}

// pause before the attempt after this one: 25 ms, doubled up to 2 s.
func pause(attempt int) time.Duration {
	return min(25*time.Millisecond<<min(attempt-1, 10), 2*time.Second)
}
