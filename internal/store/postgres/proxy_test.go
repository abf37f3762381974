package postgres

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between a node and the database, and is a bad link on demand.
type proxy struct {
	URL      string
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	// fault says what becomes of a batch, by its number; nil and intact let all pass.
	fault   atomic.Pointer[func(batch int64) fault]
	batches atomic.Int64
	opened  atomic.Int64

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]struct{}
	hole  chan struct{} // while set, bytes vanish until it is closed
}

type fault int

const (
	intact      fault = iota
	dropRequest       // the link breaks before the server has heard of the batch
	dropAnswer        // it breaks after the server has answered
	late              // it breaks, and the server hears of the batch a little later
)

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: u.Host, conns: map[net.Conn]struct{}{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	p.URL = u.String()
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.heal()
		p.listener.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.opened.Add(1)
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	if !p.passes() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	var mute atomic.Bool // the next answer goes nowhere and ends the link
	p.wg.Go(func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || mute.Load() || !p.passes() {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil || !p.passes() {
			return
		}
		what := intact
		if faults := p.fault.Load(); faults != nil && isBatch(buf[:n]) {
			what = (*faults)(p.batches.Add(1))
		}
		switch what {
		case dropRequest:
			return
		case dropAnswer:
			mute.Store(true)
		case late:
			mute.Store(true)
			client.Close()
			time.Sleep(30 * time.Millisecond)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
		if what == late {
			_, _ = io.Copy(io.Discard, server) // until it has done what it was told, and beyond
			return
		}
	}
}

// isBatch finds a Bind message for one of the batch statements: its name
// follows the empty portal.
func isBatch(b []byte) bool { return b[0] == 'B' && bytes.Contains(b, []byte("\x00chronocast_")) }

// cut ends all links.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// blackhole makes everything vanish from now on, without a word to anybody.
func (p *proxy) blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = make(chan struct{})
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hole != nil {
		close(p.hole)
		p.hole = nil
	}
}

// passes returns true when bytes get through; otherwise it returns false when
// the hole is closed: what was lost meanwhile has broken the connection.
func (p *proxy) passes() bool {
	p.mu.Lock()
	hole := p.hole
	p.mu.Unlock()
	if hole == nil {
		return true
	}
	<-hole
	return false
}
