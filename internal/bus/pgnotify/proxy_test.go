package pgnotify_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is a TCP relay that can fall silent or refuse.
type proxy struct {
	addr, target string
	ln           net.Listener
	wg           sync.WaitGroup
	dials        atomic.Int64

	mu     sync.Mutex // guards what follows
	refuse bool
	pairs  map[net.Conn]net.Conn
	hole   chan struct{} // closed: the links of now carry nothing
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: ln.Addr().String(), target: target, ln: ln, pairs: map[net.Conn]net.Conn{}, hole: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.dials.Add(1)
		p.mu.Lock()
		refuse, hole, target := p.refuse, p.hole, p.target
		p.mu.Unlock()
		if refuse {
			client.Close()
			continue
		}
		server, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.pairs[client] = server
		p.mu.Unlock()
		p.wg.Go(func() { p.relay(client, server, hole) })
		p.wg.Go(func() { p.relay(server, client, hole) })
	}
}

// relay copies until one side ends; once the hole is closed what comes is
// swallowed and nobody is told of an end.
func (p *proxy) relay(from, to net.Conn, hole chan struct{}) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-hole:
			if err != nil {
				return
			}
			continue
		default:
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			if err != io.EOF {
				to.Close()
				return
			}
			to.Close()
			return
		}
	}
}

// blackhole makes the present links carry nothing, without an end.
func (p *proxy) blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.hole)
	p.hole = make(chan struct{})
}

func (p *proxy) setRefuse(on bool) {
	p.mu.Lock()
	p.refuse = on
	p.mu.Unlock()
	if on {
		p.cut()
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, b := range p.pairs {
		a.Close()
		b.Close()
	}
	clear(p.pairs)
}
