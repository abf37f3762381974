package load

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// streams is the poller for every system and for TLS: two goroutines for each
// connection do what waits, and hand what they got to wait.
type streams struct {
	tls    *tls.Config // nil: plain
	events chan event
	bell   chan struct{}
	ctx    context.Context // of the goroutines
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// newStreams returns a poller that speaks TLS when config is not nil.
func newStreams(config *tls.Config) *streams {
	p := &streams{tls: config, events: make(chan event, 256), bell: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

type eventKind uint8

const (
	eventConnected eventKind = iota
	eventRead
	eventWritten
	eventFailed
)

type event struct {
	kind eventKind
	c    *conn
	b    []byte
	err  error
}

// stream is the part of a connection that its goroutines share.
type stream struct {
	ack chan struct{} // what was read has been used

	mu     sync.Mutex // guards what follows
	wake   sync.Cond  // of mu
	nc     net.Conn
	deaf   bool
	queue  []byte
	notify bool // tell when the queue is empty
	closed bool
}

func (p *streams) wake() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

func (p *streams) wait(d time.Duration) error {
	var timeout <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case e := <-p.events:
		p.serve(e)
	case <-p.bell:
		return nil
	case <-timeout:
		return nil
	}
	for range 256 {
		select {
		case e := <-p.events:
			p.serve(e)
		default:
			return nil
		}
	}
	return nil
}

func (p *streams) serve(e event) {
	if e.kind == eventRead {
		defer func() { e.c.far.ack <- struct{}{} }()
	}
	if e.c.state == connClosed {
		return
	}
	switch e.kind {
	case eventConnected:
		e.c.connected()
	case eventRead:
		e.c.received(e.b)
	case eventWritten:
		e.c.writable()
	case eventFailed:
		e.c.fail(e.err)
	}
}

// tell hands an event to wait. false: the poller is being released.
func (p *streams) tell(e event) bool {
	select {
	case p.events <- e:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *streams) dial(c *conn, from, to netip.AddrPort) error {
	s := &stream{ack: make(chan struct{}, 1)}
	s.wake.L = &s.mu
	c.far = s
	p.tasks.Go(func() {
		d := net.Dialer{}
		if from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		nc, err := d.DialContext(p.ctx, "tcp", to.String())
		if err == nil && p.tls != nil {
			secure := tls.Client(nc, p.tls)
			if err = secure.HandshakeContext(p.ctx); err != nil {
				_ = nc.Close()
			}
			nc = secure
		}
		if err != nil {
			p.tell(event{kind: eventFailed, c: c, err: fmt.Errorf("connect: %w", err)})
			return
		}
		s.mu.Lock()
		s.nc = nc
		closed := s.closed
		s.mu.Unlock()
		if closed {
			_ = nc.Close()
			return
		}
		if !p.tell(event{kind: eventConnected, c: c}) {
			_ = nc.Close()
			return
		}
		p.tasks.Go(func() { p.writer(c, s) })
		p.reader(c, s)
	})
	return nil
}

func (p *streams) reader(c *conn, s *stream) {
	buf := make([]byte, 16<<10)
	for {
		s.mu.Lock()
		for s.deaf && !s.closed {
			s.wake.Wait()
		}
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return
		}
		n, err := s.nc.Read(buf)
		if n > 0 {
			if !p.tell(event{kind: eventRead, c: c, b: buf[:n]}) {
				return
			}
			select {
			case <-s.ack:
			case <-p.ctx.Done():
				return
			}
		}
		if err != nil {
			p.tell(event{kind: eventFailed, c: c, err: err})
			return
		}
	}
}

func (p *streams) writer(c *conn, s *stream) {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.closed {
			s.wake.Wait()
		}
		b := s.queue
		s.queue = nil
		closed := s.closed
		s.mu.Unlock()
		if len(b) > 0 {
			if _, err := s.nc.Write(b); err != nil {
				p.tell(event{kind: eventFailed, c: c, err: fmt.Errorf("connection lost: %w", err)})
				return
			}
		}
		if closed {
			return
		}
		s.mu.Lock()
		tell := s.notify && len(s.queue) == 0
		if tell {
			s.notify = false
		}
		s.mu.Unlock()
		if tell && !p.tell(event{kind: eventWritten, c: c}) {
			return
		}
	}
}

// streamQueue is how much one connection's writer is given at once.
const streamQueue = 64 << 10

func (p *streams) write(c *conn, b []byte) (int, error) {
	s := c.far
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(b), max(streamQueue-len(s.queue), 0))
	s.queue = append(s.queue, b[:n]...)
	s.wake.Broadcast()
	return n, nil
}

func (p *streams) interest(c *conn, read, write bool) {
	s := c.far
	s.mu.Lock()
	s.deaf = !read
	s.notify = write
	empty := write && len(s.queue) == 0
	s.wake.Broadcast()
	s.mu.Unlock()
	if empty { // its writer may have gone to sleep before it knew
		p.tasks.Go(func() { p.tell(event{kind: eventWritten, c: c}) })
	}
}

func (p *streams) close(c *conn) {
	s := c.far
	s.mu.Lock()
	s.closed = true
	nc := s.nc
	s.wake.Broadcast()
	s.mu.Unlock()
	if nc != nil {
		p.tasks.Go(func() { _ = nc.Close() }) // TLS says goodbye first
	}
}

func (p *streams) release() {
	p.cancel()
	p.tasks.Wait()
}
