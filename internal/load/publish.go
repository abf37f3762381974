package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Ways to publish.
const (
	PublishAPI       = "api"       // POST /streams/{stream}/messages
	PublishBroadcast = "broadcast" // POST /broadcast, many in one body
	PublishAnyCable  = "anycable"  // POST /_broadcast, one in a body
	PublishPerform   = "perform"   // an Action Cable message command
)

// post is one message on its way to the server.
type post struct {
	stream  string
	payload []byte
	done    func(error) // may be nil; called from another goroutine
}

// publisher publishes over HTTP, on a number of keep-alive connections. What
// is given to one connection is published in the order it was given: a lane
// sticks to its connection.
type publisher struct {
	conns []*publisherConn
}

// publisherOptions are what all connections of a publisher share.
type publisherOptions struct {
	way      string
	base     *url.URL // scheme and host, and the path of a broadcast endpoint
	addr     netip.AddrPort
	key      string
	depth    int // requests under way on one connection
	batch    int // messages in one body of PublishBroadcast
	timeout  time.Duration
	insecure bool
}

// maxWaiting bounds what waits to be published on one connection.
const maxWaiting = 200_000

var errBacklog = errors.New("the server takes messages more slowly than they are due")

func newPublisher(n int, o publisherOptions) *publisher {
	p := &publisher{}
	for range n {
		p.conns = append(p.conns, &publisherConn{o: o, ready: make(chan struct{}, 1)})
	}
	return p
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	var g sync.WaitGroup
	for _, c := range p.conns {
		g.Go(func() { c.run(ctx) })
	}
	g.Wait()
}

// publish queues a message on the connection of its lane.
func (p *publisher) publish(lane int, m post) { p.conns[lane%len(p.conns)].publish(m) }

// publisherFigures are what a publisher has counted.
type publisherFigures struct {
	acked, failed uint64
	lastError     error
}

// figures returns what was counted so far.
func (p *publisher) figures() (f publisherFigures) {
	for _, c := range p.conns {
		c.mu.Lock()
		f.acked += c.acked
		f.failed += c.failed
		if c.lastError != nil {
			f.lastError = c.lastError
		}
		c.mu.Unlock()
	}
	return f
}

// settled reports whether everything given to it has been answered.
func (p *publisher) settled() bool {
	for _, c := range p.conns {
		c.mu.Lock()
		busy := len(c.waiting) > 0 || c.flying > 0
		c.mu.Unlock()
		if busy {
			return false
		}
	}
	return true
}

type publisherConn struct {
	o     publisherOptions
	ready chan struct{}

	mu        sync.Mutex // guards what follows
	waiting   []post
	flying    int
	acked     uint64
	failed    uint64
	lastError error
	down      error // set when the connection ended for good
}

func (c *publisherConn) publish(m post) {
	c.mu.Lock()
	var err error
	switch {
	case c.down != nil:
		err = c.down
	case len(c.waiting) >= maxWaiting:
		err = errBacklog
	default:
		c.waiting = append(c.waiting, m)
	}
	if err != nil {
		c.failed++
		c.lastError = err
	}
	c.mu.Unlock()
	if err != nil {
		if m.done != nil {
			m.done(err)
		}
		return
	}
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// take returns the next requests' messages, at most n.
func (c *publisherConn) take(n int) []post {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, len(c.waiting))
	taken := c.waiting[:n:n]
	if c.waiting = c.waiting[n:]; len(c.waiting) == 0 {
		c.waiting = nil
	}
	c.flying += n
	return taken
}

func (c *publisherConn) settle(posts []post, err error) {
	c.mu.Lock()
	c.flying -= len(posts)
	if err == nil {
		c.acked += uint64(len(posts))
	} else {
		c.failed += uint64(len(posts))
		c.lastError = err
	}
	c.mu.Unlock()
	for _, m := range posts {
		if m.done != nil {
			m.done(err)
		}
	}
}

