package hub_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// TestStorm states the hub's promise: whatever happens to hints, readers and
// the log, what leaves on one wire begins right after the confirmed or asked
// position and follows on without hole or repeat, and in the end everybody is
// at the head.
func TestStorm(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			opts := hub.Options{
				Shards:      1 + int(seed%3),
				TurnSize:    1 + int(seed%5),
				Tail:        history.TailLimits{WindowCount: 5 + int(seed*13%60), HeldCount: 4 + int(seed%30)},
				CacheBytes:  4000,
				WindowTotal: 3000 << (seed % 4),
			}
			if seed%3 == 0 {
				opts.InboxMessages = 20
			}
			bubble(t, opts, func(t *testing.T, w *world) {
				s := &storm{world: w, rng: rand.New(rand.NewPCG(seed, 3))}
				s.rage(400)
				s.calm()
			})
		})
	}
}

type storm struct {
	*world
	rng     *rand.Rand
	clients []*client
	delayed []protocol.Batch
	codecs  []*hubtest.Codec
}

func (s *storm) stream() string { return fmt.Sprint("s/", s.rng.IntN(3)) }

func (s *storm) rage(steps int) {
	for _, p := range []string{plain, extended, ours} {
		s.codecs = append(s.codecs, hubtest.NewCodec(p))
	}
	for range steps {
		switch s.rng.IntN(12) {
		case 0, 1, 2, 3, 4:
			s.hint(s.log.AppendN(s.stream(), 1+s.rng.IntN(9)))
		case 5:
			if len(s.clients) < 15 {
				s.come(nil)
			}
		case 6:
			s.log.Fault(nil)
			switch s.rng.IntN(4) {
			case 0:
				s.log.Down()
			case 1:
				s.log.Slow(time.Duration(s.rng.IntN(20)) * time.Millisecond)
			}
		case 7:
			s.hub.Sweep()
		case 8:
			time.Sleep(time.Duration(s.rng.IntN(3000)) * time.Microsecond)
		default:
			s.bother()
		}
	}
}

// hint hands a batch to the hub as a bad network would.
func (s *storm) hint(b protocol.Batch) {
	switch s.rng.IntN(8) {
	case 0: // lost
	case 1:
		s.delayed = append(s.delayed, b)
	case 2:
		s.hub.Publish([]protocol.Batch{b, b})
	case 3: // cut in two, the end first
		n := s.rng.IntN(len(b.Messages))
		first, rest := b, b
		first.Messages, rest.Messages = b.Messages[:n], b.Messages[n:]
		s.hub.Publish([]protocol.Batch{rest, first})
	default:
		s.hub.Publish([]protocol.Batch{b})
	}
	if n := len(s.delayed); n > 0 && s.rng.IntN(3) == 0 {
		i := s.rng.IntN(n)
		s.hub.Publish([]protocol.Batch{s.delayed[i]})
		s.delayed = append(s.delayed[:i], s.delayed[i+1:]...)
	}
}

// come subscribes a client: a new one, or one that was cut and resumes.
func (s *storm) come(old *client) {
	stream := s.stream()
	if old != nil {
		stream = old.stream
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	c, err := s.tryJoin(ctx, stream, s.codecs[s.rng.IntN(3)], 200+s.rng.IntN(3000))
	if err != nil {
		if old != nil {
			s.clients = append(s.clients, old) // tries again later
		}
		return
	}
	s.clients = append(s.clients, c)
	switch {
	case old != nil:
		at, _ := old.position()
		s.ask(c, at)
	case s.rng.IntN(3) > 0:
		c.sub.Live()
	}
}

func (s *storm) ask(c *client, after protocol.Position) {
	c.mu.Lock()
	c.rewound = append(c.rewound, after)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, reason, err := c.sub.Replay(ctx, after, doneFrame); reason != "" {
		s.Errorf("%s: %v refused: %q", c.stream, after, reason)
	} else if err != nil {
		c.mu.Lock()
		c.rewound = c.rewound[:max(len(c.rewound)-1, 0)]
		c.mu.Unlock()
		c.sub.Live()
	} else {
		c.asked++
	}
}

// bother does something to one client.
func (s *storm) bother() {
	if len(s.clients) == 0 {
		return
	}
	i := s.rng.IntN(len(s.clients))
	c := s.clients[i]
	switch s.rng.IntN(6) {
	case 0, 1:
		c.sink.Stall()
	case 2:
		c.sink.Read(s.rng.IntN(10))
	case 3:
		c.sink.Resume()
	case 4:
		at, _ := c.position()
		at.Offset -= min(at.Offset, uint64(s.rng.IntN(40)))
		s.ask(c, at)
	case 5:
		c.sub.Close()
		if _, err := c.position(); err != nil {
			s.Error(err)
		}
		s.clients = append(s.clients[:i], s.clients[i+1:]...)
		s.come(c)
	}
}

// calm heals everything; delayed hints are lost for good.
func (s *storm) calm() {
	s.log.Fault(nil)
	for _, c := range s.clients {
		c.sub.Live()
		c.sink.Resume()
	}
	time.Sleep(5 * time.Second)
	synctest.Wait()
	for _, c := range s.clients {
		span, err := s.hub.Head(context.Background(), c.stream)
		if err != nil {
			s.Fatal(err)
		}
		c.expectAt(span.Last)
		answers := 0
		for _, e := range c.take() {
			if e.Type == "confirm_history" {
				answers++
			}
		}
		if answers != c.asked {
			s.Errorf("%s: %d replays asked for, %d answered", c.stream, c.asked, answers)
		}
		if sent := c.sub.Sent(); sent != span.Head() {
			s.Errorf("sent %v, head %v", sent, span.Head())
		}
	}
	if stats := s.hub.Stats(); stats.Resets != 0 || len(s.clients) == 0 {
		s.Errorf("%d clients, %+v", len(s.clients), stats)
	}
}
