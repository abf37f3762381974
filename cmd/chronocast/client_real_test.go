package main

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/server"
	"github.com/chronocast/chronocast/internal/store/sqlite"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// node is a real server in this process: store, sequencer, hub and sockets.
type node struct {
	addr string
	stop func() // ends it in good order; may be called again
}

func (n *node) url() string { return "http://" + n.addr }

// startNode runs a server until the test ends. With the path and addr of one
// that was stopped it is its restart.
func startNode(t *testing.T, path, addr string) *node {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fanout := hub.New(store, hub.Options{})
	seq := sequencer.New(store, sequencer.Options{Committed: func(b []protocol.Batch) { fanout.Publish(b) }})
	door := server.New(server.Options{Hub: fanout, Authorizer: auth.Open{}, Appender: seq})

	serving, stopServing := context.WithCancel(context.Background())
	below, stopBelow := context.WithCancel(context.Background())
	var top, parts sync.WaitGroup
	report := func(what string, err error) {
		if err != nil && below.Err() == nil {
			t.Errorf("%s ended: %v", what, err)
		}
	}
	top.Go(func() { report("server", door.Run(serving, listener)) })
	parts.Go(func() { report("hub", fanout.Run(below)) })
	parts.Go(func() { report("sequencer", seq.Run(below)) })
	parts.Go(func() { report("store", store.Run(below)) })
	n := &node{addr: listener.Addr().String()}
	n.stop = sync.OnceFunc(func() {
		stopServing()
		top.Wait()
		stopBelow()
		parts.Wait()
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func newNode(t *testing.T) *node {
	t.Helper()
	return startNode(t, filepath.Join(t.TempDir(), "chronocast.db"), "127.0.0.1:0")
}

// proxy stands between a client and a server and breaks connections.
type proxy struct {
	addr string
	// limit says how many bytes of the server's the connection with this
	// number, from 0, lets through before it is cut; negative: all.
	limit func(n int) int
	// hang makes a connection that has reached its limit fall silent instead.
	hang bool

	mu    sync.Mutex // guards what follows
	conns int
}

// startProxy forwards to addr until the test ends.
func startProxy(t *testing.T, addr string, hang bool, limit func(n int) int) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: listener.Addr().String(), limit: limit, hang: hang}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			upstream, err := net.Dial("tcp", addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			left := p.limit(p.conns)
			p.conns++
			p.mu.Unlock()
			open.Go(func() { p.copy(upstream, client, -1) })
			open.Go(func() { p.copy(client, upstream, left) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
	})
	return p
}

// copy forwards up to left bytes, then ends the connection in both directions.
func (p *proxy) copy(to, from net.Conn, left int) {
	buf := make([]byte, 16<<10)
	for left != 0 {
		chunk := buf
		if left > 0 {
			chunk = buf[:min(left, len(buf))]
		}
		n, err := from.Read(chunk)
		if _, werr := to.Write(chunk[:n]); err != nil || werr != nil {
			break
		}
		if left > 0 {
			left -= n
		}
	}
	if left == 0 && p.hang {
		for { // take what comes, and pass nothing on
			if _, err := from.Read(buf); err != nil {
				break
			}
		}
	}
	_ = to.Close()
	_ = from.Close()
}

func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns
}