// run sends what waits. A message that fails is not repeated: what the server
// made of it is unknown, and a repeat could double it.
func (c *publisherConn) run(ctx context.Context) {
	var nc net.Conn
	var br *bufio.Reader
	var buf []byte
	defer func() {
		if nc != nil {
			_ = nc.Close()
		}
	}()
	for {
		posts := c.take(c.perTurn())
		if len(posts) == 0 {
			select {
			case <-c.ready:
				continue
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			c.settle(posts, ctx.Err())
			continue
		}
		if nc == nil {
			var err error
			if nc, err = c.dial(ctx); err != nil {
				c.settle(posts, fmt.Errorf("publish: %w", err))
				continue
			}
			br = bufio.NewReaderSize(nc, 16<<10)
		}
		var sizes []int
		buf, sizes = c.requests(buf[:0], posts)
		keep, err := c.exchange(nc, br, buf, posts, sizes)
		if err != nil || !keep {
			_ = nc.Close()
			nc = nil
		}
	}
}

func (c *publisherConn) perTurn() int {
	if c.o.way == PublishBroadcast {
		return c.o.batch
	}
	return c.o.depth
}

func (c *publisherConn) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: c.o.timeout}
	nc, err := d.DialContext(ctx, "tcp", c.o.addr.String())
	if err != nil || c.o.base.Scheme != "https" {
		return nc, err
	}
	secure := tls.Client(nc, &tls.Config{ServerName: c.o.base.Hostname(), InsecureSkipVerify: c.o.insecure})
	_ = secure.SetDeadline(time.Now().Add(c.o.timeout))
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return secure, nil
}

// requests appends the requests for posts, and returns how many posts each
// request holds.
func (c *publisherConn) requests(b []byte, posts []post) ([]byte, []int) {
	if c.o.way == PublishBroadcast && len(posts) > 1 {
		body := []byte{'['}
		for i, m := range posts {
			if i > 0 {
				body = append(body, ',')
			}
			body = appendBroadcast(body, m)
		}
		return c.request(b, c.o.base.EscapedPath(), append(body, ']')), []int{len(posts)}
	}
	sizes := make([]int, len(posts))
	for i, m := range posts {
		sizes[i] = 1
		if c.o.way == PublishAPI {
			b = c.request(b, strings.TrimRight(c.o.base.EscapedPath(), "/")+"/streams/"+url.PathEscape(m.stream)+"/messages", m.payload)
		} else {
			b = c.request(b, c.o.base.EscapedPath(), appendBroadcast(nil, m))
		}
	}
	return b, sizes
}

func appendBroadcast(b []byte, m post) []byte {
	b = append(append(b, `{"stream":`...), quote(m.stream)...)
	b = append(append(b, `,"data":`...), quote(string(m.payload))...)
	return append(b, '}')
}

func (c *publisherConn) request(b []byte, path string, body []byte) []byte {
	b = append(append(b, "POST "...), path...)
	b = append(append(b, " HTTP/1.1\r\nHost: "...), c.o.base.Host...)
	if c.o.key != "" {
		b = append(append(b, "\r\nAuthorization: Bearer "...), c.o.key...)
	}
	b = append(b, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, body...)
}

// exchange writes the requests while it reads their answers: a server may stop
// reading before it has answered what it has. keep: the connection can be used
// again.
func (c *publisherConn) exchange(nc net.Conn, br *bufio.Reader, requests []byte, posts []post, sizes []int) (keep bool, err error) {
	_ = nc.SetDeadline(time.Now().Add(c.o.timeout))
	written := make(chan error, 1)
	if len(requests) <= 32<<10 {
		_, err := nc.Write(requests)
		written <- err
	} else {
		go func() {
			_, err := nc.Write(requests)
			written <- err
		}()
	}
	keep = true
	at := 0
	for _, n := range sizes {
		var answer error
		if keep {
			keep, answer, err = readAnswer(br)
			if err != nil {
				keep = false
				answer = fmt.Errorf("publish: %w", err)
			}
		} else if err != nil {
			answer = fmt.Errorf("publish: %w", err)
		} else {
			answer = errors.New("publish: the server closed the connection before it answered")
		}
		c.settle(posts[at:at+n], answer)
		at += n
	}
	if err != nil {
		_ = nc.Close() // so that the writer comes back
	}
	if werr := <-written; err == nil {
		err = werr
	}
	return keep, err
}

