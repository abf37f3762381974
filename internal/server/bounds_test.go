package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chronocast/chronocast/sequencer"
)

// open connects and writes text.
func (s *stack) open(text string) net.Conn {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(nc, text); err != nil {
		s.t.Fatal(err)
	}
	return nc
}

// answerOf reads one response.
func answerOf(t *testing.T, nc net.Conn) answer {
	t.Helper()
	w, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{w.StatusCode, w.Header, strings.TrimSuffix(string(b), "\n")}
}

func postHead(path, size string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + size + "\r\n\r\n"
}

// TestBodies_ShareOneBudget: what is received of all bodies together is bounded.
// A body is charged as it arrives, whatever it announces, and given back when
// its request ends.
func TestBodies_ShareOneBudget(t *testing.T) {
	for _, path := range []string{"/streams/a/messages", "/broadcast"} {
		for _, size := range []string{"Content-Length: 100000", "Transfer-Encoding: chunked"} {
			s := newStack(t, func(o *Options) {
				o.MaxPayloadBytes, o.MaxBroadcastBytes, o.BodyBudget = 100_000, 100_000, 210_000
			})
			// Announcing costs next to nothing.
			for range 5 {
				s.open(postHead(path, "Content-Length: 100000"))
			}
			part := strings.Repeat(" ", 70_000)
			if strings.HasPrefix(size, "Transfer") {
				part = fmt.Sprintf("%x\r\n%s\r\n", len(part), part)
			}
			var held []net.Conn
			var over *answer
			for range 3 {
				before := s.srv.bodies.Load()
				nc := s.open(postHead(path, size) + part)
				held = append(held, nc)
				if len(held) < 3 {
					eventually(t, "the body is charged", func() bool { return s.srv.bodies.Load() >= before+70_000 })
					continue
				}
				a := answerOf(t, nc)
				over = &a
			}
			if over.status != 503 || !strings.Contains(over.body, `"overloaded"`) || over.header.Get("Retry-After") != "1" {
				t.Errorf("%s, %s: over the budget: %d %s", path, size, over.status, over.body)
			}
			if n := s.srv.bodies.Load(); n > 210_000 {
				t.Errorf("%s, %s: %d bytes held", path, size, n)
			}
			for _, nc := range held {
				nc.Close()
			}
			eventually(t, "what was held is given back", func() bool { return s.srv.bodies.Load() < 70_000 })
			s.publish("a", "1")
		}
	}
}

// TestBodies_TheLargestAlwaysFits: a budget smaller than one body would refuse
// it for ever.
func TestBodies_TheLargestAlwaysFits(t *testing.T) {
	s := newStack(t, func(o *Options) { o.BodyBudget = 1 })
	s.publish("a", `"`+strings.Repeat("x", 1<<19)+`"`)
	eventually(t, "everything is given back", func() bool { return s.srv.bodies.Load() == 0 })
}

// TestListener_SilentConnectionsHoldUpNobody: connections that send nothing,
// half a head, or a head without its body, take no turn. Those that stay silent
// are closed.
func TestListener_SilentConnectionsHoldUpNobody(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "half a head": "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n",
		"no body": postHead("/streams/a/messages", "Content-Length: 10"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, b *bubbled) {
				dial := func(text string) net.Conn {
					ours, theirs := net.Pipe()
					b.pipes.conns <- theirs
					go io.WriteString(ours, text)
					return ours
				}
				began := time.Now()
				var silent []net.Conn
				for range 4 * maxHandshakes {
					silent = append(silent, dial(text))
				}
				nc := dial("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
				if a := answerOf(t, nc); a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
				if took := time.Since(began); took > 0 {
					t.Errorf("waited %v", took)
				}
				nc.Close()
				for _, nc := range silent {
					if _, err := io.Copy(io.Discard, nc); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began); took < headTimeout || took > time.Minute+time.Second {
					t.Errorf("closed after %v", took)
				}
			})
		})
	}
}

