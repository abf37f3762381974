package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
)

// Config is what a server with a secret knows about who may do what.
type Config struct {
	PublishKeys []PublishKey
	SignKeys    []Secret // of names for $pubsub
	TurboKeys   []Secret // of names for Turbo::StreamsChannel
	Tokens      Tokens
	// RequireToken refuses connections and reads without a token, signed names
	// or not.
	RequireToken bool
	// PublicStreams are prefixes of streams that everybody may read by their
	// plain names; "" is all streams.
	PublicStreams []string
	Origins       Origins
	Proxies       Proxies
	// QueryTokens takes tokens from ?token= and ?jid= of every request, not of
	// WebSockets alone. They end in the logs of every proxy on the way.
	QueryTokens bool
	Callback    Callback
	// PublicMetrics shows /metrics to everybody.
	PublicMetrics bool
	// MaxFailures is how many wrong credentials an address may show in a minute
	// before it is told to stop. 0 counts none.
	MaxFailures int

	Log *zap.Logger      // nil logs nothing
	Now func() time.Time // nil is time.Now
}

// Policy decides for a server with a secret. One verifier answers for all ways
// in: sockets, history, heads, publishing and administration. Its methods may
// be called concurrently.
type Policy struct {
	cfg    Config
	pubsub verifier
	turbo  verifier
	tokens *tokens
	app    *callback // nil asks nobody
	fails  failures
	now    func() time.Time
}

// New returns a Policy. The error says what is wrong with the configuration
// and shows no secret.
func New(c Config) (*Policy, error) {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	log := c.Log.Named("auth")
	// A key of both would open under one class what was signed for the other.
	for _, key := range c.TurboKeys {
		if slices.ContainsFunc(c.SignKeys, key.Equal) {
			return nil, errors.New("auth: a key signs names for $pubsub and for Turbo::StreamsChannel: what is signed for one would open the other; give each its own")
		}
	}
	if err := c.Callback.Check(); err != nil {
		return nil, fmt.Errorf("auth: the URL of the application %w", err)
	}
	var set *keySet
	if c.Tokens.JWKS != "" {
		var err error
		if set, err = openKeySet(c.Tokens.JWKS, log); err != nil {
			return nil, err
		}
	}
	p := &Policy{
		cfg:    c,
		pubsub: verifier{ChannelPubSub, c.SignKeys},
		turbo:  verifier{ChannelTurbo, c.TurboKeys},
		tokens: newTokens(c.Tokens, set, c.Now),
		fails:  failures{limit: c.MaxFailures, now: c.Now},
		now:    c.Now,
	}
	if c.RequireToken && !p.tokens.enabled() {
		return nil, errors.New("auth: tokens are required and there is no key to check them with")
	}
	if c.Callback.URL != "" {
		p.app = newCallback(c.Callback, c.Now, log)
	}
	return p, nil
}

// Close lets go of idle connections to the application.
func (p *Policy) Close() {
	if p.app != nil {
		p.app.http.CloseIdleConnections()
	}
}

