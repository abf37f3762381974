//go:build !linux

package socket

import "net"

// tuneSocket leaves the socket as it is: a peer that vanished is noticed when
// the system gives up sending to it, or by TCP keep-alive.
func tuneSocket(*net.TCPConn) {}
