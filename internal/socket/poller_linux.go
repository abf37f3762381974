package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// readBytes is what one read takes at most, into a buffer that all
	// connections share.
	readBytes = 64 << 10
	// writeBytes is what one system call is given at most: it holds its
	// processor for as long as the kernel copies.
	writeBytes = 256 << 10
	waitEvents = 256
	maxIovecs  = 64
	fewIovecs  = 8 // of what is pushed while nothing is queued
)

// poller is an epoll loop. Its own descriptor is watched by the Go runtime, so
// that waiting takes neither a thread nor a processor.
type poller struct {
	e    *Engine
	file *os.File // the epoll instance
	fd   int
	wait syscall.RawConn

	buf    []byte // of the loop
	events []unix.EpollEvent
	ready  []*Conn
	turns  atomic.Uint64 // of the loop, ever

	mu     sync.Mutex // guards what follows; a leaf
	conns  []*Conn    // by descriptor
	closed bool
}

func newPoller(e *Engine) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	p := &poller{
		e: e, file: os.NewFile(uintptr(fd), "epoll"), fd: fd,
		buf: make([]byte, readBytes), events: make([]unix.EpollEvent, waitEvents),
	}
	if p.wait, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, err
	}
	return p, nil
}

// run is the loop. When ctx ends it closes the connections that are left.
func (p *poller) run(ctx context.Context, running *atomic.Bool) error {
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(past) })
	defer stop()
	var err error
	for err == nil {
		var n int
		if n, err = p.next(); err == nil {
			p.serve(n)
		}
	}
	running.Store(false)
	p.mu.Lock()
	p.closed = true
	left := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range left {
		if c != nil {
			p.close(c)
		}
	}
	_ = p.file.Close()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// next waits for events and returns how many there are.
func (p *poller) next() (int, error) {
	n := 0
	var errno syscall.Errno
	err := p.wait.Read(func(fd uintptr) bool {
		var r uintptr
		r, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&p.events[0])), waitEvents, 0, 0, 0)
		n = int(r)
		return errno != 0 || n > 0
	})
	switch {
	case err != nil:
		return 0, err
	case errno == unix.EINTR:
		return 0, nil
	case errno != 0:
		return 0, os.NewSyscallError("epoll_wait", errno)
	}
	return n, nil
}

// serve serves the connections of n events. Only this loop closes a descriptor,
// so each still belongs to the connection that is looked up.
func (p *poller) serve(n int) {
	p.turns.Add(1)
	p.mu.Lock()
	p.ready = p.ready[:0]
	for i := range p.events[:n] {
		p.ready = append(p.ready, p.conns[p.events[i].Fd])
	}
	p.mu.Unlock()
	for i, c := range p.ready {
		p.ready[i] = nil
		if c == nil {
			continue
		}
		switch ev := p.events[i].Events; {
		case ev&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
			p.close(c)
		default:
			if ev&unix.EPOLLOUT != 0 {
				c.writable()
			}
			if ev&unix.EPOLLIN != 0 {
				p.readable(c)
			}
		}
	}
}

// readable reads what a client has sent, unless a worker still has its last
// commands in hand: then it is not listened to until the worker is done.
func (p *poller) readable(c *Conn) {
	c.mu.Lock()
	if c.busy {
		c.interestLocked(c.events &^ unix.EPOLLIN)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&p.buf[0])), readBytes)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
	case errno != 0 || n == 0:
		p.close(c) // the client is gone: there is no time to write anything
	case c.consume(p.buf[:n]):
		c.mu.Lock()
		c.busy = true
		c.mu.Unlock()
		p.e.pool.submit(c)
	}
}

func (c *Conn) writable() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
}

// close closes the descriptor of a connection. It is called by the loop alone.
func (p *poller) close(c *Conn) {
	c.mu.Lock()
	fd := c.fd
	if fd < 0 {
		c.mu.Unlock()
		return
	}
	c.fd = -1
	tell := c.goneLocked()
	c.mu.Unlock()
	p.mu.Lock()
	if int(fd) < len(p.conns) {
		p.conns[fd] = nil
	}
	p.mu.Unlock()
	_ = unix.Close(int(fd))
	if tell {
		p.e.pool.submit(c)
	}
}

// adopt takes a TCP connection out of the Go runtime; false leaves it as it was.
func (p *poller) adopt(c *Conn, nc net.Conn) bool {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	fd := -1
	if ctl := raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); ctl != nil || err != nil {
		return false
	}
	_ = tcp.Close()
	c.poll, c.fd, c.events = p, int32(fd), unix.EPOLLIN
	return true
}