// Admit returns an error that wraps [ErrForbidden] when r was sent by a page
// that may not use this server, or by any page at all to change something: a
// key that may publish has no place in a browser.
func (p *Policy) Admit(r *http.Request) error {
	if err := p.cfg.Origins.check(r); err != nil {
		return err
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions && len(r.Header.Values("Origin")) > 0 {
		return fmt.Errorf("%w: pages do not publish; send the request from a server", ErrForbidden)
	}
	return nil
}

// PagesPublish is false: nothing is published from a browser.
func (p *Policy) PagesPublish() bool { return false }

// Identify returns who an HTTP request speaks for. The error wraps
// [ErrUnauthorized], [ErrExpired], [ErrForbidden] or [ErrTooManyFailures].
func (p *Policy) Identify(r *http.Request) (*Identity, error) {
	return p.identify(r, p.cfg.QueryTokens, "")
}

// Connect is Identify for a connection that stays, with the id it will have:
// its request may carry the token in more places, and the application is asked.
// [ErrNoToken] means that a token is required and has not come; it may come in
// the first frame, see [Policy.Present]. The error may wrap [ErrUnavailable],
// too.
func (p *Policy) Connect(ctx context.Context, r *http.Request, sid string) (*Identity, error) {
	id, err := p.identify(r, true, sid)
	if err != nil {
		return nil, err
	}
	if p.cfg.RequireToken && !id.known {
		return id, ErrNoToken
	}
	return p.welcome(ctx, id)
}

// ErrNoToken: a token is required and the request has none.
var ErrNoToken = fmt.Errorf("%w: a token is required", ErrUnauthorized)

// Present is what a connection that came without a token is after it has shown
// one; id is what Connect returned.
func (p *Policy) Present(ctx context.Context, id *Identity, token string) (*Identity, error) {
	known, err := p.tokens.identify(token)
	if err != nil {
		return nil, p.failure(err, id.addr)
	}
	known.known, known.addr, known.asked = true, id.addr, id.asked
	return p.welcome(ctx, known)
}

// welcome asks the application whether somebody may connect.
func (p *Policy) welcome(ctx context.Context, id *Identity) (*Identity, error) {
	if p.app == nil {
		return id, nil
	}
	a, err := p.app.ask(ctx, id, "connect", "", "")
	if err != nil {
		return nil, err
	}
	if !a.allow {
		return nil, fmt.Errorf("%w: the application says no", ErrUnauthorized)
	}
	if id.Subject == "" {
		id.Subject = a.sub
	}
	if !a.expires.IsZero() && (id.Expires.IsZero() || a.expires.Before(id.Expires)) {
		id.Expires = a.expires
	}
	return id, nil
}

// identify reads the credentials of a request. Of several the first counts: the
// Authorization header, X-JID, the subprotocol, the query.
func (p *Policy) identify(r *http.Request, query bool, sid string) (*Identity, error) {
	addr, _ := p.cfg.Proxies.Address(r)
	id, err := p.credentials(r, query)
	if err != nil {
		return nil, p.failure(err, addr)
	}
	if id == nil {
		id = &Identity{}
	} else {
		id.known = true
	}
	id.addr = addr
	if p.app != nil {
		id.asked = p.app.request(r, addr, sid)
	}
	return id, nil
}

func (p *Policy) credentials(r *http.Request, query bool) (*Identity, error) {
	if values := r.Header.Values("Authorization"); len(values) > 1 {
		return nil, ErrUnauthorized
	} else if len(values) == 1 {
		// Other schemes are for a proxy in front.
		if scheme, text, _ := strings.Cut(values[0], " "); strings.EqualFold(scheme, "Bearer") {
			text = strings.TrimSpace(text)
			if id := p.publisher(text); id != nil {
				if len(r.Header.Values("Origin")) > 0 {
					return nil, fmt.Errorf("%w: a publish key has no place in a browser", ErrForbidden)
				}
				return id, nil
			}
			return p.tokens.identify(text)
		}
	}
	if text := r.Header.Get("X-Jid"); text != "" {
		return p.tokens.identify(text)
	}
	if sidTokens := subprotocolTokens(r); len(sidTokens) == 1 {
		return p.tokens.identify(sidTokens[0])
	} else if len(sidTokens) > 1 {
		return nil, ErrUnauthorized
	}
	if query && r.URL.RawQuery != "" {
		values := r.URL.Query()
		switch found := append(values["token"], values["jid"]...); {
		case len(found) > 1:
			return nil, ErrUnauthorized
		case len(found) == 1 && found[0] != "":
			return p.tokens.identify(found[0])
		}
	}
	return nil, nil
}

// TokenSubprotocol is how AnyCable's clients carry a token among the
// subprotocols: this and the token. It is never chosen.
const TokenSubprotocol = "anycable-token."

func subprotocolTokens(r *http.Request) (tokens []string) {
	for _, line := range r.Header.Values("Sec-Websocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(name), TokenSubprotocol); ok {
				tokens = append(tokens, token)
			}
		}
	}
	return tokens
}

// publisher returns the identity of a publish key, or nil. Every key is
// compared, whichever it is.
func (p *Policy) publisher(text string) *Identity {
	var found *PublishKey
	shown := NewSecret(text)
	for i := range p.cfg.PublishKeys {
		if p.cfg.PublishKeys[i].Key.Equal(shown) {
			found = &p.cfg.PublishKeys[i]
		}
	}
	if found == nil || text == "" {
		return nil
	}
	if len(found.Prefixes) == 0 {
		return &Identity{Admin: true, Grants: []Grant{{Read: true, Publish: true}}}
	}
	id := &Identity{}
	for _, prefix := range found.Prefixes {
		id.Grants = append(id.Grants, Grant{Prefix: prefix, Read: true, Publish: true})
	}
	return id
}

// failure counts credentials that were wrong.
func (p *Policy) failure(err error, addr netip.Addr) error {
	if errors.Is(err, ErrUnauthorized) && p.fails.note(addr) {
		return ErrTooManyFailures
	}
	return err
}

