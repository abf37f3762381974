package load

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// fate is what a faulty server does with the n-th message of a stream.
type fate uint8

const (
	deliver fate = iota
	lose
	double
	swap // hold back until the next one has gone out
)

type fakeOptions struct {
	fate   func(stream string, n int) fate // nil: deliver
	delay  time.Duration                   // between publish and delivery
	refuse func(n int) bool                // answer the n-th publish with 503
	echo   bool                            // send text messages back and nothing else
}

// fake is an Action Cable server with faults that are chosen. It says welcome,
// confirms, and broadcasts what is published or performed.
type fake struct {
	t    *testing.T
	o    fakeOptions
	http *httptest.Server
	busy sync.WaitGroup

	mu    sync.Mutex // guards what follows, and writing
	subs  map[string]map[*fakeConn]string
	count map[string]int
	held  map[string][]byte
	posts int
}

type fakeConn struct {
	ws *websocket.Conn
}

func newFake(t *testing.T, o fakeOptions) *fake {
	t.Helper()
	f := &fake{t: t, o: o, subs: map[string]map[*fakeConn]string{}, count: map[string]int{}, held: map[string][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/cable", f.cable)
	mux.HandleFunc("POST /streams/{stream}/messages", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.publish(w, r.PathValue("stream"), body)
	})
	mux.HandleFunc("POST /_broadcast", func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Stream, Data string }
		_ = json.NewDecoder(r.Body).Decode(&m)
		f.publish(w, m.Stream, []byte(m.Data))
	})
	f.http = httptest.NewServer(mux)
	t.Cleanup(func() {
		f.mu.Lock()
		for _, subs := range f.subs {
			for c := range subs {
				c.ws.Close()
			}
		}
		f.mu.Unlock()
		f.http.CloseClientConnections()
		f.http.Close()
		f.busy.Wait()
	})
	return f
}

func (f *fake) url() string { return "ws" + strings.TrimPrefix(f.http.URL, "http") + "/cable" }

func (f *fake) publish(w http.ResponseWriter, stream string, body []byte) {
	f.mu.Lock()
	f.posts++
	no := f.o.refuse != nil && f.o.refuse(f.posts)
	f.mu.Unlock()
	if no {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	f.broadcast(stream, body)
	w.WriteHeader(http.StatusCreated)
}

func (f *fake) broadcast(stream string, payload []byte) {
	if f.o.delay > 0 {
		f.busy.Add(1)
		time.AfterFunc(f.o.delay, func() { defer f.busy.Done(); f.send(stream, payload) })
		return
	}
	f.send(stream, payload)
}

func (f *fake) send(stream string, payload []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[stream]++
	what := deliver
	if f.o.fate != nil {
		what = f.o.fate(stream, f.count[stream])
	}
	out := [][]byte{payload}
	switch what {
	case lose:
		out = nil
	case double:
		out = append(out, payload)
	case swap:
		f.held[stream] = payload
		return
	}
	if late := f.held[stream]; late != nil {
		out = append(out, late)
		f.held[stream] = nil
	}
	for _, p := range out {
		for c, ident := range f.subs[stream] {
			c.ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"identifier":%s,"message":%s}`, ident, p))
		}
	}
}

func (f *fake) cable(w http.ResponseWriter, r *http.Request) {
	up := websocket.Upgrader{Subprotocols: []string{"actioncable-v1-json"}, CheckOrigin: func(*http.Request) bool { return true }}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	c := &fakeConn{ws}
	say := func(text string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		ws.WriteMessage(websocket.TextMessage, []byte(text))
	}
	if !f.o.echo {
		say(`{"type":"welcome"}`)
		say(`{"type":"ping","message":1}`)
	}
	var stream string
	defer func() {
		f.mu.Lock()
		delete(f.subs[stream], c)
		f.mu.Unlock()
	}()
	for {
		_, text, err := ws.ReadMessage()
		if err != nil {
			return
		}
		if f.o.echo {
			say(string(text))
			continue
		}
		var m struct{ Command, Identifier, Data string }
		if json.Unmarshal(text, &m) != nil {
			continue
		}
		switch m.Command {
		case "subscribe":
			var id struct {
				Name string `json:"stream_name"`
			}
			_ = json.Unmarshal([]byte(m.Identifier), &id)
			stream = id.Name
			ident, _ := json.Marshal(m.Identifier)
			f.mu.Lock()
			if f.subs[stream] == nil {
				f.subs[stream] = map[*fakeConn]string{}
			}
			f.subs[stream][c] = string(ident)
			f.mu.Unlock()
			say(`{"identifier":` + string(ident) + `,"type":"confirm_subscription"}`)
		case "message":
			var data struct{ Message json.RawMessage }
			_ = json.Unmarshal([]byte(m.Data), &data)
			f.broadcast(stream, data.Message)
		}
	}
}

// roundTrip sends a raw client frame and returns the text that comes back.
func (f *fake) roundTrip(frame []byte) string {
	f.t.Helper()
	nc, err := net.Dial("tcp", f.http.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	h := newHandshake("/cable", "x", "", "actioncable-v1-json", nil)
	request, key := h.request(nil)
	nc.Write(request)
	var in []byte
	buf := make([]byte, 64<<10)
	for open := false; ; {
		n, err := nc.Read(buf)
		if err != nil {
			f.t.Fatal(err)
		}
		in = append(in, buf[:n]...)
		if !open {
			head, err := h.check(in, key)
			if err != nil {
				f.t.Fatal(err)
			}
			if head == 0 {
				continue
			}
			in, open = in[head:], true
			nc.Write(frame)
		}
		var whole bytes.Buffer
		for rest := in; ; {
			fr, n, _, err := parseFrame(rest)
			if err != nil {
				f.t.Fatal(err)
			}
			if n == 0 {
				break
			}
			whole.Write(fr.body)
			if fr.fin {
				return whole.String()
			}
			rest = rest[n:]
		}
	}
}

// acceptKey is the answer to a handshake's key.
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
