package socket

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newLoop is a rig whose connections are read by the loop.
func newLoop(t *testing.T, opts Options) *rig {
	t.Helper()
	r := newRig(t, opts)
	if r.e.poll == nil {
		t.Fatal("there is no loop")
	}
	return r
}

// TestB133_SocketOptions: a peer that vanished cannot be played on loopback, but
// the two options that find it, and the one that keeps a slow one from hiding in
// the kernel, can be read back. They must survive leaving the Go runtime.
func TestB133_SocketOptions(t *testing.T) {
	p := newLoop(t, Options{}).open(echo)
	for name, option := range map[string]struct{ level, name, want int }{
		"TCP_NOTSENT_LOWAT": {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat},
		"TCP_USER_TIMEOUT":  {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeerTimeout.Milliseconds())},
		"TCP_NODELAY":       {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		"SO_KEEPALIVE":      {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		if got, err := unix.GetsockoptInt(int(p.conn.fd), option.level, option.name); err != nil || got != option.want {
			t.Errorf("%s is %d (%v), want %d", name, got, err, option.want)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(p.conn.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor is inherited by children: %#x, %v", flags, err)
	}
}

// TestLoop_RestsWhileACommandRuns: a client goes on sending while its command
// waits. The loop must not be told of it again and again.
func TestLoop_RestsWhileACommandRuns(t *testing.T) {
	r := newLoop(t, Options{})
	begun, release := make(chan struct{}), make(chan struct{})
	p := r.open(func(_ context.Context, p *peer, text []byte) {
		if string(text) == "wait" {
			close(begun)
			<-release
		}
		echo(t.Context(), p, text)
	})
	p.send(frame(finBit|opText, "wait"))
	<-begun
	p.send(bytes.Repeat(frame(finBit|opText, "more"), 100))
	eventually(t, "the client is not listened to", func() bool {
		p.conn.mu.Lock()
		defer p.conn.mu.Unlock()
		return p.conn.events&unix.EPOLLIN == 0
	})
	before := r.e.poll.turns.Load()
	timer := time.NewTimer(100 * time.Millisecond)
	<-timer.C
	if turns := r.e.poll.turns.Load() - before; turns > 2 {
		t.Errorf("the loop turned %d times for nothing", turns)
	}
	close(release)
	p.expect("wait")
	for range 100 {
		p.expect("more")
	}
}

// TestLoop_QuietWhileIdle: connections with nothing to say or to write, and
// those that are at their end, wake nobody.
func TestLoop_QuietWhileIdle(t *testing.T) {
	r := newLoop(t, Options{})
	for range 20 {
		p := r.open(echo)
		p.send(frame(finBit|opText, "x"))
		p.expect("x")
	}
	full := r.open(echo)
	full.conn.Push([][]byte{textFrame(repeat("x", 16<<20))})
	ending := r.open(echo)
	ending.conn.End(End{Code: 1012, Grace: time.Second})
	_, _ = ending.closed()
	before := r.e.poll.turns.Load()
	timer := time.NewTimer(100 * time.Millisecond)
	<-timer.C
	if turns := r.e.poll.turns.Load() - before; turns > 20 {
		t.Errorf("the loop turned %d times for nothing", turns)
	}
}

// drain reads from nc until it ends, without allocating.
func drain(nc net.Conn) {
	b := make([]byte, 256<<10)
	for {
		if _, err := nc.Read(b); err != nil {
			return
		}
	}
}

// TestPush_AllocatesNothing while the client keeps up, be it one element or
// several, or a ping.
func TestPush_AllocatesNothing(t *testing.T) {
	r := newLoop(t, Options{})
	p := r.open(echo)
	go drain(p.nc)
	one := [][]byte{textFrame(repeat("x", 300))}
	three := [][]byte{one[0], textFrame("y"), textFrame(repeat("z", 3000))}
	ping := textFrame(`{"type":"ping"}`)
	idle := func() bool {
		p.conn.mu.Lock()
		defer p.conn.mu.Unlock()
		return p.conn.queued == 0 && p.conn.out == nil
	}
	for name, f := range map[string]func(){
		"one element":    func() { p.conn.Push(one) },
		"three elements": func() { p.conn.Push(three) },
		"a ping":         func() { p.conn.Ping(ping) },
	} {
		if n := testing.AllocsPerRun(200, func() {
			for !idle() {
				runtime.Gosched()
			}
			f()
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkPush against a bare write(2) of the same bytes to the same socket.
func BenchmarkPush(b *testing.B) {
	e := New(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	<-e.Ready()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		l.Close()
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	const receivers = 200
	peers := make([]*peer, receivers)
	for i := range peers {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		ours, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		p := &peer{nc: nc.(*net.TCPConn), message: echo, ended: make(chan struct{})}
		e.Open(&p.conn, ours, p)
		p.conn.Start()
		peers[i] = p
		defer nc.Close()
		go func() { _, _ = io.Copy(io.Discard, nc) }()
	}
	element := [][]byte{textFrame(repeat("x", 300))}
	b.Run("push", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			peers[i%receivers].conn.Push(element)
		}
	})
	b.Run("write", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, _ = unix.Write(int(peers[i%receivers].conn.fd), element[0])
		}
	})
}
