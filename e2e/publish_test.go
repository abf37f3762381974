package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// place is where a message stands: one (epoch, offset) of a stream.
type place struct {
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.Epoch, p.Offset) }

// ledger keeps every acknowledgement a publisher was given.
type ledger struct {
	mu    sync.Mutex
	acked map[string]map[place]string // stream → place → payload
	count int
}

func newLedger() *ledger { return &ledger{acked: map[string]map[place]string{}} }

// record notes an acknowledgement. Two payloads under one place, or an answer
// that moves, is a broken promise that the caller reports.
func (l *ledger) record(stream string, at place, payload string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[stream] == nil {
		l.acked[stream] = map[place]string{}
	}
	if old, ok := l.acked[stream][at]; ok && old != payload {
		return fmt.Errorf("place %v of %q was given to two payloads: %.60s and %.60s", at, stream, old, payload)
	} else if !ok {
		l.count++
	}
	l.acked[stream][at] = payload
	return nil
}

func (l *ledger) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *ledger) of(stream string) map[place]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[place]string, len(l.acked[stream]))
	for k, v := range l.acked[stream] {
		out[k] = v
	}
	return out
}

// publisher sends broadcasts over HTTP, each under its own idempotency key.
type publisher struct {
	t      testing.TB
	client *http.Client
	base   atomic.Pointer[string] // http://host:port
	ledger *ledger
	name   string
	keys   atomic.Int64
	tries  atomic.Int64 // requests sent, retries among them
	repeat atomic.Int64 // answers that said 200: a key seen before
}

