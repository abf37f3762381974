package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/internal/store/sqlite"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
	"github.com/gorilla/websocket"
)

// patience bounds every wait for something that should come soon.
const patience = 10 * time.Second

// stack is the real thing from the socket to the disk.
type stack struct {
	t      *testing.T
	addr   string
	srv    *Server
	hub    *hub.Hub
	store  *sqlite.Store
	client *http.Client

	stopServer func() // and wait for it
}

// newStack runs a server on a database of its own. change may adjust its
// options.
func newStack(t *testing.T, change func(*Options)) *stack {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "log.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := hub.New(store, hub.Options{})
	seq := sequencer.New(store, sequencer.Options{Committed: h.Publish})
	opts := Options{Hub: h, Authorizer: auth.Open{}, Appender: seq, Log: shownLog}
	if change != nil {
		change(&opts)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, addr: l.Addr().String(), srv: New(opts), hub: h, store: store,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	stopSeq := background(t, seq.Run)
	stopHub := background(t, h.Run)
	stopServer := background(t, func(ctx context.Context) error { return s.srv.Run(ctx, l) })
	s.stopServer = stopServer
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		stopServer()
		stopSeq()
		stopHub()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// background runs f until the function it returns is called, which waits.
func background(t *testing.T, f func(context.Context) error) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return func() {
		cancel()
		if err, ok := <-done; ok && err != nil {
			t.Error(err)
		}
		select {
		case <-done:
		default:
			close(done)
		}
	}
}

// answer is an HTTP response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; header is a list of names and values.
func (s *stack) do(method, path, body string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	w, err := s.client.Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	if w.StatusCode >= 400 || path == "/metrics" {
		show(string(b))
	}
	return answer{w.StatusCode, w.Header, strings.TrimSuffix(string(b), "\n")}
}

// publish commits one JSON payload and returns its position.
func (s *stack) publish(stream, data string, header ...string) protocol.Position {
	s.t.Helper()
	a := s.do("POST", "/streams/"+escape(stream)+"/messages", data, append([]string{"Content-Type", "application/json"}, header...)...)
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		s.t.Fatalf("publish to %q: %d %s", stream, a.status, a.body)
	}
	return positionOf(s.t, a.body)
}

// positionOf reads epoch and offset of an answer.
func positionOf(t *testing.T, body string) protocol.Position {
	t.Helper()
	var got struct {
		Epoch  string `json:"epoch"`
		Offset uint64 `json:"offset"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	epoch, err := protocol.ParseEpoch(got.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Position{Epoch: epoch, Offset: got.Offset}
}

// escape encodes every byte of a stream's name.
func escape(stream string) string {
	var b []byte
	for i := range len(stream) {
		b = fmt.Appendf(b, "%%%02X", stream[i])
	}
	return string(b)
}

// last is the newest offset of a stream.
func (s *stack) last(stream string) uint64 {
	s.t.Helper()
	spans, err := s.store.Heads(s.t.Context(), []string{stream})
	if err != nil {
		s.t.Fatal(err)
	}
	return spans[0].Last
}

// cable is a client of the WebSocket.
type cable struct {
	t  *testing.T
	ws *websocket.Conn
}

// dial connects and reads the welcome.
func (s *stack) dial(subprotocols ...string) *cable {
	s.t.Helper()
	d := websocket.Dialer{Subprotocols: subprotocols, HandshakeTimeout: patience}
	ws, resp, err := d.DialContext(s.t.Context(), "ws://"+s.addr+"/cable", nil)
	if err != nil {
		s.t.Fatalf("dial: %v", err)
	}
	resp.Body.Close()
	s.t.Cleanup(func() { ws.Close() })
	c := &cable{s.t, ws}
	if e := c.next(); e.Type != "welcome" {
		s.t.Fatalf("first frame is %+v", e)
	}
	return c
}

// raw reads one frame, pings left out.
func (c *cable) raw() []byte {
	c.t.Helper()
	for {
		f, err := c.read()
		if err != nil {
			c.t.Fatalf("read: %v", err)
		}
		if !bytes.HasPrefix(f, []byte(`{"type":"ping"`)) {
			return f
		}
	}
}

func (c *cable) read() ([]byte, error) {
	if err := c.ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	_, f, err := c.ws.ReadMessage()
	return f, err
}

// events reads one frame and returns what it tells.
func (c *cable) events() []hubtest.Event {
	c.t.Helper()
	events, err := hubtest.Decode(c.raw())
	if err != nil {
		c.t.Fatal(err)
	}
	return events
}

// next reads a frame that tells one thing.
func (c *cable) next() hubtest.Event {
	c.t.Helper()
	events := c.events()
	if len(events) != 1 {
		c.t.Fatalf("%d events in one frame", len(events))
	}
	return events[0]
}

// messages reads n messages and returns them.
func (c *cable) messages(n int) []hubtest.Event {
	c.t.Helper()
	var got []hubtest.Event
	for len(got) < n {
		for _, e := range c.events() {
			if e.Type != "message" {
				c.t.Fatalf("%+v among the messages", e)
			}
			got = append(got, e)
		}
	}
	return got
}

// send sends one command.
func (c *cable) send(command string) {
	c.t.Helper()
	if err := c.ws.WriteMessage(websocket.TextMessage, []byte(command)); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// subscribe subscribes and returns the confirmed position.
func (c *cable) subscribe(stream string) protocol.Position {
	c.t.Helper()
	c.send(command("subscribe", stream, ""))
	return c.confirmed()
}

func (c *cable) confirmed() protocol.Position {
	c.t.Helper()
	var got struct {
		Type    string
		Streams map[string]struct {
			Epoch  string
			Offset uint64
		}
	}
	f := c.raw()
	if err := json.Unmarshal(f, &got); err != nil || got.Type != "confirm_subscription" || len(got.Streams) != 1 {
		c.t.Fatalf("frame %s, want a confirmation", f)
	}
	for _, at := range got.Streams {
		epoch, err := protocol.ParseEpoch(at.Epoch)
		if err != nil {
			c.t.Fatal(err)
		}
		return protocol.Position{Epoch: epoch, Offset: at.Offset}
	}
	return protocol.Position{}
}

// identifier is the subscription identifier of a public stream.
func identifier(stream string) string {
	b, err := json.Marshal(map[string]string{"channel": "$pubsub", "stream_name": stream})
	if err != nil {
		panic(err) // strings always encode
	}
	return string(b)
}

// command makes a command; rest is more members, with their comma.
func command(name, stream, rest string) string {
	return `{"command":"` + name + `","identifier":` + strconv.Quote(identifier(stream)) + rest + `}`
}

// historyOf is the member that asks for what follows a position.
func historyOf(stream string, p protocol.Position) string {
	return fmt.Sprintf(`,"history":{"streams":{%q:{"epoch":"%d","offset":%d}}}`, stream, p.Epoch, p.Offset)
}

// ascending fails unless the messages follow after one by one.
func ascending(t *testing.T, after uint64, got []hubtest.Event) {
	t.Helper()
	for i, e := range got {
		if want := after + uint64(i) + 1; e.Position.Offset != want {
			t.Fatalf("message %d has offset %d, want %d", i, e.Position.Offset, want)
		}
	}
}

// eventually waits for a condition that no event tells of.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// closeCodeOf reads until the connection is closed and returns the code.
func (c *cable) closeCodeOf() int {
	c.t.Helper()
	for {
		_, err := c.read()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			return closed.Code
		}
		if err != nil {
			c.t.Fatalf("connection ended without a close frame: %v", err)
		}
	}
}
