package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// TestConn_IsASink holds the connection to what the hub relies on.
func TestConn_IsASink(t *testing.T) {
	hubtest.SinkSuite(t, func(t *testing.T) hubtest.Peer {
		srv, _, _, p, stop := pipeServer(t, func(o *Options) { o.PingEvery = time.Hour })
		c, end := p.dial(t, protocol.SubprotocolChronocast)
		eventually(t, "the connection is registered", func() bool { return srv.Connections() == 1 })
		t.Cleanup(func() {
			end.Close()
			stop()
		})
		return hubtest.Peer{Sink: srv.all()[0], Next: func() ([]byte, bool) {
			f, err := c.read()
			return f, err == nil
		}}
	})
}

// bubble plays a test in virtual time, over pipes.
func bubble(t *testing.T, change func(*Options), f func(t *testing.T, b *bubbled)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubbled{}
		var stop func()
		b.srv, b.log, b.publish, b.pipes, stop = bubbleServer(t, change)
		defer stop()
		f(t, b)
	})
}

type bubbled struct {
	srv     *Server
	log     *hubtest.Log
	publish func(stream string, data ...string)
	pipes   *pipes
}

func bubbleServer(t *testing.T, change func(*Options)) (*Server, *hubtest.Log, func(string, ...string), *pipes, func()) {
	srv, log, h, p, stop := pipeServer(t, change)
	return srv, log, func(stream string, data ...string) {
		h.Publish([]protocol.Batch{log.Append(stream, data...)})
	}, p, stop
}

// TestB128_PeerThatNeverReadsIsCut: it is told so, and is gone a moment after
// the time a stall may last.
func TestB128_PeerThatNeverReadsIsCut(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, end := b.pipes.dial(t, protocol.SubprotocolPlain)
		c.subscribe("a")
		b.publish("a", `"first"`)
		c.messages(1)
		began := time.Now()
		b.publish("a", `"never read"`)
		time.Sleep(10*time.Second - time.Millisecond)
		synctest.Wait()
		if n := b.srv.Connections(); n != 1 {
			t.Fatalf("cut after %v", time.Since(began))
		}
		time.Sleep(cutGrace + lingerTime + 2*time.Millisecond)
		synctest.Wait()
		if n := b.srv.Connections(); n != 0 {
			t.Fatalf("%d connections %v after the last byte was taken", n, time.Since(began))
		}
		end.Close()
	})
}

// TestB128_CutIsToldToAPeerThatReadsAgain: the peer reads within the grace,
// and learns the reason.
func TestB128_CutIsToldToAPeerThatReadsAgain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, _ := b.pipes.dial(t, protocol.SubprotocolPlain)
		c.subscribe("a")
		b.publish("a", `"`+strings.Repeat("x", 40<<10)+`"`)
		for i := range 50 {
			b.publish("a", fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 2<<10)))
		}
		time.Sleep(11 * time.Second)
		var last []byte
		for {
			f, err := c.read()
			if err != nil {
				var closed *websocket.CloseError
				if !errors.As(err, &closed) || closed.Code != websocket.CloseTryAgainLater {
					t.Fatalf("ended by %v", err)
				}
				break
			}
			last = f
		}
		if want := `{"type":"disconnect","reason":"too_slow","reconnect":true}`; string(last) != want {
			t.Fatalf("last frame %.200s, want %s", last, want)
		}
	})
}

// TestB131_SlowPeerIsNotCut: as long as it takes something, it may take its
// time, and it gets everything in order.
func TestB131_SlowPeerIsNotCut(t *testing.T) {
	bubble(t, func(o *Options) { o.QueueBytes = 64 << 10 }, func(t *testing.T, b *bubbled) {
		c, end := b.pipes.dial(t, protocol.SubprotocolPlain)
		c.subscribe("a")
		const n = 40
		for i := range n {
			b.publish("a", fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 20<<10)))
		}
		// 2 KiB every 9 s, just enough not to be taken for gone.
		if err := end.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		slow, _ := newFrames(bufio.NewReader(slowReader{end, 9 * time.Second}))
		var got []hubtest.Event
		for len(got) < n {
			f, err := slow()
			if err != nil {
				t.Fatalf("after %d messages: %v", len(got), err)
			}
			events, err := hubtest.Decode(f)
			if err != nil {
				t.Fatal(err)
			}
			if events[0].Type == "message" {
				got = append(got, events[0])
			}
		}
		ascending(t, 0, got)
		end.Close()
	})
}

