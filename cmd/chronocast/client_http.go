package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

const (
	// maxAnswerBytes bounds one HTTP answer. A history page holds 4 MiB of
	// payload by default, or one payload of any size the server is set to.
	maxAnswerBytes = 64 << 20
	// maxRetryAfter bounds how long a server may ask us to stay away.
	maxRetryAfter = 30 * time.Second
	// expectBytes is from where on a body waits for the server's word that it
	// will be read, so that a refusal comes before megabytes are sent.
	expectBytes = 256 << 10
	// forever is a time to keep trying that does not end.
	forever = time.Duration(math.MaxInt64)
)

// backoff says how long to wait before trying again: a random time up to base,
// doubled with every failure in a row, up to max. Drawing from the whole range
// keeps a thousand clients of one server from coming back together.
type backoff struct{ base, max time.Duration }

func (b backoff) after(failures int) time.Duration {
	limit := b.max
	if failures < 20 && b.base<<failures < b.max {
		limit = b.base << failures
	}
	return rand.N(limit + 1)
}

// pause waits for d and returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// api makes HTTP requests to one server, each with a deadline, and repeats
// those that may succeed later.
type api struct {
	base     *url.URL
	http     *http.Client
	timeout  time.Duration // of one attempt
	retryFor time.Duration // from the first failure on; 0 tries once
	grace    time.Duration // an attempt under way may take this long after an interrupt
	backoff  backoff
	note     func(format string, args ...any)

	authorization string // the header of that name, or ""
}

