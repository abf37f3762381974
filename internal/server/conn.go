package server

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/internal/socket"
	"github.com/chronocast/chronocast/protocol"
)

var (
	_ hub.Sink       = (*conn)(nil)
	_ socket.Handler = (*conn)(nil)
)

// conn is one WebSocket connection: a socket, and the session of whoever is at
// its other end.
type conn struct {
	srv   *Server
	codec protocol.Codec
	sock  socket.Conn
	sess  session.Session
	id    string
	seat  *seat

	// Where it is in the ping wheel; guarded by Server.mu.
	slot, index int32
}

// Push queues text frames; see hub.Sink. A connection that is ending takes
// everything and writes nothing of it: whoever pushes need not wait for it.
func (c *conn) Push(frames [][]byte) bool { return c.sock.Push(frames) }

// Room arranges for f to be called; see hub.Sink.
func (c *conn) Room(f func()) { c.sock.Room(f) }

// Cut ends the connection without what is queued; see hub.Sink.
func (c *conn) Cut(reason protocol.DisconnectReason) {
	if !c.sock.End(socket.End{Frame: c.disconnect(reason), Code: closeCodes[reason], Grace: cutGrace, Drop: true}) {
		return
	}
	c.srv.metrics.cut(reason)
	c.srv.log.Info("connection cut", zap.String("conn", c.id), zap.String("reason", string(reason)))
}

// cutGrace is how long a client that is cut may take to receive the frame that
// says so; lingerTime how long a client that is refused may take to read why,
// and how much earlier than the server connections have to be at their end.
const (
	cutGrace   = 2 * time.Second
	lingerTime = 2 * time.Second
)

func (c *conn) disconnect(reason protocol.DisconnectReason) []byte {
	return protocol.AppendTextFrame(nil, c.codec.AppendDisconnect(nil, reason, true))
}

// restart ends a connection because the server does.
func (c *conn) restart(deadline time.Time) {
	const reason = protocol.DisconnectServerRestart
	c.sock.End(socket.End{
		Frame: c.disconnect(reason),
		Code:  closeCodes[reason],
		Grace: max(0, time.Until(deadline)-lingerTime),
	})
}

// Message runs a command; see socket.Handler.
func (c *conn) Message(ctx context.Context, text []byte) {
	c.srv.metrics.commands.Add(1)
	if err := c.sess.Handle(ctx, text); errors.Is(err, session.ErrMistakes) {
		c.sock.End(socket.End{Code: closeCodes[session.DisconnectInvalidRequest], Grace: cutGrace})
	}
}

// Stalled cuts a client that takes nothing; see socket.Handler.
func (c *conn) Stalled() { c.Cut(protocol.DisconnectTooSlow) }

// Ended takes the connection down; see socket.Handler.
func (c *conn) Ended() {
	c.sess.Close()
	c.srv.remove(c)
}
