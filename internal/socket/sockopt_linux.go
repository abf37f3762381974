package socket

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what the kernel does for a connection on its own.
const (
	// notSentLowat is how much unsent data the kernel takes from us for one
	// client. Without it a client that stops reading is given megabytes of
	// kernel memory before a write ever waits, and looks healthy all the while.
	notSentLowat = 64 << 10
	// deadPeerTimeout is how long sent data may stay unacknowledged. Clients
	// send nothing by themselves, so this, with a ping every few seconds, is
	// how a peer is noticed that vanished without a word.
	deadPeerTimeout = 30 * time.Second
)

func tuneSocket(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// Neither option is needed for correctness: an old kernel that lacks one
	// only keeps dead or slow peers for longer.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeerTimeout.Milliseconds()))
	})
}
