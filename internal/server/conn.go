package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/protocol"
)

var _ hub.Sink = (*conn)(nil)

// conn is one WebSocket connection.
//
// The socket is read by one goroutine, which also runs the session's commands,
// and written by another, which lives only while there is something to write.
// gorilla/websocket parses what comes in; what goes out never passes through
// it, because the frames of a broadcast are shared by all their receivers and
// need no more than a header each.
//
// A connection is open, then ending (what is queued is still written, nothing
// is added, the client's commands are ignored), then closed. Only the reading
// goroutine closes the socket for good; everybody else brings it to its end by
// a deadline.
type conn struct {
	srv   *Server
	id    string
	codec protocol.Codec
	ws    *websocket.Conn // reading only
	nc    net.Conn        // writing only
	sess  *session.Session
	slot  int // of the ping wheel
	seat  *seat

	ctx    context.Context // of the connection's commands; ends when the connection begins to end
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing more is written

	mu      sync.Mutex // guards what follows; never held across a write that may wait
	queue   [][]byte   // payloads of text frames
	bytes   int        // of queue, and of what the writer has taken from it but not written
	rooms   []func()   // to be called below the low-water mark
	ping    []byte     // an Action Cable ping to be written before the queue, or nil
	greeted bool       // the first of the queue, the welcome, has been taken; no ping before
	pong    []byte     // payload of a WebSocket pong to be written before the queue, or nil
	writing bool       // the writer runs; it clears this under mu before it goes
	ending  bool
	code    int       // ending: the close code to write at last, 0 for none
	hard    time.Time // ending: when the writer gives up
	shut    bool      // nothing more is written
}

// Push queues text frames; see hub.Sink. A connection that is ending takes
// everything and writes nothing of it: whoever pushes need not wait for it.
func (c *conn) Push(frames [][]byte) bool {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return true
	}
	if c.bytes > 0 && c.bytes+size > c.srv.opts.QueueBytes {
		return false
	}
	c.queue = append(c.queue, frames...)
	c.bytes += size
	c.wakeLocked()
	return true
}

// Room arranges for f to be called; see hub.Sink.
func (c *conn) Room(f func()) {
	c.mu.Lock()
	if !c.ending && c.bytes > c.lowWater() {
		c.rooms = append(c.rooms, f)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	go f()
}

func (c *conn) lowWater() int { return c.srv.opts.QueueBytes / 4 }

// Cut ends the connection without what is queued; see hub.Sink.
func (c *conn) Cut(reason protocol.DisconnectReason) {
	if !c.end(end{frame: c.codec.AppendDisconnect(nil, reason, true), code: closeCodes[reason], grace: cutGrace, drop: true}) {
		return
	}
	c.srv.metrics.cut(reason)
	c.srv.log.Info("connection cut", zap.String("conn", c.id), zap.String("reason", string(reason)))
}

// Ping has frame written before everything that waits, so that a client whose
// connection is slow still hears from the server. One ping waits at most.
func (c *conn) Ping(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	c.ping = frame
	c.wakeLocked()
}

// cutGrace is how long a client that is cut may take to receive the frame that
// says so; lingerTime how long a client may take to answer a close frame.
const (
	cutGrace   = 2 * time.Second
	lingerTime = 2 * time.Second
)

// end says how a connection ends.
type end struct {
	frame []byte // a last text frame, or nil
	code  int    // of the close frame; 0 sends none
	grace time.Duration
	drop  bool // what is queued is not written
}

// end begins the end of the connection, unless it has begun: false then.
func (c *conn) end(e end) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return false
	}
	c.ending = true
	c.cancel()
	c.code = e.code
	c.hard = time.Now().Add(e.grace)
	if e.drop {
		c.queue, c.ping = nil, nil
	}
	if e.frame != nil {
		c.queue = append(c.queue, e.frame)
	}
	for _, f := range c.rooms {
		go f()
	}
	c.rooms = nil
	_ = c.nc.SetWriteDeadline(c.hard)
	_ = c.nc.SetReadDeadline(c.hard.Add(lingerTime))
	c.wakeLocked()
	return true
}