// slowReader pauses before every read of at most 2 KiB.
type slowReader struct {
	r     io.Reader
	pause time.Duration
}

func (s slowReader) Read(b []byte) (int, error) {
	time.Sleep(s.pause)
	return s.r.Read(b[:min(len(b), 2<<10)])
}

// newFrames reads the frames of a server from r.
func newFrames(r io.Reader) (next func() ([]byte, error), closeCode func() int) {
	code := 0
	return func() ([]byte, error) {
		for {
			var h [10]byte
			if _, err := io.ReadFull(r, h[:2]); err != nil {
				return nil, err
			}
			size := int(h[1])
			switch size {
			case 126:
				if _, err := io.ReadFull(r, h[2:4]); err != nil {
					return nil, err
				}
				size = int(h[2])<<8 | int(h[3])
			case 127:
				if _, err := io.ReadFull(r, h[2:10]); err != nil {
					return nil, err
				}
				size = 0
				for _, b := range h[2:10] {
					size = size<<8 | int(b)
				}
			}
			body := make([]byte, size)
			if _, err := io.ReadFull(r, body); err != nil {
				return nil, err
			}
			switch h[0] {
			case 0x81:
				return body, nil
			case 0x88:
				code = int(body[0])<<8 | int(body[1])
				return nil, io.EOF
			case 0x8a:
			default:
				return nil, fmt.Errorf("frame begins with %#x", h[0])
			}
		}
	}, func() int { return code }
}

// TestB136_FullQueueLeavesNoHole: what does not fit is read from the log once
// there is room.
func TestB136_FullQueueLeavesNoHole(t *testing.T) {
	for _, subprotocol := range []string{protocol.SubprotocolPlain, protocol.SubprotocolExtended, protocol.SubprotocolChronocast} {
		t.Run(subprotocol, func(t *testing.T) {
			bubble(t, func(o *Options) { o.QueueBytes = 16 << 10 }, func(t *testing.T, b *bubbled) {
				c, _ := b.pipes.dial(t, subprotocol)
				c.subscribe("a")
				const n = 500
				for i := range n {
					b.publish("a", fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 500)))
					if i%100 == 0 {
						synctest.Wait()
					}
				}
				time.Sleep(5 * time.Second) // the peer takes its time, below the stall
				ascending(t, 0, c.messages(n))
				b.publish("a", `"after"`)
				ascending(t, n, c.messages(1))
			})
		})
	}
}

// TestConn_PingsOvertakeTheQueue: a stock client that hears no ping for six
// seconds gives up, however busily it is being written to.
func TestConn_PingsOvertakeTheQueue(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, _ := b.pipes.dial(t, protocol.SubprotocolPlain)
		c.subscribe("a")
		for range 30 {
			b.publish("a", `"`+strings.Repeat("x", 16<<10)+`"`)
		}
		time.Sleep(4 * time.Second)
		for i := range 4 {
			f, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.HasPrefix(f, []byte(`{"type":"ping"`)) {
				if i == 0 {
					t.Fatal("a ping was due before the peer stalled")
				}
				return
			}
		}
		t.Fatal("no ping among the first four frames of a long queue")
	})
}

