package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/chronocast/chronocast/protocol"
)

const (
	batchItems   = 250      // broadcasts of one request; a server takes 1,000 by default
	batchBytes   = 1 << 20  // of one request, but at least one broadcast
	queueBytes   = 4 << 20  // read ahead of the server
	maxLineBytes = 16 << 20 // a longer line ends the run; servers take far less
)

// line is one line of input, ready to be sent.
type line struct {
	number int
	data   []byte // as read, without the line break
	isJSON bool
	size   int // data's share of a request, about
}

// lineQueue hands lines from the reader to the sender: a bounded stretch of
// input, so that neither waits for the other longer than it must.
type lineQueue struct {
	ready chan struct{} // holds a token when there may be something to take
	room  chan struct{} // holds a token when there may be room

	mu    sync.Mutex // guards what follows; never held across I/O
	lines []line
	bytes int
	err   error // why no more lines come; io.EOF at the end of input
}

func newLineQueue() *lineQueue {
	return &lineQueue{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put waits for room and queues l. It returns false when ctx has ended.
func (q *lineQueue) put(ctx context.Context, l line) bool {
	for !q.tryPut(l) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
	wake(q.ready)
	return ctx.Err() == nil
}

func (q *lineQueue) tryPut(l line) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) > 0 && q.bytes+l.size > queueBytes {
		return false
	}
	q.lines = append(q.lines, l)
	q.bytes += l.size
	return true
}

// end says that no more lines come, and why.
func (q *lineQueue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.ready)
}

// take waits for lines and returns up to items of them, of up to size bytes
// together, but at least one. After the last line it returns the error that
// end was given.
func (q *lineQueue) take(ctx context.Context, items, size int) ([]line, error) {
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if batch, err := q.tryTake(items, size); batch != nil || err != nil {
			wake(q.room)
			return batch, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
		}
	}
}

func (q *lineQueue) tryTake(items, size int) ([]line, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) == 0 {
		return nil, q.err
	}
	n, taken := 0, 0
	for n < len(q.lines) && n < items && (n == 0 || taken+q.lines[n].size <= size) {
		taken += q.lines[n].size
		n++
	}
	batch := q.lines[:n:n]
	q.lines = q.lines[n:]
	q.bytes -= taken
	return batch, nil
}

// lineError is a line that cannot be published.
type lineError struct {
	number int
	err    error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.number, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// readLines reads r to its end, or to the first line that cannot be published.
func (p *publication) readLines(ctx context.Context, r io.Reader, q *lineQueue) {
	in := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		data, err := readLine(in, p.lineMax)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				err = &lineError{number, err}
			}
			q.end(err)
			return
		}
		isJSON, err := p.kind(data)
		if err != nil {
			q.end(&lineError{number, err})
			return
		}
		// Quoting inside the request adds to the length; a fraction is enough
		// for a bound.
		size := len(data) + len(data)/8 + len(p.stream) + 64
		if !q.put(ctx, line{number: number, data: data, isJSON: isJSON, size: size}) {
			q.end(ctx.Err())
			return
		}
	}
}

// readLine reads one line of at most max bytes and returns it without its line
// break, \n or \r\n. The last line may lack one.
func readLine(in *bufio.Reader, max int) ([]byte, error) {
	var whole []byte
	for {
		part, err := in.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(whole) <= max+len("\r\n"):
			continue
		case errors.Is(err, io.EOF) && len(whole) == 0:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if cut, ended := bytes.CutSuffix(whole, []byte("\n")); ended {
			whole = bytes.TrimSuffix(cut, []byte("\r"))
		}
		if len(whole) > max {
			return nil, fmt.Errorf("longer than %d bytes", max)
		}
		return whole, nil
	}
}

// lineRun is the state of one publish --lines.
type lineRun struct {
	*publication
	run      string // begins the idempotency key of every request
	requests int
	sent     int // broadcasts stored
	last     protocol.Position
	report   *progress
}

// publishLines publishes each line of stdin, in order.
func (p *publication) publishLines(ctx context.Context, stdin io.Reader) int {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	q := newLineQueue()
	go p.readLines(reading, stdin, q) // ends with stop, or with the read it is in
	r := &lineRun{publication: p, run: uuid.NewString(), report: newProgress(p.flags)}
	err := r.send(ctx, q)
	r.report.clear()
	summary := fmt.Sprintf("published %d broadcasts", r.sent)
	if r.sent > 0 {
		summary += ", last position " + r.last.String()
	}
	code := p.flags.fail(ctx, r.explain(err))
	p.flags.note("%s", summary)
	return code
}

