package session

import (
	"slices"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/protocol"
)

// subscription is one identifier of the session with one stream. There are at
// least as many as there are clients, so that it holds nothing the hub holds for
// all of them.
type subscription struct {
	*hub.Subscription
	told protocol.Position // by confirmation or ping; touched by Ping alone
	next *subscription     // with another stream that the identifier leads to, or nil
	past *past             // nil while nothing of the past was asked for
}

// past is what was asked about the past of a stream; touched by Handle alone.
type past struct {
	at   *protocol.Position // in the identifier
	ran  request            // the last replay that began
	page *page              // that is served, when the identifier names one
}

// at returns the position in the identifier, or nil.
func (sub *subscription) at() *protocol.Position {
	if sub.past == nil {
		return nil
	}
	return sub.past.at
}

// ran returns the last replay that began.
func (sub *subscription) ran() request {
	if sub.past == nil {
		return request{}
	}
	return sub.past.ran
}

// began notes a replay that began.
func (sub *subscription) began(r request) {
	if sub.past == nil {
		sub.past = new(past)
	}
	sub.past.ran = r
}

// from notes the position in the identifier, which may be nil.
func (sub *subscription) from(at *protocol.Position) {
	if at != nil {
		sub.past = &past{at: at}
	}
}

// searchMax is how many subscriptions are searched one by one. Most sessions
// have one or a few, and a map would be the largest thing they own.
const searchMax = 8

// subscriptions are those of a session, by identifier. The zero value is empty.
type subscriptions struct {
	list []*subscription
	byID map[string]int // place in list, once there are more than a few
}

func (s *subscriptions) index(identifier string) int {
	if s.byID != nil {
		if i, ok := s.byID[identifier]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(s.list, func(sub *subscription) bool { return sub.Address().Identifier == identifier })
}

// get returns the subscription, or nil.
func (s *subscriptions) get(identifier string) *subscription {
	if i := s.index(identifier); i >= 0 {
		return s.list[i]
	}
	return nil
}

// put adds a subscription whose identifier is not there.
func (s *subscriptions) put(sub *subscription) {
	s.list = append(s.list, sub)
	switch {
	case s.byID != nil:
		s.byID[sub.Address().Identifier] = len(s.list) - 1
	case len(s.list) > searchMax:
		s.byID = make(map[string]int, 2*searchMax)
		for i, sub := range s.list {
			s.byID[sub.Address().Identifier] = i
		}
	}
}

// take removes the subscription and returns it, or nil.
func (s *subscriptions) take(identifier string) *subscription {
	i := s.index(identifier)
	if i < 0 {
		return nil
	}
	sub, last := s.list[i], len(s.list)-1
	if s.byID != nil {
		s.byID[s.list[last].Address().Identifier] = i
		delete(s.byID, identifier)
	}
	s.list[i], s.list[last] = s.list[last], nil
	if s.list = s.list[:last]; last == 0 {
		*s = subscriptions{}
	}
	return sub
}
