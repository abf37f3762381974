package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/chronocast/chronocast/protocol"
)

// Callback is the application that is asked who may do what.
type Callback struct {
	URL     string   // where to POST; "" asks nobody
	Key     Secret   // sent as Authorization: Bearer; empty sends none
	Headers []string // of the client's request, passed on; nil is Cookie alone
	// Timeout is for one question, waiting for its turn included. 3 s.
	Timeout time.Duration
}

// Check returns what is wrong with the URL, without showing it: it may hold a
// password.
func (c Callback) Check() error {
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.Fragment != "" {
		return errors.New("must be an http:// or https:// URL")
	}
	return nil
}

// Bounds of asking.
const (
	maxQuestions     = 64 // under way at once
	maxAnswerBytes   = 64 << 10
	maxAnswerStreams = 100
	maxAnswers       = 10_000 // remembered
	maxFailures      = 5      // in a row, before the application is given a rest
	shortestRest     = time.Second
	longestRest      = 30 * time.Second
)

// request is what of a client's request the application is told.
type request struct {
	headers map[string]string
	remote  string
	sid     string
}

// question is the body of a request to the application.
type question struct {
	Event      string            `json:"event"` // connect or subscribe
	SID        string            `json:"sid,omitempty"`
	Identity   *asked            `json:"identity"`
	Headers    map[string]string `json:"headers"`
	Remote     string            `json:"remote,omitempty"`
	Identifier string            `json:"identifier,omitempty"`
	Stream     string            `json:"stream,omitempty"`
}

type asked struct {
	Sub string `json:"sub,omitempty"`
	Ext string `json:"ext,omitempty"`
}

// answer is what the application says.
type answer struct {
	allow   bool
	sub     string
	streams []string
	expires time.Time // zero: it holds for this one question
}

// callback asks the application.
type callback struct {
	Callback
	http *http.Client
	now  func() time.Time
	log  *zap.Logger

	turns   chan struct{}
	flights singleflight.Group

	mu      sync.Mutex // guards what follows; never held while asking
	answers map[[sha256.Size]byte]answer
	failed  int       // in a row
	rest    time.Time // nobody is asked before
	probing bool      // one is asked whether it has recovered
	warned  time.Time
}

