package server

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// upgrader does the handshake. What it would decide on its own has been
// decided before it is asked.
var upgrader = websocket.Upgrader{
	ReadBufferSize:  256, // a command is short, and there is one buffer for each idle connection
	WriteBufferPool: new(sync.Pool),
	CheckOrigin:     func(*http.Request) bool { return true },
}

// serveCable makes a WebSocket of the request. It returns at once: of the
// goroutine and the buffers that net/http needed to get here nothing is kept.
func (s *Server) serveCable(w http.ResponseWriter, r *http.Request) {
	if !headerHas(r.Header, "Connection", "upgrade") || !headerHas(r.Header, "Upgrade", "websocket") {
		w.Header().Set("Upgrade", "websocket")
		s.fail(w, r, refuse(http.StatusUpgradeRequired, "upgrade_required", "this is the address of a WebSocket"))
		return
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok || !r.ProtoAtLeast(1, 1) {
		s.fail(w, r, refuse(http.StatusBadRequest, "malformed", "a WebSocket needs HTTP/1.1"))
		return
	}
	var offered []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name != "" && !strings.HasPrefix(name, auth.TokenSubprotocol) {
				offered = append(offered, name)
			}
		}
	}
	codec, ok := protocol.ForSubprotocols(offered)
	if !ok {
		s.fail(w, r, refuse(http.StatusBadRequest, "unsupported_subprotocol", "offer one of the subprotocols "+subprotocols()))
		return
	}
	if s.stopping() {
		s.fail(w, r, &problem{status: http.StatusServiceUnavailable, code: "stopping", message: "the server is stopping", retry: true})
		return
	}
	releaseConn(r) // the application may be asked
	arrived, err := s.arrive(r, rand.Text(), codec)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	header := make(http.Header)
	if len(offered) > 0 {
		header["Sec-Websocket-Protocol"] = []string{codec.Name()}
	}
	u := upgrader
	hw := &handshake{ResponseWriter: w, hijacker: hijacker}
	u.Error = func(w http.ResponseWriter, r *http.Request, status int, reason error) {
		if hw.raw != nil {
			return // it has been answered
		}
		if status != http.StatusMethodNotAllowed {
			status = http.StatusBadRequest
		}
		s.fail(w, r, refuse(status, "malformed", strings.TrimPrefix(reason.Error(), "websocket: ")))
	}
	if _, err := u.Upgrade(hw, r, header); err != nil {
		if hw.early {
			s.metrics.refused("malformed")
		}
		s.door.leave(arrived.seat)
		return
	}
	s.start(hw.raw, codec, arrived)
}

// start makes a connection of a finished handshake.
func (s *Server) start(nc net.Conn, codec protocol.Codec, arrived arrival) {
	if !s.enter() {
		s.door.leave(arrived.seat)
		_ = nc.Close() // the client comes back by itself
		return
	}
	c := &conn{srv: s, id: arrived.id, seat: arrived.seat, codec: codec}
	s.engine.Open(&c.sock, nc, c)
	s.sessions.Init(&c.sess, codec, c, c.id)
	s.settle(c, arrived)
	s.add(c)
	c.sock.Start()
}

// handshake hands gorilla the connection for the handshake, and no longer.
type handshake struct {
	http.ResponseWriter
	hijacker http.Hijacker
	raw      net.Conn
	early    bool // the client has sent frames before it was told that it may
}

var errEarly = errors.New("server: frames before the handshake was done")

// earlyBody is written by hand: net/http has let go of the connection.
const earlyBody = `{"error":"malformed","message":"send nothing before the answer to the upgrade request"}` + "\n"

// Hijack takes the connection from net/http.
func (h *handshake) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, brw, err := h.hijacker.Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.raw = c
	ahead := brw.Reader.Buffered()
	if a, ok := c.(*accepted); ok {
		h.raw = a.Conn
		ahead += len(a.head)
	}
	if ahead > 0 {
		h.early = true
		h.refuseEarly(c)
		return nil, nil, errEarly
	}
	return h.raw, brw, nil
}

// refuseEarly answers and closes, not before the client had time to read it.
func (h *handshake) refuseEarly(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lingerTime))
	_, err := fmt.Fprintf(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(earlyBody), earlyBody)
	if half, ok := c.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// headerHas says whether a comma-separated header holds a token, in any case.
func headerHas(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

func subprotocols() string {
	var names []string
	for _, c := range protocol.Codecs() {
		names = append(names, c.Name())
	}
	return strings.Join(names, ", ")
}

func (s *Server) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}