func (c *conn) wakeLocked() {
	if !c.writing && !c.shut {
		c.writing = true
		c.srv.tasks.Go(c.write)
	}
}

// read is the connection's goroutine: it welcomes the client, runs its
// commands, and takes the connection down.
func (c *conn) read() {
	defer c.srv.remove(c)
	defer c.nc.Close()
	err := c.commands()
	c.sess.Close()
	if code := closeCode(err); code != 0 {
		c.end(end{code: code, grace: cutGrace, drop: !errors.Is(err, session.ErrMistakes)})
	} else {
		c.end(end{drop: true}) // the peer is gone: there is no time to write anything
	}
	var closed *websocket.CloseError
	if errors.As(err, &closed) {
		// The client wants nothing more. Stay until our close frame is out.
		c.forget()
		<-c.done
		return
	}
	// Let the client read what was written before the socket goes: closing it
	// with unread input would reset the connection, and what is still on its
	// way would be lost.
	_, _ = io.Copy(io.Discard, c.nc)
}

// commands runs the session until the client closes, breaks the protocol or is
// gone.
//
// A command is run in a goroutine of its own, one at a time. Decoding and
// subscribing need a stack several times as large as waiting does, and the
// stack of the goroutine that waits would keep that size for as long as the
// connection lives.
func (c *conn) commands() error {
	var buf []byte
	done := make(chan error)
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			return err
		}
		if kind != websocket.TextMessage {
			return errBinary
		}
		if buf, err = readInto(buf[:0], r); err != nil {
			return err
		}
		if !utf8.Valid(buf) {
			return errUTF8
		}
		if c.ctx.Err() != nil {
			continue // ending: wait for the client's close frame
		}
		c.srv.metrics.commands.Add(1)
		go func() { done <- c.sess.Handle(c.ctx, buf) }()
		if err := <-done; err != nil && c.ctx.Err() == nil {
			return err
		}
		buf = nil // a connection that says nothing keeps nothing
	}
}

// readInto appends all of r to buf.
func readInto(buf []byte, r io.Reader) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// forget drops what is queued, for a client that has said goodbye.
func (c *conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue, c.ping, c.pong = nil, nil, nil
}

// batchBytes is about how much is written at once. Smaller frames are copied
// together, so that a burst costs one system call.
const batchBytes = 16 << 10

var batchBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, batchBytes+64)
	return &b
}}

// write writes until nothing is left, then goes.
func (c *conn) write() {
	pooled := batchBuffers.Get().(*[]byte)
	defer batchBuffers.Put(pooled)
	var frames [][]byte
	for {
		var last bool
		buf := (*pooled)[:0]
		buf, frames, last = c.take(buf, frames[:0])
		if len(buf) == 0 && len(frames) == 0 && !last {
			return
		}
		size := 0
		ok := true
		for _, f := range frames {
			size += len(f)
			if len(buf) > 0 && len(buf)+len(f)+maxHeader > batchBytes {
				ok = ok && c.send(buf)
				buf = buf[:0]
			}
			buf = appendHeader(buf, websocket.TextMessage, len(f))
			if len(f) > batchBytes/2 {
				ok = ok && c.send(buf) && c.send(f)
				buf = buf[:0]
				continue
			}
			buf = append(buf, f...)
		}
		if last && c.code != 0 {
			buf = append(buf, closeFrame(c.code)...)
		}
		ok = ok && c.send(buf)
		c.srv.metrics.frames.Add(uint64(len(frames)))
		c.srv.metrics.bytes.Add(uint64(size))
		if !ok || last {
			c.finish(ok)
			return
		}
		c.wrote(size)
	}
}

