package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// Authorizer decides which streams an identifier leads to.
type Authorizer interface {
	// Subscribe returns the streams, or a *protocol.CommandError when the
	// subscription is refused for good. An error that wraps
	// auth.ErrUnavailable means that the question cannot be answered now. text
	// is the identifier as it came.
	Subscribe(ctx context.Context, who *auth.Identity, text string, id protocol.Identifier) (auth.Access, error)
}

// access is what a session knows about its client's rights.
type access struct {
	who     *auth.Identity
	present func(ctx context.Context, token string) (*auth.Identity, bool) // not nil: the client has yet to show a token

	// turn is held while a command runs, and while one of the server's own
	// does: see Renew. It guards who and present.
	turn    sync.Mutex
	waiting atomic.Bool // present is not nil
	spoke   atomic.Bool // the client has sent something

	// next is the earliest time of due in unix nanoseconds, 0 when there is
	// none.
	next atomic.Int64
	due  map[string]time.Time // by identifier, when a subscription's permission ends; guarded by Session.mu
}

// Identify says who the client is; before the first command.
func (s *Session) Identify(who *auth.Identity) { s.access.who = who }

// Await lets the client do nothing before it has shown a token. present is
// given the token, or "" when the client sent anything else, and returns who it
// speaks for; false when it has refused the client and ended the connection.
func (s *Session) Await(present func(ctx context.Context, token string) (*auth.Identity, bool)) {
	s.access.present = present
	s.access.waiting.Store(true)
}

// Spoke says whether the client has sent anything yet.
func (s *Session) Spoke() bool { return s.access.spoke.Load() }

// greet runs the first command of a client that has yet to show a token.
func (s *Session) greet(ctx context.Context, cmd protocol.Command) error {
	var token string
	if cmd.Name == "token" {
		token = cmd.Data
	}
	who, ok := s.access.present(ctx, token)
	if !ok {
		s.cfg.Refused(auth.ReasonUnauthorized)
		return ctx.Err()
	}
	s.access.who, s.access.present = who, nil
	s.access.waiting.Store(false)
	s.Welcome(ctx)
	return ctx.Err()
}

// follow registers a subscription with every stream of access. All of them are
// holding when it returns; none is left behind when it fails.
func (s *Session) follow(ctx context.Context, identifier string, streams []string, at *protocol.Position) (first *subscription, heads []protocol.StreamPosition, err error) {
	if len(streams) > 1 {
		at = nil // of which stream it is, nobody can say
	}
	for _, stream := range slices.Backward(streams) {
		addr := protocol.NewAddress(identifier, stream)
		live, span, err := s.cfg.Hub.Subscribe(ctx, stream, addr, s.codec, s.sink)
		if err != nil {
			first.closeAll()
			return nil, nil, err
		}
		first = &subscription{Subscription: live, told: span.Head(), next: first}
		first.from(at)
		heads = append(heads, protocol.StreamPosition{Stream: stream, Position: span.Head()})
	}
	slices.Reverse(heads)
	return first, heads, nil
}

// closeAll ends the subscription with every stream it leads to.
func (sub *subscription) closeAll() {
	for ; sub != nil; sub = sub.next {
		sub.Close()
		if sub.past != nil && sub.past.page != nil {
			sub.past.page.leave(sub)
		}
	}
}

// keep takes a subscription in, to be asked for again when access ends.
func (s *Session) keep(identifier string, sub *subscription, access auth.Access) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs.put(sub)
	s.streams += len(access.Streams)
	s.dueLocked(identifier, access.Expires)
}

// drop lets go of the subscription and returns it, to be closed; nil when there
// is none.
func (s *Session) drop(identifier string) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs.take(identifier)
	for part := sub; part != nil; part = part.next {
		s.streams--
	}
	s.dueLocked(identifier, time.Time{})
	return sub
}

// dueLocked notes when a permission ends; the zero time is never.
func (s *Session) dueLocked(identifier string, at time.Time) {
	a := &s.access
	if at.IsZero() {
		if _, noted := a.due[identifier]; !noted {
			return
		}
		delete(a.due, identifier)
	} else {
		if a.due == nil {
			a.due = make(map[string]time.Time)
		}
		a.due[identifier] = at
	}
	var next time.Time
	for _, at := range a.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		a.next.Store(0)
	} else {
		a.next.Store(next.UnixNano())
	}
}

// Due says whether the permission of some subscription has ended: [Session.Renew]
// is to be called.
func (s *Session) Due(now time.Time) bool {
	next := s.access.next.Load()
	return next != 0 && now.UnixNano() >= next
}

// Renew asks again for every subscription whose permission has ended, and ends
// those it is no longer given for. It takes its turn among the commands, so
// that what it answers stands in order with what they do. It may be called from
// any goroutine.
func (s *Session) Renew(ctx context.Context, now time.Time) {
	s.access.turn.Lock()
	defer s.access.turn.Unlock()
	s.mu.Lock()
	var ended []string
	for identifier, at := range s.access.due {
		if !now.Before(at) {
			ended = append(ended, identifier)
		}
	}
	s.mu.Unlock()
	slices.Sort(ended)
	for _, identifier := range ended {
		sub := s.find(identifier)
		if sub == nil || ctx.Err() != nil {
			continue
		}
		wait, cancel := context.WithTimeout(ctx, s.cfg.CommandTimeout)
		access, err := s.authorize(wait, identifier)
		cancel()
		if err == nil && sub.within(access.Streams) {
			s.mu.Lock()
			s.dueLocked(identifier, access.Expires)
			s.mu.Unlock()
			continue
		}
		var no *protocol.CommandError
		switch {
		case err == nil:
			no = &protocol.CommandError{Reason: auth.ReasonUnauthorized}
		case !errors.As(err, &no):
			// Nobody says that it may go on, so it does not; the client is told
			// to come back.
			s.cfg.Log.Warn("a permission could not be renewed", zap.String("conn", s.id), zap.Error(err))
			s.cfg.Refused(auth.ReasonAuthorizerUnavailable)
			s.sink.Cut(protocol.DisconnectServerRestart)
			return
		}
		s.drop(identifier).closeAll()
		s.cfg.Refused(no.Reason)
		s.push(ctx, s.codec.AppendReject(nil, identifier, no.Reason))
	}
}

// within says whether all streams of the subscription are among these.
func (sub *subscription) within(streams []string) bool {
	for ; sub != nil; sub = sub.next {
		if !slices.Contains(streams, sub.Address().Stream) {
			return false
		}
	}
	return true
}

// authorize asks what an identifier leads to.
func (s *Session) authorize(ctx context.Context, identifier string) (auth.Access, error) {
	id, err := protocol.ParseIdentifier(identifier)
	if err != nil {
		return auth.Access{}, err
	}
	return s.cfg.Authorizer.Subscribe(ctx, s.access.who, identifier, id)
}

// Follows says whether one of the subscriptions has the stream.
func (s *Session) Follows(stream string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs.list {
		for ; sub != nil; sub = sub.next {
			if sub.Address().Stream == stream {
				return true
			}
		}
	}
	return false
}
