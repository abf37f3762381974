package load

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
	"unicode/utf8"
)

// handler is told what happens on a connection, on the loop's goroutine.
type handler interface {
	// opened: the handshake is done.
	opened()
	// message is one whole text message; text is lent for the call.
	message(text []byte)
	// closed comes last, once, unless we closed the connection ourselves. err
	// is never nil.
	closed(err error)
}

type connState uint8

const (
	connDialing connState = iota
	connShaking
	connOpen
	connClosed
)

// maxOut bounds what waits to be written on one connection.
const maxOut = 4 << 20

var (
	errNotUTF8     = errors.New("the server sent a text message that is not UTF-8")
	errBinary      = errors.New("the server sent a binary message")
	errUnanswered  = errors.New("the server closed the connection without an answer")
	errClosedBare  = errors.New("the server closed the connection")
	errOutOverflow = errors.New("the server takes no more commands")
)

// closeError is a close frame of the server.
type closeError struct {
	code int
	text string
}

func (e *closeError) Error() string {
	return fmt.Sprintf("the server closed the connection (%d %s)", e.code, oneLine(e.text, 100))
}

// conn is one WebSocket of a client, or a bare connection over which frames
// come without a handshake.
type conn struct {
	loop  *Loop
	h     handler
	shake *handshake // nil: bare
	key   [24]byte
	state connState
	deaf  bool // nothing is read
	wants bool // to be told of room

	fd  int     // of the epoll poller
	gen uint32  // tells connections apart that had the same descriptor
	far *stream // of the other one

	in   []byte // incomplete input
	out  []byte // not written yet
	part []byte // of a fragmented message
	frag bool
	room func() // called when everything was written
}

// dial begins to connect. The error is about this machine; what becomes of the
// connection the handler is told.
func (l *Loop) dial(h handler, shake *handshake, from, to netip.AddrPort) (*conn, error) {
	c := &conn{loop: l, h: h, shake: shake, fd: -1}
	if err := l.poll.dial(c, from, to); err != nil {
		return nil, err
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// connected is called by the poller.
func (c *conn) connected() {
	if c.shake == nil {
		c.state = connOpen
		c.h.opened()
		return
	}
	c.state = connShaking
	var request []byte
	request, c.key = c.shake.request(nil)
	c.write(request)
}

// received is called by the poller with what was read, and nothing when the
// server has ended its side.
func (c *conn) received(b []byte) {
	c.loop.now = time.Now() // when what b holds was read
	if len(b) == 0 {
		switch {
		case c.state == connShaking && len(c.in) == 0:
			c.fail(errUnanswered)
		case len(c.in) > 0:
			c.fail(fmt.Errorf("%w in the middle of a frame", errClosedBare))
		default:
			c.fail(errClosedBare)
		}
		return
	}
	kept := len(c.in) > 0
	if kept {
		c.in = append(c.in, b...)
		b = c.in
	}
	rest, err := c.consume(b)
	if c.state == connClosed {
		return
	}
	if err != nil {
		c.fail(err)
		return
	}
	switch {
	case len(rest) == 0 && cap(c.in) > 4<<10:
		c.in = nil
	case kept:
		c.in = c.in[:copy(c.in, rest)]
	default:
		c.in = append(c.in[:0], rest...)
	}
}

// consume works through b and returns what is not complete yet.
func (c *conn) consume(b []byte) ([]byte, error) {
	if c.state == connShaking {
		n, err := c.shake.check(b, c.key)
		if err != nil || n == 0 {
			return b, err
		}
		b = b[n:]
		c.state = connOpen
		c.h.opened()
	}
	for c.state == connOpen && len(b) > 0 {
		f, n, need, err := parseFrame(b)
		if err != nil {
			return b, err
		}
		if n == 0 {
			if need > cap(c.in) && len(c.in) == 0 {
				c.in = make([]byte, 0, need)
			}
			break
		}
		b = b[n:]
		if err := c.frame(f); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (c *conn) frame(f wsFrame) error {
	switch f.op {
	case opText:
		switch {
		case c.frag:
			return errFrame
		case f.fin:
			return c.text(f.body)
		}
		c.frag, c.part = true, append(c.part[:0], f.body...)
	case opContinue:
		if !c.frag {
			return errFrame
		}
		if c.part = append(c.part, f.body...); len(c.part) > maxMessage {
			return errTooLarge
		}
		if f.fin {
			c.frag = false
			return c.text(c.part)
		}
	case opBinary:
		return errBinary
	case opPing:
		c.write(appendFrame(nil, opPong, f.body))
	case opClose:
		e := &closeError{code: 1005}
		if len(f.body) >= 2 {
			e.code, e.text = int(f.body[0])<<8|int(f.body[1]), string(f.body[2:])
		}
		c.write(appendFrame(nil, opClose, f.body))
		if c.state == connOpen {
			return e
		}
	}
	return nil
}

func (c *conn) text(b []byte) error {
	if !utf8.Valid(b) {
		return errNotUTF8
	}
	c.h.message(b)
	return nil
}

// send queues one text message. It is dropped when the connection is not open.
func (c *conn) send(text []byte) {
	if c.state == connOpen {
		c.write(appendFrame(nil, opText, text))
	}
}

// write writes b, or queues what there is no room for.
func (c *conn) write(b []byte) {
	if c.state == connClosed {
		return
	}
	if len(c.out) == 0 {
		n, err := c.loop.poll.write(c, b)
		if err != nil {
			c.fail(err)
			return
		}
		b = b[n:]
	}
	if len(b) == 0 {
		return
	}
	if len(c.out)+len(b) > maxOut {
		c.fail(errOutOverflow)
		return
	}
	c.out = append(c.out, b...)
	if !c.wants {
		c.wants = true
		c.loop.poll.interest(c, !c.deaf, true)
	}
}

// writable is called by the poller when there is room.
func (c *conn) writable() {
	if len(c.out) > 0 {
		n, err := c.loop.poll.write(c, c.out)
		if err != nil {
			c.fail(err)
			return
		}
		c.out = c.out[:copy(c.out, c.out[n:])]
	}
	if len(c.out) > 0 || c.state == connClosed {
		return
	}
	c.out, c.wants = nil, false
	c.loop.poll.interest(c, !c.deaf, false)
	if c.room != nil {
		c.room()
	}
}

// listen says whether the connection is read.
func (c *conn) listen(on bool) {
	if c.deaf == on && c.state != connClosed {
		c.deaf = !on
		c.loop.poll.interest(c, on, c.wants)
	}
}

// fail closes the connection and tells the handler why.
func (c *conn) fail(err error) {
	if c.state == connClosed {
		return
	}
	c.close()
	if errors.Is(err, io.EOF) {
		err = errClosedBare
	}
	c.h.closed(err)
}

// close closes the connection without a word to the handler.
func (c *conn) close() {
	if c.state == connClosed {
		return
	}
	c.state = connClosed
	delete(c.loop.conns, c)
	c.loop.poll.close(c)
	c.in, c.out, c.part, c.room = nil, nil, nil, nil
}

// goodbye says that we leave, as far as that takes no time, and closes.
func (c *conn) goodbye() {
	if c.state == connOpen && len(c.out) == 0 {
		_, _ = c.loop.poll.write(c, appendFrame(nil, opClose, []byte{3, 232})) // a courtesy
	}
	c.close()
}
