package hubtest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/protocol"
)

// Peer is a sink together with the other end of its connection.
type Peer struct {
	Sink hub.Sink
	// Next reads the text of the next frame, waiting for it within reason; ok is
	// false when the connection has ended. The peer reads only here: as long
	// as Next is not called, what is pushed backs up in the sink's queue.
	Next func() (frame []byte, ok bool)
}

// suitePatience bounds each wait for another goroutine.
const suitePatience = 10 * time.Second

// SinkSuite is what the hub relies on in a sink. open returns a new connection
// with nothing queued; it registers its own cleanup.
func SinkSuite(t *testing.T, open func(t *testing.T) Peer) {
	t.Run("frames come out whole and in order", func(t *testing.T) {
		p := open(t)
		push(t, p.Sink, "a", "b")
		push(t, p.Sink, "c")
		expect(t, p, "a", "b", "c")
	})
	t.Run("one element may hold several frames", func(t *testing.T) {
		p := open(t)
		large := string(bytes.Repeat([]byte("x"), 70_000))
		run := bytes.Join([][]byte{wire("a"), wire(large), wire("b")}, nil)
		if !p.Sink.Push([][]byte{run, wire("c")}) || !p.Sink.Push([][]byte{run}) {
			t.Fatal("no room")
		}
		expect(t, p, "a", large, "b", "c", "a", large, "b")
	})
	t.Run("a push is taken whole or not at all", func(t *testing.T) {
		p := open(t)
		pushed := fill(t, p.Sink)
		for i := range pushed {
			for j := range frameCount {
				expect(t, p, fillFrame(i, j))
			}
		}
		push(t, p.Sink, "after")
		expect(t, p, "after")
	})
	t.Run("a push on an empty queue always succeeds", func(t *testing.T) {
		p := open(t)
		large := string(bytes.Repeat([]byte("x"), 4<<20))
		push(t, p.Sink, large, "and one")
		expect(t, p, large, "and one")
		push(t, p.Sink, large)
		expect(t, p, large)
	})
	t.Run("room at once", func(t *testing.T) {
		p := open(t)
		returned, called := make(chan struct{}), make(chan bool, 2)
		p.Sink.Room(func() {
			select {
			case <-returned:
				called <- p.Sink.Push([][]byte{wire("room")})
			case <-time.After(suitePatience):
				called <- false
			}
		})
		close(returned)
		if !<-called {
			t.Fatal("Room called f itself, or without there being room")
		}
		expect(t, p, "room")
	})
	t.Run("room once, when the queue has drained", func(t *testing.T) {
		p := open(t)
		pushed := fill(t, p.Sink)
		var calls atomic.Int32
		called := make(chan struct{}, 16)
		p.Sink.Room(func() { calls.Add(1); called <- struct{}{} })
		if calls.Load() != 0 {
			t.Fatal("Room called f while the queue is full")
		}
		for range pushed * frameCount {
			if _, ok := p.Next(); !ok {
				t.Fatal("connection ended")
			}
		}
		wait(t, called)
		pushed = fill(t, p.Sink)
		for range pushed * frameCount {
			if _, ok := p.Next(); !ok {
				t.Fatal("connection ended")
			}
		}
		if n := calls.Load(); n != 1 {
			t.Fatalf("Room called f %d times, want once", n)
		}
	})
	t.Run("concurrent pushes keep each caller's order", func(t *testing.T) {
		p := open(t)
		const callers, each = 4, 50
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					for !p.Sink.Push([][]byte{wire(fmt.Sprintf("%d %d a", c, i)), wire(fmt.Sprintf("%d %d b", c, i))}) {
						room := make(chan struct{})
						p.Sink.Room(func() { close(room) })
						<-room
					}
				}
			})
		}
		next := make([]int, callers)
		for range callers * each {
			var c, i int
			a, _ := p.Next()
			if _, err := fmt.Sscanf(string(a), "%d %d a", &c, &i); err != nil {
				t.Fatalf("frame %q: %v", a, err)
			}
			if next[c] != i {
				t.Fatalf("caller %d: push %d came when %d was due", c, i, next[c])
			}
			next[c]++
			expect(t, p, fmt.Sprintf("%d %d b", c, i))
		}
		wg.Wait()
	})
	t.Run("cut drops the queue and tells why", func(t *testing.T) {
		p := open(t)
		pushed := fill(t, p.Sink)
		p.Sink.Cut(protocol.DisconnectTooSlow)
		p.Sink.Cut(protocol.DisconnectServerRestart)
		p.Sink.Push([][]byte{wire("too late")})
		var last []byte
		n := 0
		for {
			f, ok := p.Next()
			if !ok {
				break
			}
			last = f
			n++
		}
		if n > pushed*frameCount {
			t.Errorf("%d frames came after a cut, nothing was dropped", n)
		}
		events, err := Decode(last)
		if err != nil {
			t.Fatal(err)
		}
		if events[0].Type != "disconnect" || events[0].Reason != string(protocol.DisconnectTooSlow) {
			t.Fatalf("last frame %.200q, want a disconnect for too_slow", last)
		}
	})
}

// wire makes a text ready to be pushed.
func wire(text string) []byte { return protocol.AppendTextFrame(nil, []byte(text)) }

const (
	frameCount = 3
	frameBytes = 16 << 10
	mostPushes = 64 << 20 / (frameCount * frameBytes)
)

func fillFrame(i, j int) string {
	return fmt.Sprintf("%d/%d %s", i, j, bytes.Repeat([]byte("f"), frameBytes))
}

// fill pushes until there is no room, and returns how many pushes were taken.
func fill(t *testing.T, s hub.Sink) int {
	t.Helper()
	for i := range mostPushes {
		frames := make([][]byte, frameCount)
		for j := range frames {
			frames[j] = wire(fillFrame(i, j))
		}
		if !s.Push(frames) {
			return i
		}
	}
	t.Fatal("the queue has no bound")
	return 0
}

func push(t *testing.T, s hub.Sink, frames ...string) {
	t.Helper()
	list := make([][]byte, len(frames))
	for i, f := range frames {
		list[i] = wire(f)
	}
	if !s.Push(list) {
		t.Fatalf("no room for %.40q", frames)
	}
}

func expect(t *testing.T, p Peer, frames ...string) {
	t.Helper()
	for _, want := range frames {
		got, ok := p.Next()
		if !ok {
			t.Fatalf("connection ended, want %.40q", want)
		}
		if string(got) != want {
			t.Fatalf("frame %.40q (%d bytes), want %.40q (%d bytes)", got, len(got), want, len(want))
		}
	}
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(suitePatience):
		t.Fatal("f was not called")
	}
}