func newCallback(c Callback, now func() time.Time, log *zap.Logger) *callback {
	if c.Timeout <= 0 {
		c.Timeout = 3 * time.Second
	}
	if c.Headers == nil {
		c.Headers = []string{"Cookie"}
	}
	return &callback{
		Callback: c, now: now, log: log,
		turns:   make(chan struct{}, maxQuestions),
		answers: make(map[[sha256.Size]byte]answer),
		http: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: maxQuestions, IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10},
			// A redirect would send cookies to wherever it points.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// request takes from a client's request what the application is told of it.
func (c *callback) request(r *http.Request, addr netip.Addr, sid string) request {
	q := request{headers: make(map[string]string, len(c.Headers)), sid: sid}
	if addr.IsValid() {
		q.remote = addr.String()
	}
	for _, name := range c.Headers {
		if values := r.Header.Values(name); len(values) > 0 {
			q.headers[http.CanonicalHeaderKey(name)] = strings.Join(values, ", ")
		}
	}
	return q
}

// ask puts a question, or finds its answer where it holds still. Several that
// ask the same at once share one. The error wraps ErrUnavailable.
func (c *callback) ask(ctx context.Context, who *Identity, event, identifier, stream string) (answer, error) {
	q := question{Event: event, Identifier: identifier, Stream: stream, Headers: map[string]string{}}
	if who != nil {
		q.SID, q.Headers, q.Remote = who.asked.sid, who.asked.headers, who.asked.remote
		if who.Subject != "" || who.Ext != "" {
			q.Identity = &asked{who.Subject, who.Ext}
		}
	}
	key := q.key()
	if a, ok := c.remembered(key); ok {
		return a, nil
	}
	if err := ctx.Err(); err != nil {
		return answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	found, err, _ := c.flights.Do(string(key[:]), func() (any, error) {
		if a, ok := c.remembered(key); ok { // by one that has just landed
			return a, nil
		}
		// Whoever asked first may go away; the others still want to know.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
		defer cancel()
		return c.put(ctx, q, key)
	})
	if err != nil {
		return answer{}, err
	}
	return found.(answer), nil
}

// key tells one question from another. Which connection asks makes no
// difference to the answer.
func (q question) key() [sha256.Size]byte {
	q.SID = ""
	b, _ := json.Marshal(q) // sorts the headers; strings always encode
	return sha256.Sum256(b)
}

func (c *callback) remembered(key [sha256.Size]byte) (answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.answers[key]
	if ok && !c.now().Before(a.expires) {
		delete(c.answers, key)
		return answer{}, false
	}
	return a, ok
}

func (c *callback) remember(key [sha256.Size]byte, a answer) {
	now := c.now()
	if !now.Before(a.expires) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= maxAnswers {
		maps.DeleteFunc(c.answers, func(_ [sha256.Size]byte, a answer) bool { return !now.Before(a.expires) })
	}
	for k := range c.answers {
		if len(c.answers) < maxAnswers {
			break
		}
		delete(c.answers, k) // any: it will be asked for again
	}
	c.answers[key] = a
}

// put asks the application, unless it is given a rest.
func (c *callback) put(ctx context.Context, q question, key [sha256.Size]byte) (answer, error) {
	if !c.enter() {
		return answer{}, ErrUnavailable
	}
	a, err := c.post(ctx, q)
	c.leave(err)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	c.remember(key, a)
	return a, nil
}

// enter says whether the application may be asked now. After a rest one
// question finds out whether it answers again.
func (c *callback) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed < maxFailures {
		return true
	}
	if c.probing || c.now().Before(c.rest) {
		return false
	}
	c.probing = true
	return true
}

// leave notes how a question ended.
func (c *callback) leave(err error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = false
	if err == nil {
		if c.failed >= maxFailures {
			c.log.Info("the application answers again")
		}
		c.failed = 0
		return
	}
	if c.failed++; c.failed >= maxFailures {
		rest := min(shortestRest<<min(c.failed-maxFailures, 10), longestRest)
		c.rest = now.Add(rest)
	}
	if now.Sub(c.warned) >= 10*time.Second || now.Before(c.warned) {
		c.warned = now
		c.log.Warn("the application does not answer, what it would have to permit is refused", zap.Int("failures", c.failed), zap.Error(err))
	}
}

// post makes the request. Its errors hold nothing of the question or the URL.
func (c *callback) post(ctx context.Context, q question) (answer, error) {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return answer{}, errors.New("too many questions are waiting")
	}
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return answer{}, errors.New("the URL cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "chronocast")
	if !c.Key.Empty() {
		r.Header.Set("Authorization", "Bearer "+c.Key.Reveal())
	}
	resp, err := c.http.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("the answer broke off: %w", err)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return answer{}, nil
	case resp.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("it answered %d", resp.StatusCode)
	case len(data) > maxAnswerBytes:
		return answer{}, errors.New("its answer is too large")
	}
	return parseAnswer(data, c.now())
}

// parseAnswer reads {"allow":bool,"sub":…,"streams":[…],"expires_in":s} with
// expires_at, in unix seconds, in place of expires_in if it likes.
func parseAnswer(data []byte, now time.Time) (answer, error) {
	var body struct {
		Allow     *bool    `json:"allow"`
		Sub       string   `json:"sub"`
		Streams   []string `json:"streams"`
		ExpiresIn *float64 `json:"expires_in"`
		ExpiresAt *float64 `json:"expires_at"`
	}
	if json.Unmarshal(data, &body) != nil || body.Allow == nil {
		return answer{}, errors.New(`its answer is not an object with "allow": true or false`)
	}
	a := answer{allow: *body.Allow, sub: body.Sub, streams: slices.Compact(slices.Sorted(slices.Values(body.Streams)))}
	if len(a.streams) > maxAnswerStreams {
		return answer{}, fmt.Errorf("its answer names more than %d streams", maxAnswerStreams)
	}
	for _, s := range a.streams {
		if protocol.CheckStream(s) != nil {
			return answer{}, errors.New("its answer names what cannot be the name of a stream")
		}
	}
	const longest = 10 * 365 * 24 * 3600
	switch {
	case body.ExpiresIn != nil && body.ExpiresAt != nil:
		return answer{}, errors.New("its answer has both expires_in and expires_at")
	case body.ExpiresIn != nil:
		if *body.ExpiresIn < 0 {
			return answer{}, errors.New("its answer expires in the past")
		}
		a.expires = now.Add(time.Duration(min(*body.ExpiresIn, longest) * float64(time.Second)))
	case body.ExpiresAt != nil:
		left := *body.ExpiresAt - float64(now.UnixMilli())/1000
		a.expires = now.Add(time.Duration(max(-longest, min(left, longest)) * float64(time.Second)))
	}
	return a, nil
}