func newAPI(base *url.URL, timeout, retryFor time.Duration, note func(string, ...any)) *api {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	return &api{
		base: base,
		http: &http.Client{
			Transport: transport,
			// A redirect would send a broadcast somewhere nobody named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		timeout:  timeout,
		retryFor: retryFor,
		backoff:  backoff{base: 100 * time.Millisecond, max: 2 * time.Second},
		note:     note,
	}
}

func (a *api) close() { a.http.CloseIdleConnections() }

// call is one HTTP request. path is percent-encoded.
type call struct {
	method, path string
	query        url.Values
	header       map[string]string
	body         []byte
}

// changes reports whether the request asks the server to change anything.
func (c call) changes() bool { return c.method != http.MethodGet }

// streamPath returns the path of a stream: its name is one segment.
func streamPath(stream, rest string) string {
	name := url.PathEscape(stream)
	if name == "." || name == ".." { // a path cleaner would take them for directories
		name = strings.ReplaceAll(name, ".", "%2E")
	}
	return "/streams/" + name + rest
}

// serverError is an answer that is no success.
type serverError struct {
	Status  int    `json:"-"`
	Code    string `json:"error"`
	Message string `json:"message"`
	Epoch   string `json:"epoch"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
}

func (e *serverError) Error() string {
	text := clean(e.Message)
	switch {
	case text == "" && e.Code == "":
		text = http.StatusText(e.Status)
	case text == "":
		text = clean(e.Code)
	case e.Code != "":
		text += " (" + clean(e.Code) + ")"
	}
	return fmt.Sprintf("the server answered %d: %s", e.Status, text)
}

// mayPass reports whether the same request can succeed later.
func (e *serverError) mayPass() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.Status >= 500
}

// readServerError makes the error of an answer that is no success.
func readServerError(status int, header http.Header, body []byte) *serverError {
	e := &serverError{}
	if json.Unmarshal(body, e) != nil {
		*e = serverError{}
	}
	e.Status = status
	if status >= 300 && status < 400 {
		e.Message = "a redirect"
		if to, err := url.Parse(header.Get("Location")); err == nil && to.Host != "" {
			e.Message += " to " + to.Scheme + "://" + to.Host + "; give that server with --server if it is the right one"
		}
	}
	return e
}

// do makes the request, decodes the JSON answer into out and returns the
// status. It tries again after failures that may pass, with the same bytes and
// header, until retryFor is over. The error is a *failure.
func (a *api) do(ctx context.Context, c call, out any) (int, error) {
	var began time.Time
	unknown := false
	for failures := 0; ; failures++ {
		status, wait, err := a.once(ctx, c, out)
		if err == nil {
			return status, nil
		}
		var answered *serverError
		refused := errors.As(err, &answered) && !answered.mayPass()
		if refused || ctx.Err() != nil || !worthRepeating(err) {
			return status, &failure{err: err, unknown: !refused && (unknown || c.changes() && mayHaveArrived(err))}
		}
		unknown = unknown || c.changes() && mayHaveArrived(err)
		if failures == 0 {
			began = time.Now()
		}
		wait += a.backoff.after(failures)
		left := a.retryFor - time.Since(began)
		if left <= 0 {
			if a.retryFor > 0 {
				err = fmt.Errorf("%w; gave up after %v", err, a.retryFor)
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = fmt.Errorf("%w; is a server running there?", err)
			}
			return status, &failure{err: err, unknown: unknown}
		}
		if failures == 1 { // the first retry comes at once and mostly works
			a.note("%v; trying again%s", err, forHowLong(left))
		}
		if !pause(ctx, min(wait, left)) {
			return status, &failure{err: err, unknown: unknown}
		}
	}
}

func forHowLong(d time.Duration) string {
	if d > forever/2 {
		return ""
	}
	return fmt.Sprintf(" for %v", d.Round(100*time.Millisecond))
}

// failure is a request that was given up.
type failure struct {
	err     error
	unknown bool // the server may have done what was asked
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// once makes one attempt. wait is how long the server asks us to stay away.
func (a *api) once(ctx context.Context, c call, out any) (status int, wait time.Duration, err error) {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if pause(attempt, a.grace) {
			cancel()
		}
	})()
	target := *a.base
	target.RawPath = a.base.EscapedPath() + c.path
	if target.Path, err = url.PathUnescape(target.RawPath); err != nil {
		return 0, 0, fmt.Errorf("request path: %w", err)
	}
	target.RawQuery = c.query.Encode()
	req, err := http.NewRequestWithContext(attempt, c.method, target.String(), bytes.NewReader(c.body))
	if err != nil {
		return 0, 0, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("User-Agent", "chronocast-cli")
	setAuthorization(req.Header, a.authorization)
	if len(c.body) > expectBytes {
		req.Header.Set("Expect", "100-continue")
	}
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, 0, a.describe(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return 0, 0, a.describe(ctx, fmt.Errorf("the answer broke off: %w", err))
	}
	if len(body) > maxAnswerBytes {
		return 0, 0, &protocolError{fmt.Sprintf("the answer is larger than %d bytes", maxAnswerBytes)}
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			wait = min(time.Duration(s)*time.Second, maxRetryAfter)
		}
		return resp.StatusCode, wait, readServerError(resp.StatusCode, resp.Header, body)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return resp.StatusCode, 0, &protocolError{"the answer is not what a Chronocast server sends"}
	}
	return resp.StatusCode, 0, nil
}

// protocolError is an answer that no Chronocast server gives.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return e.text + "; is --server right?" }

// describe words a transport error for people: without the method and URL that
// net/http puts in front.
func (a *api) describe(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%s gave no answer within %v: %w", a.base.Host, a.timeout, err)
	}
	return fmt.Errorf("no answer from %s: %w", a.base.Host, plainly(err))
}

// plainly leaves the address out of a failed dial: it is told already.
func plainly(err error) error {
	var op *net.OpError
	var call *os.SyscallError
	if errors.As(err, &op) && op.Op == "dial" && errors.As(op.Err, &call) {
		return &dialError{call.Err}
	}
	return err
}

// dialError is a connection that could not be made.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// worthRepeating is false for failures that trying again does not heal.
func worthRepeating(err error) bool {
	var cert *tls.CertificateVerificationError
	var odd *protocolError
	return !errors.As(err, &cert) && !errors.As(err, &odd)
}

// mayHaveArrived is false when it is known that the server did not get, or did
// not do, what the attempt asked.
func mayHaveArrived(err error) bool {
	var answered *serverError
	if errors.As(err, &answered) {
		switch answered.Code {
		case "overloaded", "busy", "stopping", "disk_full":
			return false
		}
	}
	var dial *dialError
	var op *net.OpError
	return !errors.As(err, &dial) && !(errors.As(err, &op) && op.Op == "dial")
}

// wirePosition is a position as JSON carries it.
type wirePosition struct {
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
}

func (w wirePosition) position() (protocol.Position, error) {
	epoch, err := protocol.ParseEpoch(w.Epoch)
	if err != nil || w.Offset > protocol.MaxOffset {
		return protocol.Position{}, &protocolError{"the answer has no position"}
	}
	return protocol.Position{Epoch: epoch, Offset: w.Offset}, nil
}

// wireSpan is what a stream holds, as JSON carries it.
type wireSpan struct {
	Epoch string `json:"epoch"`
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

func (w wireSpan) span() (protocol.Span, error) {
	epoch, err := protocol.ParseEpoch(w.Epoch)
	if err != nil || w.First == 0 || w.First > w.Last+1 || w.Last > protocol.MaxOffset {
		return protocol.Span{}, &protocolError{"the answer does not tell what the stream holds"}
	}
	return protocol.Span{Epoch: epoch, First: w.First, Last: w.Last}, nil
}

// head asks what the stream holds.
func (a *api) head(ctx context.Context, stream string) (protocol.Span, error) {
	var w wireSpan
	if _, err := a.do(ctx, call{method: http.MethodGet, path: streamPath(stream, "")}, &w); err != nil {
		return protocol.Span{}, err
	}
	return w.span()
}

// resetError says that a position cannot be continued, and what can be done.
type resetError struct {
	reason protocol.Reason
	after  protocol.Position
	span   protocol.Span
}

func (e *resetError) Error() string {
	var why string
	switch e.reason {
	case protocol.ReasonTrimmed:
		why = "some of the messages after it are no longer kept"
	case protocol.ReasonEpochChanged:
		why = "the numbering began anew since (the database was replaced or restored)"
	case protocol.ReasonAhead:
		why = "it lies past the newest message"
	default:
		why = clean(string(e.reason))
	}
	at := e.after.String()
	if e.after.Epoch == 0 {
		at = strconv.FormatUint(e.after.Offset, 10)
	}
	text := fmt.Sprintf("cannot continue after %s: %s (%s)", at, why, clean(string(e.reason)))
	if e.span.Epoch == 0 {
		return text
	}
	return text + fmt.Sprintf("; %s; --after start begins with what is kept, --after %v with what comes next", kept(e.span), e.span.Head())
}

// kept says in words what a span holds.
func kept(s protocol.Span) string {
	if s.First > s.Last {
		return "the stream holds no messages"
	}
	return fmt.Sprintf("the stream holds offsets %d to %d of epoch %v", s.First, s.Last, s.Epoch)
}
