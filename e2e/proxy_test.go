package e2e

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is a TCP relay in front of a server that can hurt the connections
// which pass through it. What is set on the proxy holds for chunks and
// connections from then on.
type proxy struct {
	addr string
	ln   net.Listener
	done chan struct{}
	wg   sync.WaitGroup

	accepted atomic.Int64 // connections taken so far

	mu     sync.Mutex // guards what follows
	target string
	links  map[*link]struct{}
	refuse bool
	// hole makes new connections dead ones: they open, and nothing passes.
	hole bool
	// filter sees every text frame of the server and says whether it passes.
	filter func(payload []byte) bool
	// lose is asked for each chunk of the server's; true drops the chunk and
	// resets the connection.
	lose func() bool
	// delay holds every chunk of the server's back for this long.
	delay time.Duration
	// rate lets this many bytes a second through to the client; 0 is all.
	rate int
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	frozen         atomic.Bool
	cutMid         atomic.Bool // end inside the next chunk
	once           sync.Once
	gone           chan struct{}
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	p := &proxy{
		addr: ln.Addr().String(), ln: ln, target: target,
		done: make(chan struct{}), links: map[*link]struct{}{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		close(p.done)
		ln.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) ws() string             { return "ws://" + p.addr + "/cable" }
func (p *proxy) url(path string) string { return "http://" + p.addr + path }

// set changes the proxy's rules.
func (p *proxy) set(f func(p *proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse, target, hole := p.refuse, p.target, p.hole
		p.mu.Unlock()
		if refuse {
			reset(c)
			continue
		}
		s, err := net.DialTimeout("tcp", target, 2*time.Second)
		if err != nil {
			reset(c)
			continue
		}
		p.accepted.Add(1)
		l := &link{client: c, server: s, gone: make(chan struct{})}
		l.frozen.Store(hole)
		p.mu.Lock()
		p.links[l] = struct{}{}
		framed := p.filter != nil
		p.mu.Unlock()
		p.wg.Go(func() { p.up(l) })
		p.wg.Go(func() {
			if framed {
				p.downFrames(l)
			} else {
				p.down(l)
			}
		})
	}
}

// up relays the client's bytes.
func (p *proxy) up(l *link) {
	defer p.close(l, false)
	buf := make([]byte, 32<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			if !l.pass() {
				return
			}
			if _, err := l.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if l.frozen.Load() {
				<-l.gone // a dead link tells nobody
			}
			return
		}
	}
}

// down relays the server's bytes as they come.
func (p *proxy) down(l *link) {
	defer p.close(l, false)
	buf := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && !p.deliver(l, buf[:n]) {
			return
		}
		if err != nil {
			if l.frozen.Load() {
				<-l.gone
			}
			return
		}
	}
}

// deliver hands one chunk to the client under the rules.
func (p *proxy) deliver(l *link, chunk []byte) bool {
	p.mu.Lock()
	lose, delay, rate := p.lose, p.delay, p.rate
	p.mu.Unlock()
	if lose != nil && lose() {
		p.close(l, true)
		return false
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-l.gone:
			return false
		}
	}
	if !l.pass() {
		return false
	}
	if l.cutMid.Load() && len(chunk) > 1 {
		// Most often inside the last frame, at times inside an earlier one.
		keep := len(chunk) - 1
		if rand.IntN(2) == 0 {
			keep = 1 + rand.IntN(len(chunk)-1)
		}
		l.client.Write(chunk[:keep])
		p.close(l, rand.IntN(2) == 0)
		return false
	}
	for rate > 0 && len(chunk) > 0 {
		part := min(len(chunk), max(rate/20, 1))
		if _, err := l.client.Write(chunk[:part]); err != nil {
			return false
		}
		chunk = chunk[part:]
		select {
		case <-time.After(50 * time.Millisecond):
		case <-l.gone:
			return false
		}
	}
	_, err := l.client.Write(chunk)
	return err == nil
}

// downFrames relays the server's WebSocket frames one by one through the
// filter, after the HTTP answer that opens the socket.
func (p *proxy) downFrames(l *link) {
	defer p.close(l, false)
	r := bufio.NewReaderSize(l.server, 64<<10)
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		if err != nil {
			return
		}
		if len(line) <= 2 {
			break
		}
	}
	if !p.deliver(l, head) {
		return
	}
	for {
		frame, payload, err := readFrame(r)
		if err != nil {
			if l.frozen.Load() {
				<-l.gone
			}
			return
		}
		p.mu.Lock()
		filter := p.filter
		p.mu.Unlock()
		if filter != nil && frame[0]&0x0f <= 2 && !filter(payload) {
			continue
		}
		if !p.deliver(l, frame) {
			return
		}
	}
}

// readFrame reads one unmasked frame: all of it, and its payload.
func readFrame(r *bufio.Reader) (frame, payload []byte, err error) {
	frame = make([]byte, 2, 128)
	if _, err = io.ReadFull(r, frame); err != nil {
		return nil, nil, err
	}
	size := uint64(frame[1] & 0x7f)
	var wide []byte
	switch size {
	case 126:
		wide = make([]byte, 2)
	case 127:
		wide = make([]byte, 8)
	}
	if wide != nil {
		if _, err = io.ReadFull(r, wide); err != nil {
			return nil, nil, err
		}
		if len(wide) == 2 {
			size = uint64(binary.BigEndian.Uint16(wide))
		} else {
			size = binary.BigEndian.Uint64(wide)
		}
		frame = append(frame, wide...)
	}
	start := len(frame)
	frame = append(frame, make([]byte, size)...)
	if _, err = io.ReadFull(r, frame[start:]); err != nil {
		return nil, nil, err
	}
	return frame, frame[start:], nil
}

// pass waits for ever when the link is frozen, until it is closed.
func (l *link) pass() bool {
	if l.frozen.Load() {
		<-l.gone
		return false
	}
	select {
	case <-l.gone:
		return false
	default:
		return true
	}
}

func (p *proxy) each(f func(l *link)) int {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		f(l)
	}
	return len(links)
}

// cut ends all connections now, half of them with a reset.
func (p *proxy) cut() int {
	return p.each(func(l *link) { p.close(l, rand.IntN(2) == 0) })
}

// cutMidFrame ends each connection inside the next chunk the server sends.
func (p *proxy) cutMidFrame() int {
	return p.each(func(l *link) { l.cutMid.Store(true) })
}

// blackhole makes all present connections go silent in both directions without
// closing them, as a dead link does. New connections work.
func (p *proxy) blackhole() int {
	return p.each(func(l *link) { l.frozen.Store(true) })
}

// cutLater cuts all connections once the frame in hand has passed. It may be
// called from a filter.
func (p *proxy) cutLater() { p.wg.Go(func() { p.cut() }) }

// open counts the connections that are open now.
func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *proxy) close(l *link, hard bool) {
	l.once.Do(func() {
		close(l.gone)
		if hard {
			reset(l.client)
			reset(l.server)
		} else {
			l.client.Close()
			l.server.Close()
		}
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	})
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}