// TestListener_HandsOverWhatIsNoRequest: what net/http refuses by its first
// line, or for its size, is refused at once.
func TestListener_HandsOverWhatIsNoRequest(t *testing.T) {
	s := newStack(t, nil)
	for text, want := range map[string]int{
		"\x16\x03\x01\x02\x00\x01\n": 400, "GET\r\n": 400, "\r\n": 400, "GET / HTTP/1.1\nHost: 127.0.0.1\n\n": 404,
		"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + strings.Repeat("x", 30<<10): 431,
	} {
		if a := answerOf(t, s.open(text)); a.status != want {
			t.Errorf("%.20q: %d, want %d", text, a.status, want)
		}
	}
	// A head may come in pieces, and more requests right behind it.
	nc := s.open("GET /healthz HTTP/1.1\r\nHost: 127.0")
	for _, part := range []string{".0.1\r", "\n\r", "\nGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"} {
		if _, err := io.WriteString(nc, part); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(nc)
	for range 2 {
		w, err := http.ReadResponse(r, nil)
		if err != nil || w.StatusCode != 200 {
			t.Fatalf("%v, %v", w, err)
		}
		if _, err := io.Copy(io.Discard, w.Body); err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
	}
}

const upgradeHead = "Host: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: actioncable-v1-json\r\n\r\n"

// TestCable_EarlyFramesAndOldHTTP: both are told why.
func TestCable_EarlyFramesAndOldHTTP(t *testing.T) {
	s := newStack(t, nil)
	for name, text := range map[string]string{
		"early frame": "GET /cable HTTP/1.1\r\n" + upgradeHead + string(rawFrame(0x81, true, `{"command":"pong"}`)),
		"HTTP/1.0":    "GET /cable HTTP/1.0\r\n" + upgradeHead,
	} {
		a := answerOf(t, s.open(text))
		if a.status != 400 || !strings.Contains(a.body, `{"error":"malformed"`) || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %s", name, a.status, a.header, a.body)
		}
	}
}

// TestReady_NotWhileBroadcastsAreRefused.
func TestReady_NotWhileBroadcastsAreRefused(t *testing.T) {
	for _, cause := range []error{sequencer.ErrDiskFull, sequencer.ErrBusy, sequencer.ErrNotStored} {
		bubble(t, nil, func(t *testing.T, b *bubbled) {
			var fail error
			b.srv.opts.Appender = appender(func(context.Context, sequencer.Request) ([]sequencer.Placed, error) {
				return []sequencer.Placed{{}}, fail
			})
			publish := func(err error) {
				fail = err
				r, _ := http.NewRequestWithContext(t.Context(), "POST", "/", nil)
				_, _ = b.srv.append(r, sequencer.Request{{Stream: "a"}})
			}
			ready := func(want int, when string) {
				t.Helper()
				w := httptest.NewRecorder()
				b.srv.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/readyz", nil))
				if w.Code != want || (want == 503) != (w.Header().Get("Retry-After") == "1") {
					t.Errorf("%v, %s: %d %s", cause, when, w.Code, w.Body)
				}
			}
			ready(200, "at first")
			publish(errors.Join(cause, sequencer.ErrNotStored))
			ready(503, "after a refusal")
			time.Sleep(refusalCounts - time.Millisecond)
			ready(503, "a little later")
			time.Sleep(time.Millisecond)
			ready(200, "when it was long ago")
			publish(errors.Join(cause, sequencer.ErrNotStored))
			publish(nil)
			ready(200, "after a success")
			for _, other := range []error{
				sequencer.ErrOverloaded, sequencer.ErrClosed, sequencer.ErrKeyConflict, sequencer.ErrInvalid,
				context.Canceled,
			} {
				publish(errors.Join(other, sequencer.ErrNotStored))
				ready(200, other.Error())
			}
		})
	}
}
