package socket

import (
	"errors"
	"net"
	"sync"
	"time"
)

// A connection without a poller: one goroutine reads from it and runs its
// commands, another one writes while there is something to write.

// readSize is the buffer of a goroutine that reads. A command is short, and
// there is one buffer for every idle connection.
const readSize = 512

// read is the goroutine of a connection.
func (c *Conn) read() {
	buf := make([]byte, readSize)
	for {
		n, err := c.nc.Read(buf)
		for more := n > 0 && c.consume(buf[:n]); more; more = c.more() {
			c.await()
			text := c.in.text
			c.in.text, c.in.any = nil, false
			// In a goroutine of its own: a command needs a stack several times as
			// large as waiting does, and this one would keep that for good.
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.command(text)
			}()
			<-done
		}
		if err != nil {
			break
		}
	}
	_ = c.nc.Close()
	c.mu.Lock()
	c.goneLocked()
	c.mu.Unlock()
	c.ended()
}

// await waits while the client has not read the answers to its last commands, or
// sends too many of them.
func (c *Conn) await() {
	room := make(chan struct{})
	c.Room(func() { close(room) })
	<-room
	for {
		wait := c.rest()
		if wait == 0 {
			return
		}
		pause := time.NewTimer(wait)
		<-pause.C
	}
}

// batchBytes is about how much is written at once. Smaller frames are copied
// together, so that a burst costs one system call.
const batchBytes = 16 << 10

var batchBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, batchBytes)
	return &b
}}

// write writes until nothing is left, then goes.
func (c *Conn) write() {
	pooled := batchBuffers.Get().(*[]byte)
	defer batchBuffers.Put(pooled)
	var frames [][]byte
	for {
		if frames = c.take(frames[:0]); len(frames) == 0 {
			return
		}
		buf := (*pooled)[:0]
		ok := true
		for _, f := range frames {
			large := len(f) > batchBytes/2
			if large || len(buf)+len(f) > batchBytes {
				ok = ok && c.send(buf)
				buf = buf[:0]
			}
			if large {
				ok = ok && c.send(f)
				continue
			}
			buf = append(buf, f...)
		}
		ok = ok && c.send(buf)
		c.wrote(frames, ok)
		clear(frames)
	}
}

// take takes what is to be written next from the queue, about batchBytes but
// one element at least, a ping and a pong in front not counted. When there is nothing the writer has ended and must go.
func (c *Conn) take(frames [][]byte) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mute {
		front := c.frontLocked()
		if o := c.out; o != nil {
			size := 0
			for o.head < len(o.q) && (size <= front || size+len(o.q[o.head]) <= batchBytes) {
				size += len(o.q[o.head])
				frames = append(frames, o.q[o.head])
				o.q[o.head] = nil
				o.head++
			}
			if o.head == len(o.q) {
				o.q, o.head = nil, 0
			}
		}
		if len(frames) == 0 && c.ending {
			c.muteLocked()
		}
	}
	if len(frames) > 0 {
		c.greeted = true
	} else {
		c.writing = false
	}
	return frames
}

// wrote takes note that what was taken is written, or cannot be.
func (c *Conn) wrote(frames [][]byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range frames {
		c.queued -= len(f)
		if ok {
			c.countLocked(f)
		}
	}
	if !ok {
		c.abortLocked()
		return
	}
	c.roomsLocked()
}

// send writes all of b, or returns false when the client is gone or has taken
// nothing for the time a stall may last. A client that takes little by little
// is slow, not gone: the time begins anew with every byte the kernel accepts.
func (c *Conn) send(b []byte) bool {
	for len(b) > 0 {
		c.mu.Lock()
		c.limitLocked()
		c.mu.Unlock()
		n, err := c.nc.Write(b)
		b = b[n:]
		if err == nil {
			continue
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return false
		}
		if n == 0 && !c.isEnding() {
			c.h.Stalled() // and a last chance
		}
		if c.isOver() {
			return false
		}
	}
	return true
}

// limitLocked sets the moment a write must have brought some progress by.
func (c *Conn) limitLocked() {
	end := c.e.opts.WriteStall
	if c.ending {
		end = min(end, c.since-c.e.now())
	}
	if !c.mute {
		_ = c.nc.SetWriteDeadline(time.Now().Add(end))
	}
}

// isOver says whether an ending connection has had its time.
func (c *Conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.ending && (c.mute || c.e.now() >= c.since)
}

// halfClose tells a client that nothing more will come.
func halfClose(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// past is a deadline that wakes whoever waits.
var past = time.Unix(1, 0)
