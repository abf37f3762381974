package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

const (
	plain      = "actioncable-v1-json"
	extended   = "actioncable-v1-ext-json"
	chronocast = "chronocast-v1-json"
)

var subprotocols = []string{plain, extended, chronocast}

// frame is any server frame, with the fields of all types.
type frame struct {
	Type       string           `json:"type"`
	Identifier string           `json:"identifier"`
	Message    json.RawMessage  `json:"message"`
	StreamID   string           `json:"stream_id"`
	Epoch      string           `json:"epoch"`
	Offset     *uint64          `json:"offset"`
	First      *uint64          `json:"first"`
	Replay     bool             `json:"replay"`
	Reason     string           `json:"reason"`
	Reconnect  *bool            `json:"reconnect"`
	Command    string           `json:"command"`
	Streams    map[string]place `json:"streams"`
	Messages   []struct {
		Offset  uint64          `json:"offset"`
		Message json.RawMessage `json:"message"`
	} `json:"messages"`
	raw string
	at  time.Time
}

func (f frame) String() string { return f.raw }

// socket is a subscriber without a client library: it keeps what came over the
// wire, in the order it came.
type socket struct {
	t     testing.TB
	name  string
	proto string // as the server echoed it
	conn  *websocket.Conn
	done  chan struct{}

	sending sync.Mutex

	mu        sync.Mutex // guards what follows
	control   []frame    // all but messages and pings
	seen      int        // control frames already given out by next
	pings     []frame
	delivered []message
	arrivals  []time.Time
	order     []string // "m" or the type of each frame, as they came
	changed   signal
	err       error
}

type dialOptions struct {
	header http.Header
	slow   bool // a tiny receive buffer
	stuck  bool // do not read at all
}

func dial(t testing.TB, url string, protos ...string) *socket {
	t.Helper()
	s, resp, err := tryDial(t, url, dialOptions{}, protos...)
	if err != nil {
		status := 0
		if resp != nil {
			status = resp.StatusCode
		}
		t.Fatalf("dial %s as %v: %v (status %d)", url, protos, err, status)
	}
	return s
}

func tryDial(t testing.TB, url string, o dialOptions, protos ...string) (*socket, *http.Response, error) {
	d := websocket.Dialer{Subprotocols: protos, HandshakeTimeout: 10 * time.Second}
	if o.slow {
		d.NetDial = func(network, addr string) (net.Conn, error) {
			c, err := net.Dial(network, addr)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(4 << 10)
			}
			return c, err
		}
	}
	conn, resp, err := d.Dial(url, o.header)
	if err != nil {
		return nil, resp, err
	}
	s := &socket{t: t, conn: conn, proto: conn.Subprotocol(), name: strings.Join(protos, "+"), done: make(chan struct{})}
	if o.stuck {
		close(s.done)
	} else {
		go s.read()
	}
	t.Cleanup(s.close)
	return s, resp, nil
}

func (s *socket) read() {
	defer close(s.done)
	for {
		_, b, err := s.conn.ReadMessage()
		now := time.Now()
		var f frame
		if err == nil {
			if err = json.Unmarshal(b, &f); err != nil {
				err = fmt.Errorf("a frame that is not JSON: %w: %.200s", err, b)
			}
		}
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.changed.wake()
			s.mu.Unlock()
			return
		}
		f.raw, f.at = string(b), now
		switch {
		case f.Type == "ping":
			s.pings = append(s.pings, f)
		case f.Type == "messages":
			for _, m := range f.Messages {
				s.delivered = append(s.delivered, message{f.StreamID, place{f.Epoch, m.Offset}, string(m.Message), f.Replay})
				s.arrivals = append(s.arrivals, now)
			}
			s.order = append(s.order, "m")
		case f.Type == "" && f.Offset != nil:
			s.delivered = append(s.delivered, message{f.StreamID, place{f.Epoch, *f.Offset}, string(f.Message), f.Replay})
			s.arrivals = append(s.arrivals, now)
			s.order = append(s.order, "m")
		default:
			s.control = append(s.control, f)
			s.order = append(s.order, f.Type)
		}
		s.changed.wake()
		s.mu.Unlock()
	}
}