// TestConn_PingsEveryInterval: B118 along with it, pings of stock clients carry
// no position that could be taken for one to resume from.
func TestConn_PingsEveryInterval(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, _ := b.pipes.dial(t, protocol.SubprotocolExtended)
		c.subscribe("a")
		b.publish("a", "1")
		c.messages(1)
		began := time.Now()
		for i := range 10 {
			f, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf(`{"type":"ping","message":%d}`, time.Now().Unix()); string(f) != want {
				t.Fatalf("frame %s, want %s", f, want)
			}
			if d := time.Since(began); d < time.Duration(i)*3*time.Second || d > time.Duration(i+1)*3*time.Second {
				t.Fatalf("ping %d after %v", i, d)
			}
		}
	})
}

// TestB37_PingTellsTheHead: with our own subprotocol the ping after a message
// says how far the stream was sent.
func TestB37_PingTellsTheHead(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, _ := b.pipes.dial(t, protocol.SubprotocolChronocast)
		c.subscribe("a")
		b.publish("a", "1", "2")
		c.messages(2)
		first, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if want := `"streams":{"a":{"epoch":"1700000000000000","offset":2}}}`; !bytes.HasSuffix(first, []byte(want)) {
			t.Errorf("ping %s, want the head of the stream", first)
		}
		second, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(second, []byte("streams")) {
			t.Errorf("ping %s tells what was told", second)
		}
	})
}

// TestConn_FloodIsNotRead: a client that asks without reading is not read
// either, and costs no more than its queue.
func TestConn_FloodIsNotRead(t *testing.T) {
	bubble(t, func(o *Options) { o.QueueBytes = 16 << 10 }, func(t *testing.T, b *bubbled) {
		c, end := b.pipes.dial(t, protocol.SubprotocolChronocast)
		refused := make(chan int, 1)
		go func() {
			for i := range 10_000 {
				_ = c.ws.SetWriteDeadline(time.Now().Add(time.Second))
				if err := c.ws.WriteMessage(websocket.TextMessage, []byte(command("jump", "a", ""))); err != nil {
					refused <- i
					return
				}
			}
			refused <- 10_000
		}()
		n := <-refused
		if n < 10 || n > 500 {
			t.Errorf("%d commands were read, want about as many as fill 16 KiB with answers", n)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if b.srv.Connections() != 0 {
			t.Error("the flooding connection is still there")
		}
		end.Close()
	})
}

// TestConn_CloseCodes: each fault of a client is told with its own code, and
// whatever the client does, the connection goes.
func TestConn_CloseCodes(t *testing.T) {
	masked := func(first byte, payload string) []byte { return rawFrame(first, true, payload) }
	tests := []struct {
		name  string
		bytes []byte
		code  int
	}{
		{"binary frame", masked(0x82, "{}"), websocket.CloseUnsupportedData},
		{"not UTF-8", masked(0x81, "\"\xff\""), websocket.CloseInvalidFramePayloadData},
		{"too large", masked(0x81, strings.Repeat("x", 65<<10)), websocket.CloseMessageTooBig},
		{"too large in fragments", append(masked(0x01, strings.Repeat("x", 40<<10)), masked(0x80, strings.Repeat("x", 40<<10))...), websocket.CloseMessageTooBig},
		{"unmasked", rawFrame(0x81, false, "{}"), websocket.CloseProtocolError},
		{"reserved bit", masked(0xc1, "{}"), websocket.CloseProtocolError},
		{"unknown opcode", masked(0x83, "{}"), websocket.CloseProtocolError},
		{"continuation of nothing", masked(0x80, "{}"), websocket.CloseProtocolError},
		{"fragmented ping", masked(0x09, "x"), websocket.CloseProtocolError},
		{"close with a code", masked(0x88, "\x03\xe9bye"), websocket.CloseGoingAway},
		{"close without a code", masked(0x88, ""), websocket.CloseNormalClosure},
		{"close with a code that is none", masked(0x88, "\x00\x01"), websocket.CloseProtocolError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, b *bubbled) {
				c, end := b.pipes.dial(t, protocol.SubprotocolChronocast)
				c.subscribe("a")
				go func() { _, _ = end.Write(tt.bytes) }()
				next, code := newFrames(end)
				var err error
				for err == nil {
					_, err = next()
				}
				if code() != tt.code {
					t.Errorf("close code %d (%v), want %d", code(), err, tt.code)
				}
				if rest, _ := io.ReadAll(end); len(rest) > 0 {
					t.Errorf("%q after the close frame: somebody else writes as well", rest)
				}
				synctest.Wait()
				time.Sleep(cutGrace + lingerTime)
				synctest.Wait()
				if b.srv.Connections() != 0 {
					t.Error("the connection is still there")
				}
				end.Close()
			})
		})
	}
}

