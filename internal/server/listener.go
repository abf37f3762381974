package server

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// Bounds of accepting. A herd of clients that all come back at once is taken
// out of the kernel's queue at once, where it would overflow and cost each of
// them a second, but only some are served at a time: a connection that waits
// costs a descriptor and what it has sent of its request, one that is being
// served costs buffers and stacks. Whoever has not sent the head of its request
// is not served yet, and so keeps nobody waiting.
const (
	acceptBacklog = 16384
	maxHandshakes = 128
	// handshakeTurn is how long a connection may keep others waiting. Whoever
	// takes longer is served all the same, but no longer counted.
	handshakeTurn = 200 * time.Millisecond
	headTimeout   = 10 * time.Second
	maxHeadBytes  = 16 << 10
	// headSlop is what net/http reads beyond MaxHeaderBytes before it refuses.
	headSlop = 4 << 10
)

// listener hands accepted connections to net/http, a bounded number at a time.
type listener struct {
	net.Listener
	log *zap.Logger

	conns   chan *accepted // their heads have arrived
	slots   chan struct{}
	backlog chan struct{} // one for each connection that is not served yet

	complained time.Time // of run alone

	close sync.Once
	done  chan struct{} // closed by Close
}

func newListener(l net.Listener, log *zap.Logger) *listener {
	return &listener{
		Listener: l, log: log,
		conns:   make(chan *accepted, acceptBacklog),
		slots:   make(chan struct{}, maxHandshakes),
		backlog: make(chan struct{}, acceptBacklog),
		done:    make(chan struct{}),
	}
}

// accepted is a connection that may hold a handshake slot.
type accepted struct {
	net.Conn
	head    []byte // was read ahead; touched by Read alone once it is served
	release func() // gives the slot back; may be called again
}

// Read reads what was read ahead first.
func (a *accepted) Read(b []byte) (int, error) {
	if len(a.head) == 0 {
		return a.Conn.Read(b)
	}
	n := copy(b, a.head)
	if a.head = a.head[n:]; len(a.head) == 0 {
		a.head = nil
	}
	return n, nil
}

// CloseWrite lets net/http end its answer before it closes a connection with
// unread input, which would take the answer away.
func (a *accepted) CloseWrite() error {
	if c, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// readHead reads until net/http can answer or refuse without waiting.
func (a *accepted) readHead() error {
	if err := a.SetReadDeadline(time.Now().Add(headTimeout)); err != nil {
		return err
	}
	buf := make([]byte, 0, 512)
	for !headComplete(buf) {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, min(2*cap(buf), maxHeadBytes+headSlop)), buf...)
		}
		n, err := a.Conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			return err
		}
	}
	a.head = buf
	return a.SetReadDeadline(time.Time{})
}

// headComplete says whether b holds a whole head, or what is refused as none.
func headComplete(b []byte) bool {
	line, _, ok := bytes.Cut(b, []byte("\n"))
	return len(b) >= maxHeadBytes+headSlop || ok && !bytes.Contains(line, []byte(" HTTP/")) ||
		bytes.Contains(b, []byte("\n\r\n")) || bytes.Contains(b, []byte("\n\n"))
}

type acceptedKey struct{}

// withConn lets handlers find the connection of a request.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, acceptedKey{}, c)
}

// releaseConn gives back the slot of the request's connection. Whoever waits
// for its client to send more calls it.
func releaseConn(r *http.Request) {
	if a, ok := r.Context().Value(acceptedKey{}).(*accepted); ok {
		a.release()
	}
}

// Accept returns the next connection once it may be served.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	select {
	case c := <-l.conns:
		var once sync.Once
		free := func() { once.Do(func() { <-l.slots }) }
		timer := time.AfterFunc(handshakeTurn, free)
		c.release = func() { timer.Stop(); free() }
		<-l.backlog
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// settled is the http.Server's ConnState: the first request has been answered,
// or the connection has become a WebSocket or is gone.
func settled(c net.Conn, state http.ConnState) {
	if state == http.StateNew || state == http.StateActive {
		return
	}
	if a, ok := c.(*accepted); ok {
		a.release()
	}
}

// Close stops accepting.
func (l *listener) Close() error {
	l.close.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// run takes connections from the kernel until the listener is closed.
func (l *listener) run(ctx context.Context) error {
	ended, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer func() {
		_ = l.Close()
		cancel()
		waiting.Wait()
		for {
			select {
			case c := <-l.conns:
				_ = c.Close()
			default:
				return
			}
		}
	}()
	var pause time.Duration
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			select {
			case <-l.done:
				return nil
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			l.complain(err)
			select {
			case <-time.After(pause):
			case <-l.done:
				return nil
			case <-ctx.Done():
				return nil
			}
			continue
		}
		pause = 0
		select {
		case l.backlog <- struct{}{}:
			waiting.Go(func() { l.await(ended, c) })
		case <-l.done:
			_ = c.Close()
			return nil
		}
	}
}

// await hands c over when the head of its request has arrived, and closes it
// when that does not come or ctx ends.
func (l *listener) await(ctx context.Context, c net.Conn) {
	a := &accepted{Conn: c}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	err := a.readHead()
	if !stop() || err != nil {
		_ = c.Close()
		<-l.backlog
		return
	}
	l.conns <- a // has room for all of the backlog
}

// complainEvery is how often it is said that no connection can be accepted.
const complainEvery = time.Minute

// complain says why connections are not accepted. They wait in the kernel's
// queue; those that are open are served as ever.
func (l *listener) complain(err error) {
	if time.Since(l.complained) < complainEvery {
		return
	}
	l.complained = time.Now()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.log.Error("no file descriptors left, new connections have to wait: raise the limit (ulimit -n, LimitNOFILE)", zap.Error(err))
		return
	}
	l.log.Warn("accept failed", zap.Error(err))
}