// until waits until cond, called under the lock, is true.
func (s *socket) until(within time.Duration, what string, cond func() bool) {
	s.t.Helper()
	if !s.tryUntil(within, cond) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.t.Fatalf("%s: not within %v: %s (%d messages, %d control frames, socket error: %v, order ends %v)",
			s.name, within, what, len(s.delivered), len(s.control), s.err, tailOf(s.order, 12))
	}
}

func (s *socket) tryUntil(within time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		ok, ended, changed := cond(), s.err != nil, s.changed.changed()
		s.mu.Unlock()
		if ok || ended {
			return ok
		}
		select {
		case <-changed:
		case <-deadline.C:
			return false
		}
	}
}

// next returns the next control frame that is of one of the types, skipping
// others.
func (s *socket) next(within time.Duration, types ...string) frame {
	s.t.Helper()
	var found frame
	s.until(within, "a frame of type "+strings.Join(types, " or "), func() bool {
		for s.seen < len(s.control) {
			f := s.control[s.seen]
			s.seen++
			for _, t := range types {
				if f.Type == t {
					found = f
					return true
				}
			}
		}
		return false
	})
	return found
}

func (s *socket) send(v any) {
	s.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	s.sendRaw(string(b))
}

func (s *socket) sendRaw(text string) {
	s.t.Helper()
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		s.t.Errorf("%s: send: %v", s.name, err)
	}
}

func identifier(stream string) string {
	return `{"channel":"$pubsub","stream_name":` + jsonText(stream) + `}`
}

type command struct {
	Command    string         `json:"command"`
	Identifier string         `json:"identifier"`
	History    *historyWanted `json:"history,omitempty"`
}

type historyWanted struct {
	Since   int64            `json:"since,omitempty"`
	Streams map[string]place `json:"streams,omitempty"`
}

// subscribe sends the command and waits for its confirmation, which it returns.
func (s *socket) subscribe(stream string) frame {
	s.t.Helper()
	s.send(command{Command: "subscribe", Identifier: identifier(stream)})
	return s.confirmed(stream)
}

// resume subscribes with a position.
func (s *socket) resume(stream string, at place) {
	s.t.Helper()
	s.send(command{Command: "subscribe", Identifier: identifier(stream),
		History: &historyWanted{Streams: map[string]place{stream: at}}})
}

func (s *socket) confirmed(stream string) frame {
	s.t.Helper()
	f := s.next(10*time.Second, "confirm_subscription", "reject_subscription", "disconnect")
	if f.Type != "confirm_subscription" {
		s.t.Fatalf("%s: subscribe to %q: %s", s.name, stream, f.raw)
	}
	return f
}

// messages returns what has arrived for stream so far.
func (s *socket) messages(stream string) []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []message
	for _, m := range s.delivered {
		if m.stream == stream {
			out = append(out, m)
		}
	}
	return out
}

// awaitMessages waits until n messages of all streams together have come.
func (s *socket) awaitMessages(n int, within time.Duration) {
	s.t.Helper()
	s.until(within, fmt.Sprintf("%d messages", n), func() bool { return len(s.delivered) >= n })
}

// awaitOffset waits until the stream's message with the offset has come.
func (s *socket) awaitOffset(stream string, offset uint64, within time.Duration) {
	s.t.Helper()
	s.until(within, fmt.Sprintf("offset %d of %q", offset, stream), func() bool {
		for i := len(s.delivered) - 1; i >= 0; i-- {
			if m := s.delivered[i]; m.stream == stream {
				return m.Offset >= offset
			}
		}
		return false
	})
}

// awaitClose waits for the socket's end and returns the close code, 0 without.
func (s *socket) awaitClose(within time.Duration) int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(within):
		s.t.Fatalf("%s: the socket is still open after %v", s.name, within)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ce, ok := s.err.(*websocket.CloseError); ok {
		return ce.Code
	}
	return 0
}

func (s *socket) close() {
	s.conn.Close()
	<-s.done
}

func tailOf[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }
