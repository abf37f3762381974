package server

import (
	"context"
	"net"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
)

// pipes is a listener whose connections are pipes: what is written waits until
// it is read, no kernel buffer in between, and a bubble of virtual time can
// hold both ends.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// dial returns the client's end of a new WebSocket, its welcome read.
func (p *pipes) dial(t *testing.T, subprotocol string) (*cable, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
	case <-p.done:
		t.Fatal("the listener is closed")
	}
	d := websocket.Dialer{
		NetDialContext: func(context.Context, string, string) (net.Conn, error) { return ours, nil },
		ReadBufferSize: 256, WriteBufferSize: 256, Subprotocols: []string{subprotocol},
	}
	ws, resp, err := d.DialContext(t.Context(), "ws://127.0.0.1/cable", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	c := &cable{t, ws}
	if e := c.next(); e.Type != "welcome" {
		t.Fatalf("first frame is %+v", e)
	}
	return c, ours
}

// pipeServer runs a server on pipes over a log in memory, until stop.
func pipeServer(t *testing.T, change func(*Options)) (srv *Server, log *hubtest.Log, h *hub.Hub, p *pipes, stop func()) {
	log = hubtest.NewLog(1700000000000000)
	h = hub.New(log, hub.Options{})
	opts := Options{Hub: h, Authorizer: auth.Open{}, Goroutines: true}
	if change != nil {
		change(&opts)
	}
	srv, p = New(opts), newPipes()
	stopHub := background(t, h.Run)
	stopServer := background(t, func(ctx context.Context) error { return srv.Run(ctx, p) })
	return srv, log, h, p, func() {
		stopServer()
		stopHub()
	}
}
