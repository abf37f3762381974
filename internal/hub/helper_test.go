package hub_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

const (
	life   = protocol.Epoch(1_796_061_414_123_456)
	roomy  = 1 << 30
	chat   = "chat/42"
	idChat = `{"channel":"$pubsub","stream_name":"chat/42"}`
)

var doneFrame = wire(`{"type":"confirm_history","identifier":"done"}`)

// wire makes a text ready to be pushed.
func wire(text string) []byte { return protocol.AppendTextFrame(nil, []byte(text)) }

var ours, extended, plain = protocol.SubprotocolChronocast, protocol.SubprotocolExtended, protocol.SubprotocolPlain

// world is a hub that runs, and the log it reads.
type world struct {
	*testing.T
	log *hubtest.Log
	hub *hub.Hub
}

// start runs a hub until the test ends.
func start(t *testing.T, log *hubtest.Log, opts hub.Options) *world {
	t.Helper()
	w := &world{T: t, log: log, hub: hub.New(log, opts)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := w.hub.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return w
}

// bubble runs a test in fake time, with a hub that runs.
func bubble(t *testing.T, opts hub.Options, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, start(t, hubtest.NewLog(life), opts)) })
}

// publish commits n messages and hands them to the hub.
func (w *world) publish(stream string, n int) {
	w.hub.Publish([]protocol.Batch{w.log.AppendN(stream, n)})
}

// client is a subscription, and what came out of it.
type client struct {
	*world
	sink  *hubtest.Sink
	sub   *hub.Subscription
	span  protocol.Span // as Subscribe returned it
	asked int           // replays
	seen
}

// seen checks what a client reads: its messages follow one another.
type seen struct {
	mu       sync.Mutex // guards what follows
	stream   string
	at       protocol.Position   // newest message
	rewound  []protocol.Position // where the wire may go back to
	got      []hubtest.Event
	messages int
	wrong    error
}

func (s *seen) frame(frame []byte) {
	events, err := hubtest.Decode(frame)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.wrong = err
		return
	}
	for _, e := range events {
		s.eventLocked(e)
	}
}

func (s *seen) eventLocked(e hubtest.Event) {
	s.got = append(s.got, e)
	switch e.Type {
	case "reset", "reject_history":
		s.at = e.Position
		return
	case "message":
	default:
		return
	}
	s.messages++
	if e.Position != s.dueLocked() {
		for i, p := range s.rewound {
			if e.Position.Offset == p.Offset+1 && e.Position.Epoch == p.Epoch {
				s.at = p
				s.rewound = s.rewound[i+1:]
				break
			}
		}
	}
	if want := s.dueLocked(); s.wrong == nil && e.Position != want {
		s.wrong = fmt.Errorf("%s: message %v came when %v was due", s.stream, e.Position, want)
	}
	if payload := hubtest.Payload(s.stream, e.Position.Offset); s.wrong == nil && e.Data != payload {
		s.wrong = fmt.Errorf("%s: message %v is %.60q", s.stream, e.Position, e.Data)
	}
	s.at = e.Position
}

func (s *seen) dueLocked() protocol.Position {
	return protocol.Position{Epoch: s.at.Epoch, Offset: s.at.Offset + 1}
}

// position returns how far the client has come, or what went wrong.
func (s *seen) position() (protocol.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.wrong
}

// take returns what came since the last take.
func (s *seen) take() []hubtest.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

// join subscribes; the client holds.
func (w *world) join(stream string, codec protocol.Codec, bound int) *client {
	w.Helper()
	c, err := w.tryJoin(context.Background(), stream, codec, bound)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func (w *world) tryJoin(ctx context.Context, stream string, codec protocol.Codec, bound int) (*client, error) {
	c := &client{world: w, sink: hubtest.NewSink(bound)}
	c.stream = stream
	id := fmt.Sprintf(`{"channel":"$pubsub","stream_name":%q}`, stream)
	sub, span, err := w.hub.Subscribe(ctx, stream, protocol.NewAddress(id, stream), codec, c.sink)
	if err != nil {
		return nil, err
	}
	c.sub, c.span, c.at = sub, span, span.Head()
	c.sink.Watch(c.frame)
	return c, nil
}

// live subscribes and goes live.
func (w *world) live(stream, subprotocol string) *client {
	w.Helper()
	c := w.join(stream, hubtest.NewCodec(subprotocol), roomy)
	c.sub.Live()
	return c
}

// replay asks for what follows the offset.
func (c *client) replay(after uint64) (protocol.Span, protocol.Reason) {
	c.Helper()
	p := protocol.Position{Epoch: c.span.Epoch, Offset: after}
	c.mu.Lock()
	c.rewound = append(c.rewound, p)
	c.mu.Unlock()
	span, reason, err := c.sub.Replay(context.Background(), p, doneFrame)
	if err != nil {
		c.Fatal(err)
	}
	return span, reason
}

// expectAt fails unless the client has come to the offset without fault.
func (c *client) expectAt(offset uint64) {
	c.Helper()
	at, err := c.position()
	if err != nil {
		c.Fatal(err)
	}
	if at.Offset != offset {
		c.Fatalf("%s: client at %v, want offset %d", c.stream, at, offset)
	}
}

// words writes events short: offsets of messages, with r for replayed ones,
// and the types of the others.
func words(events []hubtest.Event) []string {
	var list []string
	for _, e := range events {
		switch {
		case e.Type != "message":
			word := e.Type
			if e.Reason != "" {
				word += " " + e.Reason
			}
			list = append(list, word)
		case e.Replay:
			list = append(list, fmt.Sprint("r", e.Position.Offset))
		default:
			list = append(list, fmt.Sprint(e.Position.Offset))
		}
	}
	return list
}

func (c *client) expect(want ...string) {
	c.Helper()
	if got := words(c.take()); !slices.Equal(got, want) {
		c.Fatalf("%s: client saw %v, want %v", c.stream, got, want)
	}
	if _, err := c.position(); err != nil {
		c.Fatal(err)
	}
}
