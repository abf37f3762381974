//go:build !linux

package socket

import (
	"context"
	"net"
	"sync/atomic"
)

// poller is not there: every connection has goroutines of its own.
type poller struct{}

func newPoller(*Engine) (*poller, error)                { return nil, nil }
func (*poller) run(context.Context, *atomic.Bool) error { return nil }
func (*poller) adopt(*Conn, net.Conn) bool              { return false }
func (*poller) watch(*Conn)                             {}
func (c *Conn) writeOneLocked([]byte)                   {}
func (c *Conn) writeLocked([][]byte, int)               {}
func (c *Conn) flushLocked()                            {}
func (c *Conn) listenLocked()                           {}
func (c *Conn) waitsLocked() bool                       { return false }
func (c *Conn) halfLocked()                             { halfClose(c.nc) }
func (c *Conn) severLocked()                            { _ = c.nc.SetDeadline(past) }