// maxAnswer bounds the body of an answer that is read over.
const maxAnswer = 16 << 20

// readAnswer reads one HTTP answer. refused is what a status that is no success
// means; err is about the connection.
func readAnswer(br *bufio.Reader) (keep bool, refused, err error) {
	line, err := readLine(br)
	if err != nil {
		return false, nil, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if err != nil || !strings.HasPrefix(version, "HTTP/1.") {
		return false, nil, errors.New("the server did not answer in HTTP")
	}
	keep = version == "HTTP/1.1"
	length, chunked := int64(-1), false
	for n := 0; ; n++ {
		h, err := readLine(br)
		if err != nil {
			return false, nil, err
		}
		if h == "" {
			break
		}
		if n > 200 {
			return false, nil, errors.New("the server's answer has too many headers")
		}
		name, value, _ := strings.Cut(h, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.ParseInt(value, 10, 64); err != nil || length < 0 || length > maxAnswer {
				return false, nil, errors.New("the server's answer has a Content-Length that makes no sense")
			}
		case "transfer-encoding":
			chunked = strings.EqualFold(value, "chunked")
		case "connection":
			keep = keep && !strings.EqualFold(value, "close")
		}
	}
	body, err := readBody(br, status, length, chunked)
	if err != nil {
		return false, nil, err
	}
	if length < 0 && !chunked && status != 204 {
		keep = false
	}
	if status < 200 || status > 299 {
		refused = fmt.Errorf("publish: the server answered %d: %s", status, oneLine(string(body), 160))
	}
	return keep, refused, nil
}

// readBody reads over a body and returns its beginning.
func readBody(br *bufio.Reader, status int, length int64, chunked bool) ([]byte, error) {
	var head bytes.Buffer
	keepHead := func(n int64) error {
		k := min(n, int64(1024-min(head.Len(), 1024)))
		if _, err := io.CopyN(&head, br, k); err != nil {
			return err
		}
		_, err := io.CopyN(io.Discard, br, n-k)
		return err
	}
	switch {
	case status == 204 || status == 304:
	case chunked:
		for total := int64(0); ; {
			line, err := readLine(br)
			if err != nil {
				return nil, err
			}
			size, _, _ := strings.Cut(line, ";")
			n, err := strconv.ParseInt(strings.TrimSpace(size), 16, 64)
			if total += n; err != nil || n < 0 || total > maxAnswer {
				return nil, errors.New("the server's answer is badly chunked")
			}
			if n > 0 {
				if err := keepHead(n); err != nil {
					return nil, err
				}
			}
			if line, err = readLine(br); err != nil || line != "" {
				return nil, errors.Join(errors.New("the server's answer is badly chunked"), err)
			}
			if n == 0 {
				return head.Bytes(), nil
			}
		}
	case length > 0:
		if err := keepHead(length); err != nil {
			return nil, err
		}
	case length < 0:
		if _, err := io.Copy(&head, io.LimitReader(br, 1024)); err != nil {
			return nil, err
		}
	}
	return head.Bytes(), nil
}

func readLine(br *bufio.Reader) (string, error) {
	line, err := br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", errors.New("the server's answer has a line without end")
	case errors.Is(err, io.EOF):
		return "", errors.New("the server closed the connection without an answer")
	case err != nil:
		return "", err
	}
	return string(bytes.TrimRight(line, "\r\n")), nil
}
