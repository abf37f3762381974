package hub

import (
	"sync/atomic"

	"github.com/chronocast/chronocast/protocol"
)

// group is the subscriptions of a stream that take the same frames.
type group struct {
	stream *stream
	codec  protocol.Codec
	addr   *protocol.Address
	slot   int // in stream.groups; guarded by stream.mu

	size   atomic.Int32 // subscriptions; written under stream.mu
	shared *shared      // nil while one subscription has been the most
}

// shared is the frames of a pass that the subscriptions of a group share.
type shared struct {
	of     *pass
	frames [][]byte
}

type groupKey struct{ codec, identifier string }

func (g *group) key() groupKey { return groupKey{g.codec.Name(), g.addr.Identifier} }

func (g *group) encode(dst [][]byte, epoch protocol.Epoch, msgs []protocol.Message, replay bool) [][]byte {
	g.stream.hub.n.encodes.Add(1)
	return g.codec.Frames(dst, g.addr, epoch, msgs, replay)
}

// resetFrame is how a client of the group learns of a reset, ready for the
// wire; nil when its protocol has no word for it.
func (g *group) resetFrame(reason protocol.Reason, span protocol.Span) []byte {
	switch g.codec.Level() {
	case protocol.LevelPlain:
		return nil
	case protocol.LevelExtended:
		return protocol.AppendTextFrame(nil, g.codec.AppendRejectHistory(nil, g.addr.Identifier, string(reason), span))
	default:
		return protocol.AppendTextFrame(nil, g.codec.AppendReset(nil, g.addr, reason, span))
	}
}

// groupsIndexed is how many groups a stream has before it keeps an index of
// them.
const groupsIndexed = 8

func (s *stream) groupLocked(addr *protocol.Address, codec protocol.Codec) *group {
	key := groupKey{codec.Name(), addr.Identifier}
	if s.groupIndex != nil {
		if g := s.groupIndex[key]; g != nil {
			return g
		}
	} else {
		for _, g := range s.groups {
			if g.key() == key {
				return g
			}
		}
	}
	g := &group{stream: s, codec: codec, addr: addr, slot: len(s.groups)}
	s.groups = append(s.groups, g)
	if s.groupIndex != nil {
		s.groupIndex[key] = g
	} else if len(s.groups) > groupsIndexed {
		s.groupIndex = make(map[groupKey]*group, 2*groupsIndexed)
		for _, g := range s.groups {
			s.groupIndex[g.key()] = g
		}
	}
	return g
}

func (s *stream) joinLocked(c *Subscription, addr *protocol.Address, codec protocol.Codec) {
	g := s.groupLocked(addr, codec)
	g.size.Add(1)
	c.group, c.index = g, uint32(len(s.members))
	s.members = append(s.members, c)
}

// leaveLocked takes a subscription out of the members without changing which
// of them the pass under way has served, and which are due.
func (s *stream) leaveLocked(c *Subscription) {
	hole := int(c.index)
	if p := s.pass; p != nil {
		if hole < p.next {
			p.next--
			hole = s.moveLocked(p.next, hole)
		}
		if hole < p.end {
			p.end--
			hole = s.moveLocked(p.end, hole)
		}
	}
	last := len(s.members) - 1
	s.moveLocked(last, hole)
	s.members[last] = nil
	if s.members = s.members[:last]; last == 0 {
		s.members = nil
	}

	g := c.group
	if g.size.Add(-1) > 0 {
		return
	}
	last = len(s.groups) - 1
	s.groups[g.slot] = s.groups[last]
	s.groups[g.slot].slot = g.slot
	s.groups[last] = nil
	s.groups = s.groups[:last]
	delete(s.groupIndex, g.key())
	if last == 0 {
		s.groups, s.groupIndex = nil, nil
	}
}

// moveLocked fills the hole at to with the member at from, unless that is the
// hole itself, and returns where the hole is then.
func (s *stream) moveLocked(from, to int) (hole int) {
	if from != to {
		s.members[to] = s.members[from]
		s.members[to].index = uint32(to)
	}
	return from
}