// Subscribe returns what an identifier leads to; text is the identifier as it
// came. The error is a *protocol.CommandError when the subscription is refused
// for good, or wraps [ErrUnavailable].
func (p *Policy) Subscribe(ctx context.Context, who *Identity, text string, id protocol.Identifier) (Access, error) {
	v := &p.pubsub
	switch id.Channel {
	case ChannelPubSub:
	case ChannelTurbo:
		v = &p.turbo
	default:
		if p.app == nil {
			return Access{}, reject(ReasonUnknownChannel, "the channels are $pubsub and Turbo::StreamsChannel")
		}
		return p.consult(ctx, who, text, "")
	}
	if id.SignedStreamName != "" {
		s, err := p.signed(who, v, id.SignedStreamName)
		if err != nil {
			return Access{}, rejection(err)
		}
		return Access{Streams: []string{s.Stream}, Expires: s.Expires}, nil
	}
	if id.Channel == ChannelTurbo {
		return Access{}, reject(ReasonUnauthorized, "Turbo::StreamsChannel takes a signed_stream_name")
	}
	if protocol.CheckStream(id.StreamName) != nil {
		return Access{}, reject(ReasonMalformed, "stream_name must be 1 to 255 bytes of UTF-8 without control characters")
	}
	if p.public(id.StreamName) || who.can(false, id.StreamName) {
		return Access{Streams: []string{id.StreamName}}, nil
	}
	if p.app == nil {
		return Access{}, rejection(ErrUnauthorized)
	}
	return p.consult(ctx, who, text, id.StreamName)
}

// consult asks the application about an identifier; stream is the name in it,
// or "".
func (p *Policy) consult(ctx context.Context, who *Identity, text, stream string) (Access, error) {
	a, err := p.app.ask(ctx, who, "subscribe", text, stream)
	if err != nil {
		return Access{}, err
	}
	if a.allow && len(a.streams) == 0 && stream != "" {
		a.streams = []string{stream}
	}
	if !a.allow || len(a.streams) == 0 {
		return Access{}, reject(ReasonUnauthorized, "the application refuses this subscription")
	}
	return Access{Streams: a.streams, Expires: a.expires}, nil
}

// signed checks a signed name of one channel class, and that it is for who.
func (p *Policy) signed(who *Identity, v *verifier, text string) (Signed, error) {
	s, err := v.verify(text, p.now())
	if err != nil {
		return Signed{}, err
	}
	if s.Subject != "" && (who == nil || !equalText(s.Subject, who.Subject)) {
		return Signed{}, fmt.Errorf("%w: signed for somebody else", ErrUnauthorized)
	}
	return s, nil
}

func (p *Policy) public(stream string) bool {
	return slices.ContainsFunc(p.cfg.PublicStreams, func(prefix string) bool { return strings.HasPrefix(stream, prefix) })
}

// Signed returns what a signed name of either channel class opens over HTTP.
func (p *Policy) Signed(who *Identity, text string) (Signed, error) {
	if err := p.known(who); err != nil {
		return Signed{}, err
	}
	s, err := p.signed(who, &p.pubsub, text)
	if err != nil && !errors.Is(err, ErrExpired) {
		if turbo, terr := p.signed(who, &p.turbo, text); terr == nil || errors.Is(terr, ErrExpired) {
			s, err = turbo, terr
		}
	}
	if err != nil && !errors.Is(err, ErrExpired) {
		return Signed{}, p.failure(ErrUnauthorized, who.addr)
	}
	return s, err
}

// known returns an error when a token is required and who has shown none.
func (p *Policy) known(who *Identity) error {
	if p.cfg.RequireToken && !who.known {
		return ErrUnauthorized
	}
	return nil
}

// Read returns an error unless who may read a stream by its plain name. It does
// not depend on whether the stream exists.
func (p *Policy) Read(ctx context.Context, who *Identity, stream string) error {
	if err := p.known(who); err != nil {
		return err
	}
	if p.public(stream) || who.can(false, stream) {
		return nil
	}
	if p.app != nil {
		identifier := `{"channel":"` + ChannelPubSub + `","stream_name":` + string(appendJSON(nil, stream)) + `}`
		a, err := p.consult(ctx, who, identifier, stream)
		if err == nil && slices.Contains(a.Streams, stream) {
			return nil
		}
		if errors.Is(err, ErrUnavailable) {
			return err
		}
	}
	return refusal(who)
}

// Publish returns an error unless who may broadcast to a stream.
func (p *Policy) Publish(who *Identity, stream string) error {
	if who.can(true, stream) {
		return nil
	}
	return refusal(who)
}

// Publisher returns an error unless who may broadcast to some stream: whoever
// may not need not send the rest of the request.
func (p *Policy) Publisher(who *Identity) error {
	if slices.ContainsFunc(who.Grants, func(g Grant) bool { return g.Publish }) {
		return nil
	}
	return refusal(who)
}

// Administer returns an error unless who may administer the server.
func (p *Policy) Administer(who *Identity) error {
	if who.Admin {
		return nil
	}
	return refusal(who)
}

// Metrics returns an error unless who may see the figures of the server.
func (p *Policy) Metrics(who *Identity) error {
	if p.cfg.PublicMetrics {
		return nil
	}
	return p.Administer(who)
}

// refusal is the answer to somebody who may not, and to nobody in particular.
func refusal(who *Identity) error {
	if who.known {
		return ErrForbidden
	}
	return ErrUnauthorized
}
