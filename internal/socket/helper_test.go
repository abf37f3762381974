package socket

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that should come soon.
const patience = 20 * time.Second

// transports runs a test on both kinds of connections.
func transports(t *testing.T, opts Options, f func(t *testing.T, r *rig)) {
	for _, goroutines := range []bool{false, true} {
		name := "loop"
		if goroutines {
			name = "goroutines"
		}
		t.Run(name, func(t *testing.T) {
			opts.Goroutines = goroutines
			f(t, newRig(t, opts))
		})
	}
}

// rig is an engine that runs, and a listener.
type rig struct {
	t *testing.T
	e *Engine
	l *net.TCPListener
}

func newRig(t *testing.T, opts Options) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, e: New(opts), l: l.(*net.TCPListener)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.e.Run(ctx) }()
	<-r.e.Ready()
	t.Cleanup(func() {
		l.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// peer is the handler of a connection, and the client at its other end.
type peer struct {
	t    *testing.T
	nc   *net.TCPConn // of the client
	r    *bufio.Reader
	conn Conn

	message func(ctx context.Context, p *peer, text []byte)
	stalled atomic.Int32
	ended   chan struct{}
	over    sync.Once
}

func (p *peer) Message(ctx context.Context, text []byte) { p.message(ctx, p, text) }

func (p *peer) Stalled() {
	p.stalled.Add(1)
	p.conn.End(End{Frame: textFrame("stalled"), Code: 1013, Grace: goodbyeTime, Drop: true})
}

func (p *peer) Ended() {
	again := true
	p.over.Do(func() { again = false; close(p.ended) })
	if again {
		p.t.Error("Ended was called again")
	}
}

// echo answers a message with itself.
func echo(_ context.Context, p *peer, text []byte) { p.conn.Push([][]byte{textFrame(string(text))}) }

// open returns a new connection that reads.
func (r *rig) open(message func(context.Context, *peer, []byte)) *peer {
	r.t.Helper()
	p := r.quiet(message)
	p.conn.Start()
	return p
}

// quiet returns a connection that does not read yet.
func (r *rig) quiet(message func(context.Context, *peer, []byte)) *peer {
	r.t.Helper()
	nc, err := net.Dial("tcp", r.l.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	ours, err := r.l.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	p := &peer{t: r.t, nc: nc.(*net.TCPConn), r: bufio.NewReader(nc), message: message, ended: make(chan struct{})}
	r.e.Open(&p.conn, ours, p)
	r.t.Cleanup(func() {
		nc.Close()
		select {
		case <-p.ended:
		case <-time.After(patience):
			r.t.Error("the connection has not ended")
		}
	})
	return p
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if err := p.nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// next reads a frame of the server's.
func (p *peer) next() (opcode byte, payload string, err error) {
	if err := p.nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, "", err
	}
	var h [10]byte
	if _, err := io.ReadFull(p.r, h[:2]); err != nil {
		return 0, "", err
	}
	size, more := int(h[1]), 0
	switch h[1] {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	if _, err := io.ReadFull(p.r, h[2:2+more]); err != nil {
		return 0, "", err
	}
	if more > 0 {
		size = 0
		for _, b := range h[2 : 2+more] {
			size = size<<8 | int(b)
		}
	}
	if h[0]&^0x0f != finBit || h[1] > 127 || size > 64<<20 {
		return 0, "", fmt.Errorf("no frame begins with %x", h[:2+more])
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(p.r, b); err != nil {
		return 0, "", err
	}
	return h[0] & 0x0f, string(b), nil
}

// text reads the next text frame.
func (p *peer) text() string {
	p.t.Helper()
	op, s, err := p.next()
	if err != nil || op != opText {
		p.t.Fatalf("opcode %d, %.60q, %v; want a text", op, s, err)
	}
	return s
}

// expect reads text frames.
func (p *peer) expect(texts ...string) {
	p.t.Helper()
	for _, want := range texts {
		if got := p.text(); got != want {
			p.t.Fatalf("%.60q, want %.60q", got, want)
		}
	}
}

// closed reads on until the server closes, and returns the last text and the
// code of the close frame, 0 when there was none.
func (p *peer) closed() (last string, code int) {
	p.t.Helper()
	for {
		op, s, err := p.next()
		switch {
		case err != nil:
			return last, 0
		case op == opText:
			last = s
		case op == opClose && len(s) == 2:
			return last, int(binary.BigEndian.Uint16([]byte(s)))
		}
	}
}

func (p *peer) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// textFrame makes a text ready for the wire.
func textFrame(text string) []byte {
	n := len(text)
	b := []byte{finBit | opText}
	switch {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, text...)
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

func repeat(s string, n int) string { return strings.Repeat(s, n) }