func newPublisher(t testing.TB, base string) *publisher {
	p := &publisher{t: t, ledger: newLedger(), name: fmt.Sprintf("p%d", runs.Add(1)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
	p.base.Store(&base)
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

var runs atomic.Int64

func messagesPath(stream string) string { return "/streams/" + url.PathEscape(stream) + "/messages" }

// answer is what a publish was told.
type answer struct {
	status int
	place
	Error   string `json:"error"`
	Message string `json:"message"`
	header  http.Header
}

// once sends one request and returns what came back.
func (p *publisher) once(ctx context.Context, stream, key, contentType string, body []byte) (answer, error) {
	p.tries.Add(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, *p.base.Load()+messagesPath(stream), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", contentType)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("the answer with status %d is not JSON: %.100s", resp.StatusCode, b)
	}
	return a, nil
}

var errRefused = errors.New("refused")

// send publishes one JSON payload and goes on, with the same key, until it is
// acknowledged, refused or ctx ends. The acknowledgement goes to the ledger.
func (p *publisher) send(ctx context.Context, stream, payload string) (place, error) {
	key := fmt.Sprintf("%s-%d", p.name, p.keys.Add(1))
	return p.sendKeyed(ctx, stream, key, payload)
}

// patience is how long a publisher goes on with one message. No fault that a
// test makes lasts so long.
const patience = 45 * time.Second

func (p *publisher) sendKeyed(ctx context.Context, stream, key, payload string) (place, error) {
	return sendKeyed(ctx, func() *publisher { return p }, p.ledger, stream, key, payload)
}

// sendKeyed publishes under one key, each try through the publisher that next
// gives, until it is acknowledged, refused, or patience ends.
func sendKeyed(ctx context.Context, next func() *publisher, l *ledger, stream, key, payload string) (place, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("no acknowledgement in "+patience.String()))
	defer cancel()
	wait := 5 * time.Millisecond
	for {
		p := next()
		try, cancel := context.WithTimeout(ctx, 8*time.Second)
		a, err := p.once(try, stream, key, "application/json", []byte(payload))
		cancel()
		switch {
		case err == nil && (a.status == http.StatusCreated || a.status == http.StatusOK):
			if a.status == http.StatusOK {
				p.repeat.Add(1)
			}
			return a.place, l.record(stream, a.place, payload)
		case err == nil && a.status < 500 && a.status != http.StatusTooManyRequests:
			return place{}, fmt.Errorf("%w: %d %s %s", errRefused, a.status, a.Error, a.Message)
		}
		select {
		case <-ctx.Done():
			return place{}, context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
}

// must publishes or fails the test.
func (p *publisher) must(stream, payload string) place {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	at, err := p.send(ctx, stream, payload)
	if err != nil {
		p.t.Fatalf("publish to %q: %v", stream, err)
	}
	return at
}

// numbered publishes n numbered payloads one after another.
func (p *publisher) numbered(stream string, n int) place {
	p.t.Helper()
	var at place
	for i := range n {
		at = p.must(stream, fmt.Sprintf(`{"n":%d}`, i+1))
	}
	return at
}

// bulk publishes n numbered payloads over the batch endpoint, quickly.
func (p *publisher) bulk(stream string, n int) {
	p.t.Helper()
	for from := 0; from < n; from += 500 {
		var items []map[string]string
		for i := from; i < min(from+500, n); i++ {
			items = append(items, map[string]string{"stream": stream, "data": fmt.Sprintf(`{"n":%d}`, i+1)})
		}
		b, _ := json.Marshal(items)
		resp, err := p.client.Post(*p.base.Load()+"/broadcast", "application/json", bytes.NewReader(b))
		if err != nil {
			p.t.Fatalf("broadcast: %v", err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			p.t.Fatalf("broadcast: %d %s", resp.StatusCode, body)
		}
	}
}

// pool publishes with workers in parallel until each has sent n messages or ctx
// ends. make gives worker w's i-th payload and stream.
func (p *publisher) pool(ctx context.Context, workers, n int, next func(w, i int) (stream, payload string)) error {
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := 0; n == 0 || i < n; i++ {
				stream, payload := next(w, i)
				if _, err := p.send(ctx, stream, payload); err != nil {
					if ctx.Err() == nil {
						p.t.Errorf("publish to %q: %v", stream, err)
						errs <- err
					}
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// steadily publishes about perSecond messages a second to stream until ctx
// ends or total are sent, and returns how many were handed in. It does not wait
// for answers before it sends the next, but for the last ones at the end.
func (p *publisher) steadily(ctx context.Context, stream string, perSecond, total int, payload func(i int) string) int {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, 64)
	began, sent := time.Now(), 0
	for sent < total || total == 0 {
		select {
		case <-ctx.Done():
			return sent
		case <-tick.C:
		}
		due := int(time.Since(began).Seconds() * float64(perSecond))
		for ; sent < due && (total == 0 || sent < total); sent++ {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return sent
			}
			body := payload(sent)
			wg.Go(func() {
				defer func() { <-slots }()
				// A test that ends its schedule still wants the last answers.
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				defer cancel()
				if _, err := p.send(last, stream, body); err != nil {
					p.t.Errorf("publish to %q: %v", stream, err)
				}
			})
		}
	}
	return sent
}

// page is one answer of the history endpoint.
type page struct {
	Stream   string `json:"stream"`
	Epoch    string `json:"epoch"`
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	More     bool   `json:"more"`
	Error    string `json:"error"`
	Messages []struct {
		Offset uint64          `json:"offset"`
		Data   json.RawMessage `json:"data"`
	} `json:"messages"`
	status int
}

// history reads one page.
func (s *server) history(stream, after string, limit int) page {
	s.t.Helper()
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if limit > 0 {
		q.Set("limit", itoa(limit))
	}
	var pg page
	pg.status = s.get(messagesPath(stream)+"?"+q.Encode(), &pg)
	return pg
}

// head reads a stream's head.
func (s *server) head(stream string) page {
	s.t.Helper()
	var pg page
	pg.status = s.get("/streams/"+url.PathEscape(stream), &pg)
	return pg
}

func (s *server) get(path string, into any) int {
	s.t.Helper()
	resp, err := s.http.Get(s.url(path))
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		s.t.Fatalf("GET %s: %d and no JSON: %.200s", path, resp.StatusCode, b)
	}
	return resp.StatusCode
}

// message is one delivered or stored message.
type message struct {
	stream string
	place
	data   string
	replay bool
}

// log reads a whole stream from history, page by page, checking that the pages
// join without hole or overlap.
func (s *server) log(stream string) []message {
	s.t.Helper()
	pg := s.head(stream)
	if pg.status != http.StatusOK {
		s.t.Fatalf("head of %q: %d %s", stream, pg.status, pg.Error)
	}
	epoch, next := pg.Epoch, pg.First
	var out []message
	for {
		pg := s.history(stream, fmt.Sprintf("%s:%d", epoch, next-1), 0)
		if pg.status != http.StatusOK {
			s.t.Fatalf("history of %q after %d: %d %s", stream, next-1, pg.status, pg.Error)
		}
		for _, m := range pg.Messages {
			if m.Offset != next {
				s.t.Fatalf("history of %q: %d comes where %d belongs", stream, m.Offset, next)
			}
			next++
			out = append(out, message{stream: stream, place: place{epoch, m.Offset}, data: string(m.Data)})
		}
		if !pg.More {
			return out
		}
	}
}

// jsonText quotes s as a browser's JSON.stringify would, so that what a client
// has parsed and written again can be compared byte for byte.
func jsonText(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20:
			if i := strings.IndexRune("\b\t\n\f\r", r); i >= 0 {
				b = append(b, '\\', "btnfr"[i])
			} else {
				b = fmt.Appendf(b, "\\u%04x", r)
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return string(append(b, '"'))
}
