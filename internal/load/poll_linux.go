package load

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newPoller returns the poller for plain TCP of this system.
func newPoller() (poller, error) {
	p := &epoll{events: make([]unix.EpollEvent, 1024)}
	var err error
	if p.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("load: epoll: %w", err)
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(p.fd)
		return nil, fmt.Errorf("load: eventfd: %w", err)
	}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, p.bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.bell)}); err != nil {
		unix.Close(p.bell)
		unix.Close(p.fd)
		return nil, fmt.Errorf("load: epoll: %w", err)
	}
	return p, nil
}

// epoll is the poller of Linux: no goroutine and no buffer for a connection.
// Descriptors are opened and closed by the loop's goroutine alone.
type epoll struct {
	fd, bell int
	events   []unix.EpollEvent
	conns    []*conn // by descriptor
	opened   uint32
}

func (p *epoll) wake() {
	_, _ = unix.Write(p.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full means that it rings already
}

func (p *epoll) wait(d time.Duration) error {
	ms := -1
	if d >= 0 {
		ms = int((d + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.EpollWait(p.fd, p.events, ms)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load: epoll: %w", err)
	}
	for i := range p.events[:n] {
		ev := p.events[i]
		if int(ev.Fd) == p.bell {
			var b [8]byte
			_, _ = unix.Read(p.bell, b[:])
			continue
		}
		c := p.conns[ev.Fd]
		// A connection that was closed and one that was opened on the same
		// descriptor since are told apart by the number in the pad.
		if c == nil || uint32(ev.Pad) != c.gen {
			continue
		}
		p.serve(c, ev.Events)
	}
	return nil
}

func (p *epoll) serve(c *conn, events uint32) {
	if c.state == connDialing {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			c.fail(fmt.Errorf("connect: %w", err))
			return
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		p.interest(c, true, false)
		c.connected()
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		c.deaf = false // whoever does not listen hears at least that it is over
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 && !c.deaf {
		p.read(c)
	}
	if c.state != connClosed && events&unix.EPOLLOUT != 0 {
		c.writable()
	}
}

// reads bounds how often one connection is read before others have their turn.
const reads = 4

func (p *epoll) read(c *conn) {
	buf := c.loop.buf
	for range reads {
		n, err := unix.Read(c.fd, buf)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return
		case err != nil:
			c.fail(fmt.Errorf("connection lost: %w", err))
			return
		}
		c.received(buf[:n])
		if n < len(buf) || c.state == connClosed || c.deaf {
			return
		}
	}
}

func (p *epoll) write(c *conn, b []byte) (int, error) {
	for {
		n, err := unix.Write(c.fd, b)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, nil
		}
		return 0, fmt.Errorf("connection lost: %w", err)
	}
}

func (p *epoll) interest(c *conn, read, write bool) {
	_ = p.control(unix.EPOLL_CTL_MOD, c, read, write) // it is registered, so this can only lack memory
}

func (p *epoll) control(op int, c *conn, read, write bool) error {
	ev := unix.EpollEvent{Fd: int32(c.fd), Pad: int32(c.gen)}
	if read {
		ev.Events |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if write {
		ev.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(p.fd, op, c.fd, &ev)
}

func (p *epoll) dial(c *conn, from, to netip.AddrPort) error {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("load: %w", os.NewSyscallError("socket", err))
	}
	fail := func(call string, err error) error {
		unix.Close(fd)
		return fmt.Errorf("load: %w", os.NewSyscallError(call, err))
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fail("setsockopt", err)
	}
	if from.IsValid() {
		// The port is chosen by connect, so that each address has all ports
		// for each server.
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if err := unix.Bind(fd, sockaddr(from)); err != nil {
			return fail("bind to "+from.Addr().String(), err)
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		return fail("connect", err)
	}
	p.opened++
	c.fd, c.gen = fd, p.opened
	if err := p.control(unix.EPOLL_CTL_ADD, c, false, true); err != nil {
		return fail("epoll_ctl", err)
	}
	for fd >= len(p.conns) {
		p.conns = append(p.conns, make([]*conn, fd+1024-len(p.conns))...)
	}
	p.conns[fd] = c
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func (p *epoll) close(c *conn) {
	p.conns[c.fd] = nil
	unix.Close(c.fd) // takes it out of the epoll set
}

func (p *epoll) release() {
	unix.Close(p.bell)
	unix.Close(p.fd)
}
