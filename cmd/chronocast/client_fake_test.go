package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

const fakeEpoch = protocol.Epoch(1796061414123456)

// fakeServer answers the HTTP endpoints from memory, as the real server does.
// The tests of both share their assertions; this one is for what a real server
// cannot be made to do.
type fakeServer struct {
	mu       sync.Mutex // guards what follows
	streams  map[string][][]byte
	first    uint64 // lowest offset kept, of every stream; 0 is 1
	keys     map[string]stored
	requests []recorded
	limit    int // of one payload, in bytes; 0 is none
	maxBody  int
}

type stored struct {
	hash [32]byte
	at   protocol.Position
}

type recorded struct {
	method, path, query, key, kind, body string
}

func newFakeServer() *fakeServer {
	return &fakeServer{streams: map[string][][]byte{}, keys: map[string]stored{}}
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, recorded{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), string(body)})
	name, isStream := strings.CutPrefix(r.URL.EscapedPath(), "/streams/")
	name, isMessages := strings.CutSuffix(name, "/messages")
	stream, _ := url.PathUnescape(name)
	switch {
	case r.URL.Path == "/broadcast":
		f.broadcast(w, r, body)
	case isStream && isMessages && r.Method == http.MethodPost:
		if strings.HasPrefix(r.Header.Get("Content-Type"), "text/") {
			body, _ = protocol.QuotePayload(body)
		}
		at, status, code := f.append(stream, body, r.Header.Get("Idempotency-Key"))
		if code != "" {
			fakeError(w, status, code)
			return
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"stream":%s,"epoch":"%v","offset":%d}`, quoted([]byte(stream)), at.Epoch, at.Offset)
	case isStream && isMessages:
		f.page(w, r, stream)
	case isStream:
		span := f.span(stream)
		fmt.Fprintf(w, `{"stream":%s,"epoch":"%v","first":%d,"last":%d}`, quoted([]byte(stream)), span.Epoch, span.First, span.Last)
	default:
		fakeError(w, http.StatusNotFound, "not_found")
	}
}

func fakeError(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":%q,"message":"told by the server"}`, code)
}

func (f *fakeServer) span(stream string) protocol.Span {
	return protocol.Span{Epoch: fakeEpoch, First: max(f.first, 1), Last: uint64(len(f.streams[stream]))}
}

func (f *fakeServer) append(stream string, data []byte, key string) (at protocol.Position, status int, code string) {
	if f.limit > 0 && len(data) > f.limit {
		return at, http.StatusRequestEntityTooLarge, "too_large"
	}
	if known, repeat := f.keys[stream+"\n"+key]; key != "" && repeat {
		if known.hash != sha256.Sum256(data) {
			return at, http.StatusConflict, "key_conflict"
		}
		return known.at, http.StatusOK, ""
	}
	f.streams[stream] = append(f.streams[stream], data)
	at = protocol.Position{Epoch: fakeEpoch, Offset: uint64(len(f.streams[stream]))}
	f.keys[stream+"\n"+key] = stored{sha256.Sum256(data), at}
	return at, http.StatusCreated, ""
}

func (f *fakeServer) broadcast(w http.ResponseWriter, r *http.Request, body []byte) {
	if f.maxBody > 0 && len(body) > f.maxBody {
		fakeError(w, http.StatusRequestEntityTooLarge, "too_large")
		return
	}
	items, err := protocol.DecodeBroadcasts(body, 1000)
	if err != nil {
		fakeError(w, http.StatusUnprocessableEntity, "bad_broadcast")
		return
	}
	for _, item := range items {
		if f.limit > 0 && len(item.Data) > f.limit {
			fakeError(w, http.StatusRequestEntityTooLarge, "too_large")
			return
		}
	}
	positions := make([]wirePosition, len(items))
	for i, item := range items {
		key := r.Header.Get("Idempotency-Key")
		if key != "" {
			key += "#" + strconv.Itoa(i)
		}
		at, status, code := f.append(item.Stream, item.Data, key)
		if code != "" {
			fakeError(w, status, code)
			return
		}
		positions[i] = wirePosition{at.Epoch.String(), at.Offset}
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(broadcastAnswer(positions)) // the client may be gone
}

func (f *fakeServer) page(w http.ResponseWriter, r *http.Request, stream string) {
	after, err := protocol.ParsePosition(r.URL.Query().Get("after"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 1 {
		fakeError(w, http.StatusBadRequest, "malformed")
		return
	}
	span := f.span(stream)
	if reason := span.Check(after); reason != "" {
		w.WriteHeader(http.StatusGone)
		fmt.Fprintf(w, `{"error":%q,"message":"told","epoch":"%v","first":%d,"last":%d}`, reason, span.Epoch, span.First, span.Last)
		return
	}
	fmt.Fprintf(w, `{"stream":"s","epoch":"%v","first":%d,"last":%d,"messages":[`, span.Epoch, span.First, span.Last)
	last := min(span.Last, after.Offset+uint64(limit))
	for offset := after.Offset + 1; offset <= last; offset++ {
		if offset > after.Offset+1 {
			fmt.Fprint(w, ",")
		}
		fmt.Fprintf(w, `{"offset":%d,"data":%s,"at":1}`, offset, f.streams[stream][offset-1])
	}
	fmt.Fprintf(w, `],"more":%v}`, last < span.Last)
}

// messages returns what a stream holds, as text.
func (f *fakeServer) messages(stream string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, data := range f.streams[stream] {
		all = append(all, string(data))
	}
	return all
}

func (f *fakeServer) seen() []recorded {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]recorded(nil), f.requests...)
}

// A fault is what happens to one request.
type fault int

const (
	noFault     fault = iota
	answerBusy        // 503, nothing is done
	cutRequest        // the connection breaks before anything is done
	cutReply          // it is done, and the connection breaks before the answer
	cutHalfway        // it is done, and half of the answer arrives
	lostOutcome       // it is done, and 503 is answered all the same
	numFaults
)

// faulty puts faults in front of a server. next is called with the number of
// the request, from 0, and says what happens to it.
func faulty(server http.Handler, next func(n int, r *http.Request) fault) http.Handler {
	var mu sync.Mutex
	n := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		what := next(n, r)
		n++
		mu.Unlock()
		answer := httptest.NewRecorder()
		switch what {
		case noFault:
			server.ServeHTTP(w, r)
			return
		case cutReply, cutHalfway, lostOutcome:
			server.ServeHTTP(answer, r)
		}
		switch what {
		case answerBusy:
			fakeError(w, http.StatusServiceUnavailable, "busy")
			return
		case lostOutcome:
			fakeError(w, http.StatusServiceUnavailable, "outcome_unknown")
			return
		case cutHalfway:
			w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2]) // it breaks anyway
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	})
}

// serve runs h until the test ends and returns its URL.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// result is what a finished command left behind.
type result struct {
	code           int
	stdout, stderr string
}

type runFunc func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// cli runs a command to its end.
func cli(t *testing.T, run runFunc, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code := run(ctx, args, stdin, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// quick makes retries follow each other faster than a person would notice.
var quick = backoff{base: time.Millisecond, max: 4 * time.Millisecond}

// quickPublish is runPublish with quick retries.
func quickPublish(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p, code := parsePublish(args, stdin, stdout, stderr)
	if code >= 0 {
		return code
	}
	p.api.backoff = quick
	return p.run(ctx, stdin)
}

func wantCode(t *testing.T, r result, code int) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %.2000s\nstderr: %.2000s", r.code, code, r.stdout, r.stderr)
	}
}

func wantText(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %q:\n%s", where, part, text)
		}
	}
}
