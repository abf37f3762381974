package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// floorGroup is one port of the bare loop and the sockets that came to it.
type floorGroup struct {
	listener int
	sockets  []int
	header   []byte
	before   []byte // text before the mark
	after    []byte
}

// runFloor is the bare loop: one goroutine, blocking sockets, one write for each
// socket, in the order it is told on in. It is what every server is compared
// with, so there is nothing in it that could be left out.
func runFloor(_ context.Context, in io.Reader, out io.Writer) error {
	var groups []*floorGroup
	defer func() {
		for _, g := range groups {
			for _, fd := range g.sockets {
				unix.Close(fd)
			}
			unix.Close(g.listener)
		}
	}()
	raiseFiles()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	var frame []byte
	for lines.Scan() {
		var k int
		name, rest, _ := strings.Cut(lines.Text(), " ")
		if name != "listen" && name != "cpu" {
			if _, err := fmt.Sscan(rest, &k); err != nil || k < 0 || k >= len(groups) {
				return fmt.Errorf("load: the bare loop has no group %q", rest)
			}
		}
		switch name {
		case "listen":
			g, addr, err := floorListen()
			if err != nil {
				return err
			}
			groups = append(groups, g)
			fmt.Fprintln(out, addr)
		case "await":
			var n int
			if _, err := fmt.Sscan(rest, &k, &n); err != nil {
				return err
			}
			for g := groups[k]; len(g.sockets) < n; {
				fd, _, err := unix.Accept4(g.listener, unix.SOCK_CLOEXEC)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil {
					return fmt.Errorf("load: accept: %w", err)
				}
				_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // as the servers have it
				g.sockets = append(g.sockets, fd)
			}
			fmt.Fprintln(out, "ok")
		case "frame":
			var header, text string
			if _, err := fmt.Sscan(rest, &k, &header, &text); err != nil {
				return err
			}
			h, err1 := hex.DecodeString(header)
			t, err2 := hex.DecodeString(text)
			before, after, ok := bytes.Cut(t, []byte{0})
			if err1 != nil || err2 != nil || !ok {
				return errors.New("load: the bare loop was given no frame")
			}
			groups[k].header, groups[k].before, groups[k].after = h, before, after
		case "write":
			var m mark
			if _, err := fmt.Sscan(rest, &k, &m.lane, &m.seq, &m.at); err != nil {
				return err
			}
			g := groups[k]
			frame = append(append(frame[:0], g.header...), g.before...)
			frame = append(m.append(frame), g.after...)
			for _, fd := range g.sockets {
				floorWrite(fd, frame)
			}
		case "cpu":
			fmt.Fprintln(out, int64(ownCPU()))
		}
	}
	return lines.Err()
}

// floorWrite writes all of b. A socket whose client has gone is passed over.
func floorWrite(fd int, b []byte) {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		b = b[max(n, 0):]
	}
}

func floorListen() (*floorGroup, netip.AddrPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, netip.AddrPort{}, fmt.Errorf("load: socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, 16<<10)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	own, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		unix.Close(fd)
		return nil, netip.AddrPort{}, fmt.Errorf("load: listen: %w", err)
	}
	return &floorGroup{listener: fd}, netip.AddrPortFrom(netip.AddrFrom4(own.Addr), uint16(own.Port)), nil
}