// watch has the loop look after an adopted connection.
func (p *poller) watch(c *Conn) {
	c.mu.Lock()
	fd := c.fd
	p.mu.Lock()
	closed := p.closed
	if !closed {
		for int(fd) >= len(p.conns) {
			p.conns = append(p.conns, make([]*Conn, max(len(p.conns), 64))...)
		}
		p.conns[fd] = c
	}
	p.mu.Unlock()
	var err error
	if !closed {
		c.watched = true
		ev := unix.EpollEvent{Events: c.events, Fd: fd}
		err = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	}
	c.mu.Unlock()
	if closed || err != nil {
		// The loop has never heard of it, and never will.
		p.e.opts.Log.Warn("connection cannot be watched", zap.Bool("stopping", closed), zap.Error(err))
		p.close(c)
	}
}

// interestLocked says which events the loop waits for.
func (c *Conn) interestLocked(events uint32) {
	if events == c.events {
		return
	}
	c.events = events
	if c.watched && c.fd >= 0 {
		ev := unix.EpollEvent{Events: events, Fd: c.fd}
		_ = unix.EpollCtl(c.poll.fd, unix.EPOLL_CTL_MOD, int(c.fd), &ev)
	}
}

// listenLocked has the loop listen to the client.
func (c *Conn) listenLocked() { c.interestLocked(c.events | unix.EPOLLIN) }

// waitsLocked says whether the loop waits for the socket to take more.
func (c *Conn) waitsLocked() bool { return c.events&unix.EPOLLOUT != 0 }

// halfLocked tells the client that nothing more will come.
func (c *Conn) halfLocked() {
	if c.poll == nil {
		halfClose(c.nc)
	} else if c.fd >= 0 {
		_ = unix.Shutdown(int(c.fd), unix.SHUT_WR)
	}
}

// severLocked makes whoever reads from the connection close it.
func (c *Conn) severLocked() {
	if c.poll == nil {
		_ = c.nc.SetDeadline(past)
	} else if c.fd >= 0 {
		_ = unix.Shutdown(int(c.fd), unix.SHUT_RDWR)
	}
}

// writeOneLocked is writeLocked for one element: the way of a broadcast to a
// client that keeps up.
func (c *Conn) writeOneLocked(b []byte) {
	if len(b) == 0 {
		return
	}
	if len(b) <= writeBytes {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == 0 && int(n) == len(b) {
			c.sent.add(b)
			c.greeted = true
			return
		}
		if errno == 0 {
			c.writeLocked([][]byte{b}, int(n))
			return
		}
	}
	c.writeLocked([][]byte{b}, 0)
}

// writeLocked writes frames, the first off bytes of which are written already,
// while nothing is queued, and queues what the socket does not take.
func (c *Conn) writeLocked(frames [][]byte, off int) {
	if off == 0 && len(frames) <= fewIovecs {
		var iov [fewIovecs]unix.Iovec
		size := 0
		for i, b := range frames {
			iov[i].Base = unsafe.SliceData(b)
			iov[i].SetLen(len(b))
			size += len(b)
		}
		if size <= writeBytes {
			n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(frames)))
			if errno == 0 && int(n) == size {
				for _, b := range frames {
					c.sent.add(b)
				}
				c.greeted = true
				return
			}
			if errno == 0 {
				off = int(n)
			}
		}
	}
	c.queueLocked(frames)
	c.passedLocked(off)
	c.flushLocked()
}

// flushLocked writes what is queued until the socket takes no more, and waits
// for it then.
func (c *Conn) flushLocked() {
	if c.mute || c.closed || c.fd < 0 {
		return
	}
	for {
		c.frontLocked()
		if c.queued == 0 {
			break
		}
		n, asked, errno := c.writev()
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 && errno != unix.EAGAIN {
			c.abortLocked()
			return
		}
		c.passedLocked(n)
		if n < asked {
			if !c.waitsLocked() {
				c.interestLocked(c.events | unix.EPOLLOUT)
				c.stallLocked()
			}
			c.roomsLocked()
			return
		}
	}
	c.interestLocked(c.events &^ unix.EPOLLOUT)
	c.roomsLocked()
	if c.ending {
		c.muteLocked()
	}
}

// writev writes from the front of the queue what one call may be given.
func (c *Conn) writev() (n, asked int, errno syscall.Errno) {
	var iov [maxIovecs]unix.Iovec
	o, k := c.out, 0
	for i := o.head; i < len(o.q) && k < maxIovecs && asked < writeBytes; i++ {
		b := o.q[i]
		if i == o.head {
			b = b[o.off:]
		}
		b = b[:min(len(b), writeBytes-asked)]
		iov[k].Base = unsafe.SliceData(b)
		iov[k].SetLen(len(b))
		asked += len(b)
		k++
	}
	r, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(k))
	if errno != 0 {
		return 0, asked, errno
	}
	return int(r), asked, 0
}
