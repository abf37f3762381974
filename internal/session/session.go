// Package session is one client's Action Cable conversation, without a socket.
//
// A Session reads commands and answers them one after another, in the order
// they were sent. What it answers and what the hub delivers goes through the
// same [hub.Sink], so a confirmation always stands before the first message it
// announces. Replays are pushed by the hub in the background; the
// confirm_history that ends one is part of it.
package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/protocol"
)

// The reasons of a refusal, beside those the protocol package gives.
const (
	ReasonUnknownCommand       = "unknown_command"
	ReasonNotSubscribed        = "not_subscribed"
	ReasonTooManySubscriptions = "too_many_subscriptions"
	ReasonStoreUnavailable     = "store_unavailable"
	ReasonUnsupported          = "unsupported"
	reasonMalformed            = "malformed"
)

// DisconnectInvalidRequest is the reason Action Cable gives a client that does
// not speak its protocol.
const DisconnectInvalidRequest protocol.DisconnectReason = "invalid_request"

// ErrMistakes: the client has sent too much that cannot be understood at its
// level. It has been told to stay away; the connection must end.
var ErrMistakes = errors.New("session: too many commands that make no sense")

// maxMistakes is how many unintelligible commands are passed over on a level
// that has no frame to say so.
const maxMistakes = 10

// Config is what the sessions of a server share. Hub and Authorizer are
// required.
type Config struct {
	Hub        *hub.Hub
	Authorizer Authorizer

	MaxIdentifierBytes int           // 0 is 4 KiB
	MaxSubscriptions   int           // of one session; 0 is 1,000
	CommandTimeout     time.Duration // how long a command waits for the log; 0 is 5 s
	MaxCommandRate     int           // commands in a second; 0 is no limit

	// Refused, when not nil, is told the reason of every refusal.
	Refused func(reason string)
	Log     *zap.Logger // nil logs nothing

	pages *pages
}

func (c Config) withDefaults() Config {
	if c.MaxIdentifierBytes == 0 {
		c.MaxIdentifierBytes = 4 << 10
	}
	if c.MaxSubscriptions == 0 {
		c.MaxSubscriptions = 1000
	}
	if c.CommandTimeout == 0 {
		c.CommandTimeout = 5 * time.Second
	}
	if c.Refused == nil {
		c.Refused = func(string) {}
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return c
}

// Factory makes sessions.
type Factory struct{ cfg Config }

// NewFactory returns a Factory for sessions with this configuration.
func NewFactory(cfg Config) *Factory {
	cfg = cfg.withDefaults()
	cfg.pages = newPages()
	return &Factory{cfg}
}

// New returns a session that answers through sink. The client is told its id,
// and the log names it as conn. Close the session in the end.
func (f *Factory) New(codec protocol.Codec, sink hub.Sink, id string) *Session {
	s := new(Session)
	f.Init(s, codec, sink, id)
	return s
}

// Init is New for a session that is part of something else.
func (f *Factory) Init(s *Session, codec protocol.Codec, sink hub.Sink, id string) {
	s.cfg, s.codec, s.sink, s.id = &f.cfg, codec, sink, id
}

// Session is one conversation. Welcome, Handle and Close are called by one
// goroutine, Ping by one other, Subscriptions by any.
type Session struct {
	cfg      *Config
	codec    protocol.Codec
	sink     hub.Sink
	id       string
	mistakes int
	outage   uint64 // of the log, that the client was told of last; touched by Ping alone

	access access
	pace   pace // touched by Handle alone

	mu      sync.Mutex // guards what follows; never held across a call of the hub that waits
	subs    subscriptions
	streams int // that they lead to, each counted for each
}

// Welcome greets the client. It comes before everything else.
func (s *Session) Welcome(ctx context.Context) {
	s.push(ctx, s.codec.AppendWelcome(nil, s.id))
}

// Handle runs one command to its end. It waits while the sink has no room for
// the answer, so that a client that asks without reading is not read either.
// The error is ErrMistakes, or that of ctx when it ended meanwhile; in both
// cases nothing more should be handled.
func (s *Session) Handle(ctx context.Context, frame []byte) error {
	s.access.spoke.Store(true)
	if err := s.wait(ctx); err != nil {
		return err
	}
	s.access.turn.Lock()
	defer s.access.turn.Unlock()
	cmd, err := s.codec.Decode(frame)
	if s.access.present != nil {
		return s.greet(ctx, cmd)
	}
	if err != nil {
		var bad *protocol.CommandError
		if !errors.As(err, &bad) {
			bad = &protocol.CommandError{Reason: reasonMalformed, Message: err.Error()}
		}
		return s.mistake(ctx, bad)
	}
	switch cmd.Name {
	case "pong":
	case "subscribe":
		s.subscribe(ctx, cmd)
	case "unsubscribe":
		s.unsubscribe(ctx, cmd)
	case "history":
		return s.history(ctx, cmd)
	case "token":
		s.fail(ctx, cmd, ReasonUnsupported, "a token is shown before everything else, or with the request")
	case "message", "whisper", "join", "leave":
		// Clients of Action Cable wait for no answer to these, and a program
		// written for another server may send them all day.
		s.fail(ctx, cmd, ReasonUnsupported, "this server takes no "+cmd.Name+" commands; broadcasts are published over HTTP")
	case "presence":
		s.cfg.Refused(ReasonUnsupported)
		if s.codec.Level() >= protocol.LevelExtended {
			s.push(ctx, s.codec.AppendPresenceError(nil, cmd.Identifier))
		}
	default:
		return s.mistake(ctx, &protocol.CommandError{
			Reason: ReasonUnknownCommand, Message: "the commands are subscribe, unsubscribe, history and pong",
			Command: cmd.Name, Identifier: cmd.Identifier,
		})
	}
	return ctx.Err()
}

// Ping tells the client how far its streams have been sent, those that moved
// since it was last told, and reports whether it did. When it did not, because
// nothing moved, the level has no word for it or the sink has no room, the
// caller sends a bare ping.
//
// This is how a client notices that the newest message was lost on the way:
// no later message would show the gap. While the log does not answer the client
// is told so, once, before the ping.
func (s *Session) Ping(unix int64) bool {
	if s.access.waiting.Load() {
		return true // it has not been welcomed
	}
	if s.codec.Level() < protocol.LevelChronocast {
		return false
	}
	if now := s.cfg.Hub.Outage(); now != 0 && now != s.outage && s.sink.Push([][]byte{
		wire(s.codec.AppendError(nil, "", "", ReasonStoreUnavailable, "the database does not answer; what is published meanwhile comes when it does again")),
	}) {
		s.outage = now
	}
	var some [8]*subscription
	subs := s.all(some[:0])
	heads := moved(subs)
	if len(heads) == 0 {
		return false
	}
	if s.sink.Push([][]byte{wire(s.codec.AppendPing(nil, unix, heads))}) {
		return true
	}
	for _, sub := range subs {
		sub.told = protocol.Position{} // tell again
	}
	return false
}

// all appends every subscription to buf.
func (s *Session) all(buf []*subscription) []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs.list {
		for ; sub != nil; sub = sub.next {
			buf = append(buf, sub)
		}
	}
	return buf
}

