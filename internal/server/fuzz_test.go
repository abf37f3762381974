package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// FuzzHTTP: whatever a request holds, the status is one of those documented,
// a refusal is a JSON object with a code, and what is stored is a payload.
func FuzzHTTP(f *testing.F) {
	f.Add("GET", "/streams/a/messages?after=1:2&limit=3", "", "", "", "localhost", "", []byte(nil))
	f.Add("POST", "/streams/%E8%AA%9E/messages", "application/json", "k", "", "127.0.0.1:8080", "http://localhost:3000", []byte(`{"a":1}`))
	f.Add("POST", "/streams/a%2Fb/messages", "text/plain; charset=utf-8", "", "gzip", "[::1]:1", "null", []byte("text"))
	f.Add("POST", "/broadcast", "", "k", "", "localhost", "", []byte(`[{"stream":"a","data":"{}"}]`))
	f.Add("GET", "/cable", "websocket", "", "actioncable-v1-json", "localhost", "", []byte(nil))
	f.Add("OPTIONS", "/metrics", "", "", "", "localhost", "http://[::1]:2", []byte(nil))
	f.Add("HEAD", "//readyz/../x", "", "\x00", "", "localhost", "", []byte(nil))

	log := hubtest.NewLog(1700000000000000)
	log.AppendN("a", 10)
	log.Trimmed("a", 4)
	h := hub.New(log, hub.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	srv := New(Options{Hub: h, Authorizer: auth.Open{}, MaxPayloadBytes: 4096, MaxBroadcastBytes: 8192, MaxBroadcastItems: 4,
		Appender: appender(func(_ context.Context, r sequencer.Request) ([]sequencer.Placed, error) {
			placed := make([]sequencer.Placed, len(r))
			for i, b := range r {
				if protocol.CheckPayload(b.Data) != nil || protocol.CheckStream(b.Stream) != nil || len(b.Key) > sequencer.MaxKeyBytes || len(b.Data) > 4096 {
					panic("this should have been refused")
				}
				placed[i] = sequencer.Placed{Position: protocol.Position{Epoch: 1, Offset: uint64(i + 1)}}
			}
			return placed, nil
		})})
	statuses := []int{200, 201, 204, 400, 403, 404, 405, 410, 413, 415, 422, 426}
	f.Fuzz(func(t *testing.T, method, target, contentType, key, extra, host, origin string, body []byte) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return // not a request a client can send
		}
		r := &http.Request{Method: method, URL: u, Host: host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header),
			Body: http.NoBody, ContentLength: int64(len(body)), RequestURI: target}
		if len(body) > 0 {
			r.Body = struct {
				*bytes.Reader
				nopCloser
			}{bytes.NewReader(body), nopCloser{}}
		}
		set := func(name, value string) {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		set("Content-Type", contentType)
		set("Idempotency-Key", key)
		set("Content-Encoding", extra)
		set("Sec-WebSocket-Protocol", extra)
		set("Upgrade", contentType)
		set("Connection", "Upgrade")
		set("Sec-WebSocket-Version", "13")
		set("Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg==")
		set("Origin", origin)
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r.WithContext(t.Context()))
		if !slices.Contains(statuses, w.Code) {
			t.Fatalf("status %d %s", w.Code, w.Body)
		}
		if w.Code >= 400 {
			var e struct{ Error, Message string }
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == "" || e.Message == "" {
				t.Fatalf("%d with body %q", w.Code, w.Body)
			}
		} else if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%d with body %q", w.Code, w.Body)
		}
	})
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }
