package server

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestListener_SlowHandshakesHoldUpNobody: more connections than may be served
// at once send nothing at all; one that asks is still answered.
func TestListener_SlowHandshakesHoldUpNobody(t *testing.T) {
	s := newStack(t, nil)
	for range 2 * maxHandshakes {
		nc, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	if a := s.do("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestListener_BoundsWhatIsServedAtOnce.
func TestListener_BoundsWhatIsServedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := newListener(p, zap.NewNop())
		stop := background(t, func(context.Context) error { return l.run(context.Background()) })
		var served atomic.Int32
		hold := make(chan struct{})
		web := &http.Server{ConnState: settled, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			served.Add(1)
			<-hold
		})}
		serving := background(t, func(context.Context) error {
			if err := web.Serve(l); err != http.ErrServerClosed {
				return err
			}
			return nil
		})
		const n = maxHandshakes + 50
		var ends []net.Conn
		for range n {
			ours, theirs := net.Pipe()
			p.conns <- theirs
			ends = append(ends, ours)
			go fmt.Fprint(ours, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		synctest.Wait()
		if got := served.Load(); got != maxHandshakes {
			t.Errorf("%d served at once, want %d", got, maxHandshakes)
		}
		time.Sleep(handshakeTurn + time.Millisecond)
		synctest.Wait()
		if got := served.Load(); got != n {
			t.Errorf("%d served after their turn, want %d", got, n)
		}
		close(hold)
		for _, e := range ends {
			w, err := http.ReadResponse(bufio.NewReader(e), nil)
			if err != nil || w.StatusCode != 200 {
				t.Fatalf("%v, %v", w, err)
			}
		}
		web.Close()
		serving()
		stop()
		for _, e := range ends {
			e.Close()
		}
	})
}

// broken is a listener out of file descriptors until it is closed.
type broken struct {
	net.Listener
	accepts atomic.Int32
}

func (b *broken) Accept() (net.Conn, error) {
	b.accepts.Add(1)
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
}
func (b *broken) Close() error   { return nil }
func (b *broken) Addr() net.Addr { return nil }

// TestListener_OutOfDescriptors says so clearly, again and again but not all
// the time, and does not spin.
func TestListener_OutOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		b := &broken{}
		l := newListener(b, zap.New(core))
		stop := background(t, func(context.Context) error { return l.run(context.Background()) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := b.accepts.Load(); n < 10 || n > 30 {
			t.Errorf("%d accepts in 10 s", n)
		}
		if n := logs.Len(); n != 1 || logs.All()[0].Level != zapcore.ErrorLevel {
			t.Errorf("%d lines in 10 s: %v", n, logs.All())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := logs.Len(); n != 3 {
			t.Errorf("%d lines in two minutes more, want one a minute", n-1)
		}
		l.Close()
		stop()
	})
}
