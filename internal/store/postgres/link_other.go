//go:build !linux

package postgres

import (
	"net"
	"syscall"
	"time"
)

// userTimeout has no portable form; deadlines and keep-alives do without it.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }

// pending cannot be known everywhere; true makes sure at the price of a
// millisecond.
func pending(net.Conn) bool { return true }