// send publishes until the queue ends.
func (r *lineRun) send(ctx context.Context, q *lineQueue) error {
	for {
		batch, err := q.take(ctx, r.maxItems, r.maxBytes)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.batch(ctx, batch); err != nil {
			return err
		}
	}
}

// explain adds which lines an error leaves in doubt.
func (r *lineRun) explain(err error) error {
	var f *failure
	if errors.As(err, &f) && f.unknown {
		return fmt.Errorf("%w; it is unknown whether this and the lines sent with it were stored", err)
	}
	return err
}

// batch publishes lines in one request. A request that the server refuses for
// what it carries is cut in halves until the one line at fault stands alone:
// requests are atomic, so nothing of a refused one is stored.
func (r *lineRun) batch(ctx context.Context, lines []line) error {
	if r.key != "" {
		for _, l := range lines {
			at, err := r.one(ctx, l.data, l.isJSON, r.key+"#"+strconv.Itoa(l.number))
			if err != nil {
				return &lineError{l.number, err}
			}
			if err := r.done([]protocol.Position{at}); err != nil {
				return err
			}
		}
		return nil
	}
	at, err := r.request(ctx, lines)
	var refused *serverError
	switch {
	case err == nil:
		return r.done(at)
	case len(lines) > 1 && errors.As(err, &refused) && isAboutTheBody(refused.Status):
		half := len(lines) / 2
		r.maxItems, r.maxBytes = max(half, 1), max(r.maxBytes/2, 1)
		if err := r.batch(ctx, lines[:half]); err != nil {
			return err
		}
		return r.batch(ctx, lines[half:])
	}
	return &lineError{lines[0].number, err}
}

func isAboutTheBody(status int) bool {
	return status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity || status == http.StatusBadRequest
}

// request sends lines as one POST /broadcast.
func (r *lineRun) request(ctx context.Context, lines []line) ([]protocol.Position, error) {
	r.requests++
	size := 2
	for _, l := range lines {
		size += l.size
	}
	item := append([]byte(`{"stream":`), quoted([]byte(r.stream))...)
	item = append(item, `,"data":`...)
	body := append(make([]byte, 0, size), '[')
	for i, l := range lines {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, item...)
		text := l.data
		if !l.isJSON {
			text = quoted(text)
		}
		body = append(append(body, quoted(text)...), '}')
	}
	body = append(body, ']')
	var answer broadcastAnswer
	_, err := r.api.do(ctx, call{
		method: http.MethodPost,
		path:   "/broadcast",
		header: map[string]string{
			"Content-Type":    "application/json",
			"Idempotency-Key": r.run + "." + strconv.Itoa(r.requests),
		},
		body: body,
	}, &answer)
	if err != nil {
		return nil, err
	}
	return answer.positions(len(lines))
}

// broadcastAnswer is the answer to POST /broadcast with an array: where each
// item was placed.
type broadcastAnswer []wirePosition

func (b broadcastAnswer) positions(n int) ([]protocol.Position, error) {
	if len(b) != n {
		return nil, &protocolError{fmt.Sprintf("the answer has %d positions for %d broadcasts", len(b), n)}
	}
	at := make([]protocol.Position, n)
	for i, w := range b {
		var err error
		if at[i], err = w.position(); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// done prints the positions of stored broadcasts.
func (r *lineRun) done(at []protocol.Position) error {
	r.sent += len(at)
	r.last = at[len(at)-1]
	r.report.update(r.sent)
	return r.print(at)
}

// progress shows a person how far a long input is, on one line that is written
// over. The zero progress shows nothing.
type progress struct {
	w           io.Writer // nil: nobody watches
	began, last time.Time
	shown       bool
}

func newProgress(f *clientFlags) *progress {
	now := time.Now()
	p := &progress{began: now, last: now}
	if !f.quiet && isTerminal(f.stderr) {
		p.w = f.stderr
	}
	return p
}

func (p *progress) update(n int) {
	now := time.Now()
	if p.w == nil || now.Sub(p.last) < 500*time.Millisecond {
		return
	}
	p.last, p.shown = now, true
	fmt.Fprintf(p.w, "\r\x1b[K%d broadcasts, %.0f a second", n, float64(n)/now.Sub(p.began).Seconds())
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