// rawFrame builds a frame byte by byte, as no library would.
func rawFrame(first byte, mask bool, payload string) []byte {
	b := []byte{first}
	var m byte
	if mask {
		m = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, m|byte(n))
	case n < 1<<16:
		b = append(b, m|126, byte(n>>8), byte(n))
	default:
		b = append(b, m|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	if mask {
		b = append(b, 0, 0, 0, 0) // a mask of zeros leaves the payload as it is
	}
	return append(b, payload...)
}

// TestConn_AnswersPings: WebSocket pings of the client, also in the middle of
// what it is being sent.
func TestConn_AnswersPings(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		c, _ := b.pipes.dial(t, protocol.SubprotocolPlain)
		c.subscribe("a")
		pong := make(chan string, 1)
		c.ws.SetPongHandler(func(s string) error { pong <- s; return nil })
		if err := c.ws.WriteControl(websocket.PingMessage, []byte("hello"), time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.publish("a", "1")
		c.messages(1)
		select {
		case s := <-pong:
			if s != "hello" {
				t.Errorf("pong %q", s)
			}
		default:
			t.Error("no pong before the message")
		}
	})
}

// TestConn_VanishedPeer: the other end is gone without a word, while idle and
// while much is queued.
func TestConn_VanishedPeer(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *bubbled) {
		for _, queued := range []int{0, 1, 100} {
			c, end := b.pipes.dial(t, protocol.SubprotocolPlain)
			c.subscribe("a")
			for range queued {
				b.publish("a", `"`+strings.Repeat("x", 4<<10)+`"`)
			}
			synctest.Wait()
			end.Close()
			synctest.Wait()
			if n := b.srv.Connections(); n != 0 {
				t.Errorf("%d connections after the peer vanished with %d messages queued", n, queued)
			}
		}
		if n := b.log.Reads("range"); n > 10 {
			t.Errorf("%d reads of the log for peers that are gone", n)
		}
	})
}

// TestB79_StopTellsEverybodyToComeBack: what is queued is written, then the
// disconnect, then close code 1012, and a client that does not read cannot
// hold the server up.
func TestB79_StopTellsEverybodyToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, publish, p, stop := bubbleServer(t, nil)
		var healthy []*cable
		for _, s := range []string{protocol.SubprotocolPlain, protocol.SubprotocolExtended, protocol.SubprotocolChronocast} {
			c, _ := p.dial(t, s)
			c.subscribe("a")
			healthy = append(healthy, c)
		}
		stuck, stuckEnd := p.dial(t, protocol.SubprotocolPlain)
		stuck.subscribe("a")
		publish("a", `"`+strings.Repeat("x", 20<<10)+`"`) // being written
		publish("a", `"last words"`)                      // waiting behind it
		synctest.Wait()
		began := time.Now()
		stopped := make(chan struct{})
		go func() {
			stop()
			close(stopped)
		}()
		for _, c := range healthy {
			ascending(t, 0, c.messages(2))
			if f := string(c.raw()); f != `{"type":"disconnect","reason":"server_restart","reconnect":true}` {
				t.Errorf("frame %s after the last message", f)
			}
			if code := c.closeCodeOf(); code != websocket.CloseServiceRestart {
				t.Errorf("close code %d", code)
			}
		}
		<-stopped
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("stopping took %v, with one client that does not read", d)
		}
		stuckEnd.Close()
	})
}