// moved returns how far the streams have been sent that moved since the client
// was last told, by name.
func moved(subs []*subscription) (heads []protocol.StreamPosition) {
	// Two identifiers may lead to one stream; the frame has room for one.
	var moved map[string]protocol.Position
	for _, sub := range subs {
		at := sub.Sent()
		if at == sub.told {
			continue
		}
		sub.told = at
		if moved == nil {
			moved = make(map[string]protocol.Position)
		}
		stream := sub.Address().Stream
		if other, ok := moved[stream]; !ok || at.Offset < other.Offset {
			moved[stream] = at
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(moved)) {
		heads = append(heads, protocol.StreamPosition{Stream: stream, Position: moved[stream]})
	}
	return heads
}

// Subscriptions returns how many there are.
func (s *Session) Subscriptions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// Close ends every subscription. Nothing is pushed after it returns.
func (s *Session) Close() {
	s.mu.Lock()
	subs := s.subs.list
	s.subs, s.streams = subscriptions{}, 0
	s.mu.Unlock()
	for _, sub := range subs {
		sub.closeAll()
	}
}

func (s *Session) subscribe(ctx context.Context, cmd protocol.Command) {
	if sub := s.find(cmd.Identifier); sub != nil {
		s.repeat(ctx, cmd, sub)
		return
	}
	refuse := func(reason string) {
		s.cfg.Refused(reason)
		s.push(ctx, s.codec.AppendReject(nil, cmd.Identifier, reason))
	}
	if len(cmd.Identifier) > s.cfg.MaxIdentifierBytes {
		refuse(reasonMalformed)
		return
	}
	if s.Subscriptions() >= s.cfg.MaxSubscriptions {
		refuse(ReasonTooManySubscriptions)
		return
	}
	id, err := protocol.ParseIdentifier(cmd.Identifier)
	if err != nil {
		refuse(reasonMalformed)
		return
	}

	wait, cancel := context.WithTimeout(ctx, s.cfg.CommandTimeout)
	defer cancel()
	access, err := s.cfg.Authorizer.Subscribe(wait, s.access.who, cmd.Identifier, id)
	if err != nil {
		var no *protocol.CommandError
		if errors.As(err, &no) {
			refuse(no.Reason)
			return
		}
		s.unavailable(ctx, cmd, err)
		return
	}
	if s.Subscriptions()+len(access.Streams) > s.cfg.MaxSubscriptions {
		refuse(ReasonTooManySubscriptions)
		return
	}
	first, heads, err := s.follow(wait, cmd.Identifier, access.Streams, id.At)
	if err != nil {
		s.unavailable(ctx, cmd, err)
		return
	}
	s.cfg.pages.join(cmd.Identifier, id, first)
	s.keep(cmd.Identifier, first, access)

	// The subscription is registered and holding: whatever is committed from
	// here on waits until the confirmation and the replay are queued.
	s.push(ctx, s.codec.AppendConfirm(nil, cmd.Identifier, heads))

	var done []byte
	if cmd.History != nil {
		done = s.codec.AppendConfirmHistory(nil, cmd.Identifier)
	}
	for sub := first; sub != nil; sub = sub.next {
		req := sub.request(cmd.History, sub.at())
		began, err := s.replay(ctx, wait, sub, req, done)
		if err != nil {
			// A subscription that went on without its replay would hide from a
			// client that tries again that it misses something.
			s.drop(cmd.Identifier).closeAll()
			s.unavailable(ctx, cmd, err)
			return
		}
		if began {
			sub.began(req)
			continue
		}
		sub.Live()
	}
}

// repeat answers a subscribe for what is subscribed already. The Rails client
// sends one every 500 ms until it is confirmed. What was replayed for the one
// before is not replayed again; what was not, must be.
func (s *Session) repeat(ctx context.Context, cmd protocol.Command, first *subscription) {
	for sub := first; sub != nil; sub = sub.next {
		s.tell(ctx, sub, func(sent protocol.Position) []byte {
			return s.codec.AppendConfirm(nil, cmd.Identifier, []protocol.StreamPosition{{Stream: sub.Address().Stream, Position: sent}})
		})
	}
	if cmd.History == nil {
		return
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.CommandTimeout)
	defer cancel()
	for sub := first; sub != nil; sub = sub.next {
		req := sub.request(cmd.History, sub.at())
		again := req
		if req == sub.ran() {
			again = request{}
		}
		began, err := s.replay(ctx, wait, sub, again, s.codec.AppendConfirmHistory(nil, cmd.Identifier))
		if err != nil {
			cmd.Name = "history" // the subscription stays
			s.unavailable(ctx, cmd, err)
			return
		}
		if began {
			sub.began(req)
		}
	}
}

func (s *Session) unsubscribe(ctx context.Context, cmd protocol.Command) {
	sub := s.drop(cmd.Identifier)
	if sub == nil {
		s.fail(ctx, cmd, ReasonNotSubscribed, "there is no subscription with this identifier")
		return
	}
	sub.closeAll()
}

func (s *Session) history(ctx context.Context, cmd protocol.Command) error {
	if s.codec.Level() < protocol.LevelExtended {
		return s.mistake(ctx, &protocol.CommandError{
			Reason: ReasonUnknownCommand, Message: "history needs another subprotocol", Command: cmd.Name, Identifier: cmd.Identifier,
		})
	}
	first := s.find(cmd.Identifier)
	if first == nil {
		s.fail(ctx, cmd, ReasonNotSubscribed, "there is no subscription with this identifier")
		return ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.CommandTimeout)
	defer cancel()
	done := s.codec.AppendConfirmHistory(nil, cmd.Identifier)
	for sub := first; sub != nil; sub = sub.next {
		if _, err := s.replay(ctx, wait, sub, sub.request(cmd.History, nil), done); err != nil {
			s.unavailable(ctx, cmd, err)
			break
		}
	}
	return ctx.Err()
}

// request is what a command asks to be replayed of a stream: after its position
// in the command, else since the command's time, else after the position in the
// identifier. The zero request asks for nothing.
type request struct {
	asked bool
	since int64 // unix seconds, or 0
	after protocol.Position
}

func (sub *subscription) request(req *protocol.HistoryRequest, at *protocol.Position) request {
	if req != nil {
		if p, ok := req.Streams[sub.Address().Stream]; ok {
			at = &p
		} else if req.Since > 0 && at == nil {
			return request{asked: true, since: req.Since}
		}
	}
	if at == nil {
		return request{}
	}
	return request{asked: true, after: *at}
}

// replay begins the replay that was asked for, which ends with the frame done.
// Without one, done is all there is to say; a refused one is answered here.
func (s *Session) replay(ctx, wait context.Context, sub *subscription, req request, done []byte) (began bool, err error) {
	var span protocol.Span
	var reason protocol.Reason
	switch {
	case !req.asked:
		if len(done) > 0 {
			s.push(ctx, done)
		}
		return false, nil
	case req.since > 0:
		span, reason, err = sub.ReplaySince(wait, req.since*1e6, wire(done))
	default:
		span, reason, err = sub.Replay(wait, req.after, wire(done))
	}
	if err == nil && reason != "" {
		s.reset(ctx, sub, reason, span)
	}
	return err == nil && reason == "", err
}

// reset tells the client that its position cannot be continued, and where the
// wire stands instead. A plain client has no frame for it: the position in its
// confirmation is all there is to tell.
func (s *Session) reset(ctx context.Context, sub *subscription, reason protocol.Reason, span protocol.Span) {
	s.cfg.Refused(string(reason))
	if s.codec.Level() < protocol.LevelExtended {
		return
	}
	s.tell(ctx, sub, func(sent protocol.Position) []byte {
		if sent.Epoch != span.Epoch {
			return nil // the stream began anew meanwhile, and the hub tells that itself
		}
		span.Last = sent.Offset
		if s.codec.Level() == protocol.LevelExtended {
			return s.codec.AppendRejectHistory(nil, sub.Address().Identifier, string(reason), span)
		}
		return s.codec.AppendReset(nil, sub.Address(), reason, span)
	})
}

// unavailable answers a command that the log, or the application that permits
// it, gave no answer to. A stock client takes a rejection for final, so it is
// sent away to come back instead.
func (s *Session) unavailable(ctx context.Context, cmd protocol.Command, err error) {
	if ctx.Err() != nil {
		return
	}
	s.cfg.Log.Warn("command not served", zap.String("conn", s.id), zap.String("command", cmd.Name), zap.Error(err))
	reason, message := ReasonStoreUnavailable, "the database does not answer in time, try again"
	if errors.Is(err, auth.ErrUnavailable) {
		reason, message = auth.ReasonAuthorizerUnavailable, "the application does not say in time whether this is allowed, try again"
	}
	s.cfg.Refused(reason)
	if s.codec.Level() < protocol.LevelChronocast {
		s.sink.Cut(protocol.DisconnectServerRestart)
		return
	}
	s.push(ctx, s.codec.AppendError(nil, cmd.Name, cmd.Identifier, reason, message))
}

// fail answers a well-formed command that cannot be served, where the level
// has a frame for it.
func (s *Session) fail(ctx context.Context, cmd protocol.Command, reason, message string) {
	s.cfg.Refused(reason)
	switch level := s.codec.Level(); {
	case level >= protocol.LevelChronocast:
		s.push(ctx, s.codec.AppendError(nil, cmd.Name, cmd.Identifier, reason, message))
	case level == protocol.LevelExtended && cmd.Name == "history":
		s.push(ctx, s.codec.AppendRejectHistory(nil, cmd.Identifier, reason, protocol.Span{}))
	}
}

// mistake answers what is no command at all.
func (s *Session) mistake(ctx context.Context, bad *protocol.CommandError) error {
	s.cfg.Refused(bad.Reason)
	if s.codec.Level() >= protocol.LevelChronocast {
		s.push(ctx, s.codec.AppendError(nil, bad.Command, bad.Identifier, bad.Reason, bad.Message))
		return ctx.Err()
	}
	if bad.Command == "subscribe" {
		// With an identifier that cannot be read the frame names none: no
		// client acts on it, but whoever reads along sees what happened.
		s.push(ctx, s.codec.AppendReject(nil, bad.Identifier, bad.Reason))
		if bad.Identifier != "" {
			return ctx.Err()
		}
	}
	if s.mistakes++; s.mistakes < maxMistakes {
		return ctx.Err()
	}
	s.push(ctx, s.codec.AppendDisconnect(nil, DisconnectInvalidRequest, false))
	return ErrMistakes
}

func (s *Session) find(identifier string) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs.get(identifier)
}

// wire makes the text of a frame ready for the sink; nothing stays nothing.
func wire(text []byte) []byte { return protocol.AppendTextFrame(nil, text) }

// push queues one frame, waiting for room until ctx ends.
func (s *Session) push(ctx context.Context, frame []byte) {
	frames := [][]byte{wire(frame)}
	s.await(ctx, func() bool { return s.sink.Push(frames) })
}

// tell queues the frame that f makes for where the wire stands. The position
// must not be asked for first: messages would pass before the frame is queued.
func (s *Session) tell(ctx context.Context, sub *subscription, f func(sent protocol.Position) []byte) {
	s.await(ctx, func() bool { return sub.Tell(func(sent protocol.Position) []byte { return wire(f(sent)) }) })
}

// await tries until try succeeds, at once and whenever there is room, or ctx
// ends.
func (s *Session) await(ctx context.Context, try func() bool) {
	for !try() {
		room := make(chan struct{})
		s.sink.Room(func() { close(room) })
		select {
		case <-room:
		case <-ctx.Done():
			return
		}
	}
}
