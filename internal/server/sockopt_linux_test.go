package server

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chronocast/chronocast/protocol"
)

// TestB133_SocketOptions: a peer that vanished cannot be played on loopback,
// but the two options that find it, and the one that keeps a slow one from
// hiding in the kernel, can be read back.
func TestB133_SocketOptions(t *testing.T) {
	s := newStack(t, nil)
	s.dial(protocol.SubprotocolPlain).subscribe("a")
	raw, err := s.srv.all()[0].nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]struct{ level, name, want int }{
		"TCP_NOTSENT_LOWAT": {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat},
		"TCP_USER_TIMEOUT":  {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeerTimeout.Milliseconds())},
		"SO_KEEPALIVE":      {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), option.level, option.name); err != nil || got != option.want {
				t.Errorf("%s is %d (%v), want %d", name, got, err, option.want)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
