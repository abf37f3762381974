package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/protocol"
)

const (
	// staleAfter is the longest silence of a healthy server, which pings every
	// 3 seconds.
	staleAfter = 10 * time.Second
	// writeTimeout bounds one command.
	writeTimeout = 5 * time.Second
	// maxFrameBytes bounds one frame from the server.
	maxFrameBytes = 64 << 20
)

// dialer opens WebSocket connections to one server.
type dialer struct {
	ws    *websocket.Dialer
	url   string
	host  string
	stale time.Duration

	authorization string // the header of that name, or ""
}

func newDialer(base *url.URL, timeout time.Duration) dialer {
	u := *base
	u.Scheme = map[string]string{"http": "ws", "https": "wss"}[base.Scheme]
	u.Path += "/cable"
	if u.RawPath != "" {
		u.RawPath += "/cable"
	}
	return dialer{
		ws: &websocket.Dialer{
			Proxy:            http.ProxyFromEnvironment,
			HandshakeTimeout: timeout,
			ReadBufferSize:   64 << 10,
			Subprotocols:     []string{protocol.SubprotocolChronocast},
		},
		url:   u.String(),
		host:  base.Host,
		stale: staleAfter,
	}
}

// open connects. The error is final when connecting again would not help.
func (d dialer) open(ctx context.Context) (*connection, error) {
	header := http.Header{"User-Agent": {"chronocast-cli"}}
	setAuthorization(header, d.authorization)
	ws, resp, err := d.ws.DialContext(ctx, d.url, header)
	if err != nil && resp != nil && errors.Is(err, websocket.ErrBadHandshake) {
		body, _ := io.ReadAll(resp.Body) // gorilla has kept the first kilobyte
		refused := readServerError(resp.StatusCode, resp.Header, body)
		if !refused.mayPass() {
			return nil, &finalError{refused}
		}
		return nil, refused
	}
	if err != nil {
		err = fmt.Errorf("no connection to %s: %w", d.host, plainly(err))
		if !worthRepeating(err) {
			return nil, &finalError{err}
		}
		return nil, err
	}
	if ws.Subprotocol() != protocol.SubprotocolChronocast {
		_ = ws.Close() // nothing was said on it
		return nil, final("%s does not speak %s; is --server right?", d.host, protocol.SubprotocolChronocast)
	}
	ws.SetReadLimit(maxFrameBytes)
	return &connection{ws: ws, stale: d.stale}, nil
}

// connection is one WebSocket. read and write belong to one goroutine; close
// may be called by any, any number of times.
type connection struct {
	ws     *websocket.Conn
	stale  time.Duration
	closed sync.Once
}

// read returns the next frame. The read deadline begins anew with each call,
// so the time spent on printing does not count as the server's silence.
func (c *connection) read() (*frame, error) {
	if err := c.ws.SetReadDeadline(time.Now().Add(c.stale)); err != nil {
		return nil, fmt.Errorf("connection lost: %w", err)
	}
	kind, text, err := c.ws.ReadMessage()
	var timeout interface{ Timeout() bool }
	var closed *websocket.CloseError
	switch {
	case errors.Is(err, websocket.ErrReadLimit):
		return nil, final("the server sent a frame of more than %d bytes", maxFrameBytes)
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, fmt.Errorf("connection lost: nothing heard for %v", c.stale)
	case errors.As(err, &closed):
		return nil, fmt.Errorf("connection closed (%d %s)", closed.Code, clean(closed.Text))
	case err != nil:
		return nil, fmt.Errorf("connection lost: %w", err)
	case kind != websocket.TextMessage:
		return nil, errors.New("the server sent a binary frame")
	}
	f := &frame{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, errors.New("the server sent a frame that is not JSON")
	}
	return f, nil
}

func (c *connection) write(command clientCommand) error {
	text, err := json.Marshal(command)
	if err != nil {
		return final("encode the command: %w", err)
	}
	if err := c.ws.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("connection lost: %w", err)
	}
	if err := c.ws.WriteMessage(websocket.TextMessage, text); err != nil {
		return fmt.Errorf("connection lost: %w", err)
	}
	return nil
}

// close says goodbye when that takes no time, and closes.
func (c *connection) close() {
	c.closed.Do(func() {
		goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		_ = c.ws.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(200*time.Millisecond)) // a courtesy
		_ = c.ws.Close()                                                                             // nothing more can be done
	})
}