// take moves what is to be written next: control frames and pings into buf,
// queued frames into frames, about batchBytes together but one frame at least.
// last says that the close frame comes after it. When there is nothing, the
// writer has ended and must go.
func (c *conn) take(buf []byte, frames [][]byte) ([]byte, [][]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pong != nil {
		buf = appendHeader(buf, websocket.PongMessage, len(c.pong))
		buf = append(buf, c.pong...)
		c.pong = nil
	}
	if c.ping != nil && c.greeted {
		buf = appendHeader(buf, websocket.TextMessage, len(c.ping))
		buf = append(buf, c.ping...)
		c.ping = nil
	}
	n, size := 0, 0
	for n < len(c.queue) && (n == 0 || size+len(c.queue[n]) <= batchBytes) {
		size += len(c.queue[n])
		n++
	}
	c.greeted = c.greeted || n > 0
	frames = append(frames, c.queue[:n]...)
	clear(c.queue[:n])
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil
	}
	last := c.ending && len(c.queue) == 0
	if len(buf) == 0 && n == 0 && !last {
		c.writing = false
	}
	return buf, frames, last
}

// wrote makes room for size bytes and calls those that wait for room.
func (c *conn) wrote(size int) {
	c.mu.Lock()
	c.bytes -= size
	var rooms []func()
	if c.bytes <= c.lowWater() {
		rooms, c.rooms = c.rooms, nil
	}
	c.mu.Unlock()
	for _, f := range rooms {
		f()
	}
}

// finish is the writer's end. After a clean one the client hears that nothing
// more will come and has a moment to close; otherwise the reader is stopped.
func (c *conn) finish(clean bool) {
	if tcp, ok := c.nc.(*net.TCPConn); ok && clean {
		_ = tcp.CloseWrite()
	}
	linger := time.Now()
	if clean && c.code != 0 {
		linger = linger.Add(lingerTime)
	}
	_ = c.nc.SetReadDeadline(linger)
	c.cancel()
	c.mu.Lock()
	c.ending, c.shut, c.writing = true, true, false
	c.queue, c.ping, c.pong = nil, nil, nil
	rooms := c.rooms
	c.rooms = nil
	c.mu.Unlock()
	close(c.done)
	for _, f := range rooms {
		f()
	}
}

// send writes all of b, or returns false when the client is gone or has taken
// nothing for the time a stall may last. A client that takes little by little
// is slow, not gone: the time begins anew with every byte the kernel accepts.
func (c *conn) send(b []byte) bool {
	for len(b) > 0 {
		c.setWriteDeadline()
		n, err := c.nc.Write(b)
		b = b[n:]
		if err == nil {
			continue
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return false
		}
		if n == 0 {
			c.Cut(protocol.DisconnectTooSlow) // a last chance, unless it has had it
		}
		if c.past() {
			return false
		}
	}
	return true
}

func (c *conn) setWriteDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := time.Now().Add(c.srv.opts.WriteStall)
	if c.ending && c.hard.Before(deadline) {
		deadline = c.hard
	}
	_ = c.nc.SetWriteDeadline(deadline)
}

// past says whether an ending connection has had its time.
func (c *conn) past() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending && !time.Now().Before(c.hard)
}

// control answers the control frames of the client. It is called by the
// reader, inside gorilla's NextReader.
func (c *conn) control() {
	c.ws.SetPingHandler(func(payload string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ending {
			c.pong = []byte(payload)
			c.wakeLocked()
		}
		return nil
	})
	c.ws.SetPongHandler(func(string) error { return nil })
	c.ws.SetCloseHandler(func(int, string) error { return nil })
}

// isProtocolError says whether err is gorilla's word for a frame that breaks
// the WebSocket protocol. It has no type of its own.
func isProtocolError(err error) bool {
	var network net.Error
	return err != nil && !errors.As(err, &network) && strings.HasPrefix(err.Error(), "websocket: ")
}

// maxHeader is the longest header of a frame from the server.
const maxHeader = 10

// appendHeader appends the header of one whole unmasked frame.
func appendHeader(dst []byte, kind, size int) []byte {
	dst = append(dst, 0x80|byte(kind))
	switch {
	case size < 126:
		return append(dst, byte(size))
	case size < 1<<16:
		return append(dst, 126, byte(size>>8), byte(size))
	}
	n := uint64(size)
	return append(dst, 127, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func closeFrame(code int) []byte {
	return append(appendHeader(nil, websocket.CloseMessage, 2), byte(code>>8), byte(code))
}
