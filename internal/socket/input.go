package socket

import (
	"context"
	"errors"
	"time"
)

// consume decodes what came in behind what was there, up to the next message,
// and says whether there is one: it is in c.in.text then. The caller owns the
// input; b is not kept.
func (c *Conn) consume(b []byte) bool {
	if c.deaf {
		return false
	}
	in, own := c.in, false
	if in == nil {
		in = new(inbox)
	}
	if len(in.rest) > 0 {
		in.rest = append(in.rest, b...)
		b, own = in.rest, true
	}
	var ping []byte
	var pinged bool
	defer func() {
		if pinged {
			c.pong(ping) // of several, the last one is enough (RFC 6455, section 5.5.3)
		}
	}()
	for {
		ev, n, err := in.dec.Next(b, c.e.opts.MaxMessageBytes)
		b = b[n:]
		if err != nil {
			c.fault(err)
			return false
		}
		switch ev.Kind {
		case Text:
			if c.isEnding() {
				continue // wait for the client's close frame
			}
			in.text, in.any = append([]byte(nil), ev.Data...), true
			c.keep(in, b, own)
			return true
		case Ping:
			ping, pinged = append(ping[:0], ev.Data...), true
		case Close:
			pinged = false
			c.goodbye(ev.Code)
			return false
		case None:
			c.keep(in, b, own)
			return false
		}
	}
}

// keep holds on to what is not decoded yet, copied unless it is our own.
func (c *Conn) keep(in *inbox, b []byte, own bool) {
	switch {
	case len(b) == 0:
		in.rest = nil
	case own:
		in.rest = b
	default:
		in.rest = append([]byte(nil), b...)
	}
	if c.in = in; len(b) == 0 && !in.any && in.dec.idle() {
		c.in = nil
	}
}

func (c *Conn) isEnding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending
}

// fault ends the connection of a client that broke the protocol. What it sends
// from now on is read and thrown away, so that it can read why: a socket closed
// with unread input is reset, and what is on its way is lost.
func (c *Conn) fault(err error) {
	c.deaf, c.in = true, nil
	var fault *Fault
	code := CloseProtocol
	if errors.As(err, &fault) {
		code = fault.Code
	}
	c.End(End{Code: code, Grace: goodbyeTime, Drop: true})
}

// goodbye answers the client's close frame. The client wants nothing more.
func (c *Conn) goodbye(code int) {
	c.deaf, c.in = true, nil
	if code == closeNoStatus {
		code = CloseNormal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bye = true
	if c.endLocked(End{Code: code, Grace: goodbyeTime, Drop: true}) {
		return
	}
	c.forgetLocked()
	if c.mute || c.queued == 0 && c.poll != nil {
		c.mute = true
		c.abortLocked()
	}
}

// command has the handler handle a message.
func (c *Conn) command(text []byte) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	c.cancel = cancel
	c.mu.Unlock()
	c.h.Message(ctx, text)
	c.mu.Lock()
	c.cancel = nil
	c.mu.Unlock()
}

// rest returns how long the client has to wait before its next command is
// taken. A client may send a burst, enough for most to subscribe again to all
// they had. One that goes on may be a program with a lot to say; several are a
// flood, and share a rate that leaves the machine to others.
func (c *Conn) rest() time.Duration {
	now := uint32(c.e.now().Milliseconds())
	rate := int64(commandPace)
	if c.eager {
		rate = commandRate
		if n := int64(c.e.eager.Load()); n > 1 {
			rate = max(floodRate/n, commandLeast)
		}
	}
	if grown := int64(now-c.counted) * rate / 1000; grown > 0 {
		c.allowed = int32(min(int64(c.allowed)+grown, commandBurst))
		c.counted = now
		if c.allowed >= commandBurst/2 {
			c.calm()
		}
	}
	if c.allowed == 0 {
		if !c.eager {
			c.eager = true
			c.e.eager.Add(1)
		}
		return 10 * time.Millisecond
	}
	c.allowed--
	return 0
}

// calm takes the client out of those that share a rate.
func (c *Conn) calm() {
	if c.eager {
		c.eager = false
		c.e.eager.Add(-1)
	}
}

// turn is a worker's: it runs the commands of a client that have come in, some
// of them, and gives the input back to the loop when there are no more.
func (c *Conn) turn() {
	for range turnCommands {
		c.mu.Lock()
		closed, ending := c.closed, c.ending
		c.parked = !ending && c.queued > min(answersWaiting, c.e.lowWater())
		parked := c.parked
		c.mu.Unlock()
		if closed {
			c.ended()
			return
		}
		if parked {
			return // roomsLocked brings it back
		}
		if c.in != nil && c.in.any {
			if !ending {
				if wait := c.rest(); wait > 0 {
					time.AfterFunc(wait, func() { c.e.pool.submit(c) })
					return
				}
			}
			text := c.in.text
			c.in.text, c.in.any = nil, false
			c.command(text)
		}
		if !c.more() {
			c.release()
			return
		}
	}
	c.e.pool.submit(c)
}

// more says whether another message has come in with the last.
func (c *Conn) more() bool {
	if c.in == nil {
		return false
	}
	return c.consume(nil)
}

// release gives the input back to the loop.
func (c *Conn) release() {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.busy = false
		c.listenLocked()
	}
	c.mu.Unlock()
	if closed {
		c.ended()
	}
}
