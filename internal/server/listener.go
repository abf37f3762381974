package server

import (
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
// costs a descriptor, one that is being served costs buffers and stacks.
const (
	acceptBacklog = 16384
	maxHandshakes = 128
	// handshakeTurn is how long a connection may keep others waiting. Whoever
	// sends its request slowly is served all the same, but no longer counted.
	handshakeTurn = 200 * time.Millisecond
)

// listener hands accepted connections to net/http, a bounded number at a time.
type listener struct {
	net.Listener
	log *zap.Logger

	conns chan net.Conn
	slots chan struct{}

	close sync.Once
	done  chan struct{} // closed by Close
}

func newListener(l net.Listener, log *zap.Logger) *listener {
	return &listener{
		Listener: l, log: log,
		conns: make(chan net.Conn, acceptBacklog),
		slots: make(chan struct{}, maxHandshakes),
		done:  make(chan struct{}),
	}
}

// accepted is a connection that may hold a handshake slot.
type accepted struct {
	net.Conn
	release func() // gives the slot back; may be called again
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
		return &accepted{Conn: c, release: func() { timer.Stop(); free() }}, nil
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
	defer func() {
		_ = l.Close()
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
			l.complain(err, pause)
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
		case l.conns <- c:
		case <-l.done:
			_ = c.Close()
			return nil
		}
	}
}

func (l *listener) complain(err error, pause time.Duration) {
	if pause < time.Second && pause > 5*time.Millisecond {
		return // said at the first pause and then once a second
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.log.Error("no file descriptors left, new connections have to wait: raise the limit (ulimit -n, LimitNOFILE)", zap.Error(err))
		return
	}
	l.log.Warn("accept failed", zap.Error(err))
}
