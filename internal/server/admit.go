package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/internal/socket"
	"github.com/chronocast/chronocast/protocol"
)

var (
	_ Authorizer = auth.Open{}
	_ Authorizer = (*auth.Policy)(nil)
)

// Authorizer decides who may come in, what they may read and what they may do.
// Whatever the way in, it is asked; see package auth for what the errors mean.
type Authorizer interface {
	session.Authorizer
	// Admit returns an error that tells why r may not be served at all. It is
	// asked for every request, whatever its path.
	Admit(r *http.Request) error
	// Identify returns who an HTTP request speaks for, Connect who a connection
	// that stays does; sid is the id it will have. After auth.ErrNoToken the
	// identity is what Present is given, with the token that came later.
	Identify(r *http.Request) (*auth.Identity, error)
	Connect(ctx context.Context, r *http.Request, sid string) (*auth.Identity, error)
	Present(ctx context.Context, who *auth.Identity, token string) (*auth.Identity, error)
	// Read, Publish, Publisher, Administer and Metrics return an error unless
	// who may: read this stream, broadcast to it, to any at all, end
	// connections, see the figures.
	Read(ctx context.Context, who *auth.Identity, stream string) error
	Publish(who *auth.Identity, stream string) error
	Publisher(who *auth.Identity) error
	Administer(who *auth.Identity) error
	Metrics(who *auth.Identity) error
	// Signed returns what a signed stream name opens.
	Signed(who *auth.Identity, name string) (auth.Signed, error)
	// PagesPublish says whether pages in a browser may publish.
	PagesPublish() bool
}

// permit says whether the request may go on. check is given who it speaks for;
// nil asks for nothing more than that its credentials, if any, are right. What
// may not go on has been answered.
func (s *Server) permit(w http.ResponseWriter, r *http.Request, check func(who *auth.Identity) error) (*auth.Identity, bool) {
	who, err := s.opts.Authorizer.Identify(r)
	if err == nil && check != nil {
		err = check(who)
	}
	if err != nil {
		s.fail(w, r, err)
		return nil, false
	}
	return who, true
}

// code says whether r asks for the client's code, which is the same for all: a
// page of any origin may load it from a server that is not only this machine's.
func (s *Server) code(r *http.Request) bool {
	path := r.URL.EscapedPath()
	return !s.opts.Authorizer.PagesPublish() && (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		(strings.HasPrefix(path, "/client") || strings.HasPrefix(path, "/turbo"))
}

// crossOrigin lets a page of an admitted origin read the answer, where pages
// read: what they cannot ask for they need not read either.
func (s *Server) crossOrigin(h http.Header, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return
	}
	h.Add("Vary", "Origin")
	path := r.URL.EscapedPath()
	if !s.opts.Authorizer.PagesPublish() && !strings.HasPrefix(path, "/streams/") && !strings.HasPrefix(path, "/signed/") && !s.code(r) {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Retry-After")
}

// preflight answers what a page may ask for.
func (s *Server) preflight(h http.Header, methods []string) {
	if !s.opts.Authorizer.PagesPublish() {
		methods = slices.DeleteFunc(slices.Clone(methods), func(m string) bool { return m == http.MethodPost })
	}
	h.Set("Access-Control-Allow-Methods", strings.Join(append(methods, http.MethodOptions), ", "))
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "600")
}

// serveSigned serves what lies below /signed/: the head and the history of the
// stream that a signed name opens.
func (s *Server) serveSigned(w http.ResponseWriter, r *http.Request, rest string) {
	escaped, under, deeper := strings.Cut(rest, "/")
	serve := s.serveHead
	switch {
	case !deeper:
	case under == "messages":
		serve = s.serveHistory
	default:
		s.fail(w, r, errNoPage)
		return
	}
	if !s.allow(w, r, http.MethodGet, http.MethodHead) {
		return
	}
	var stream string
	_, ok := s.permit(w, r, func(who *auth.Identity) error {
		name, err := url.PathUnescape(escaped)
		if err != nil {
			return auth.ErrUnauthorized
		}
		signed, err := s.opts.Authorizer.Signed(who, name)
		stream = signed.Stream
		return err
	})
	if ok {
		serve(w, r, stream)
	}
}

// arrival is a client that is about to be connected.
type arrival struct {
	id   string
	who  *auth.Identity
	err  error // why it is sent away once it is connected; nil lets it stay
	seat *seat
}

// arrive finds out who a client is, before it is connected. A refusal that it
// can only be told as a client of Action Cable is in the arrival; the error is
// one to answer over HTTP. A browser hides the answer to a handshake from its
// page, so clients would go on knocking.
func (s *Server) arrive(r *http.Request, id string, codec protocol.Codec) (arrival, error) {
	seat, err := s.door.enter(r)
	if err != nil {
		return arrival{}, err
	}
	who, err := s.opts.Authorizer.Connect(r.Context(), r, id)
	a := arrival{id: id, who: who, seat: seat}
	switch {
	case err == nil:
	case errors.Is(err, auth.ErrNoToken) && codec.Level() >= protocol.LevelChronocast:
		a.err = auth.ErrNoToken
	case errors.Is(err, auth.ErrUnauthorized):
		a.err = auth.ErrUnauthorized
	case errors.Is(err, auth.ErrExpired):
		a.err = auth.ErrExpired
	default:
		s.door.leave(seat)
		return arrival{}, err
	}
	return a, nil
}

// settle begins the conversation with a client that has just been connected, or
// ends it.
func (s *Server) settle(c *conn, a arrival) {
	switch {
	case a.err == nil:
		c.sess.Identify(a.who)
		s.door.take(a.seat, c, a.who)
		c.sess.Welcome(context.Background()) // first of all, before a ping can reach the connection
	case errors.Is(a.err, auth.ErrNoToken):
		c.sess.Await(func(ctx context.Context, token string) (*auth.Identity, bool) {
			who, err := a.who, a.err
			if token != "" {
				who, err = s.opts.Authorizer.Present(ctx, a.who, token)
			}
			if err != nil {
				c.dismiss(dismissal(err))
				return nil, false
			}
			s.door.take(a.seat, c, who)
			return who, true
		})
		s.door.take(a.seat, c, nil)
	default:
		s.door.take(a.seat, c, nil)
		c.dismiss(dismissal(a.err))
	}
}

// dismissal is what a client is told whose credentials will not do.
func dismissal(err error) (reason protocol.DisconnectReason, reconnect bool) {
	switch {
	case errors.Is(err, auth.ErrExpired):
		return protocol.DisconnectTokenExpired, true
	case errors.Is(err, auth.ErrUnavailable):
		return protocol.DisconnectServerRestart, true
	}
	return protocol.DisconnectUnauthorized, false
}

// dismiss ends the connection with a reason of its own; what is queued is
// dropped.
func (c *conn) dismiss(reason protocol.DisconnectReason, reconnect bool) {
	frame := protocol.AppendTextFrame(nil, c.codec.AppendDisconnect(nil, reason, reconnect))
	if c.sock.End(socket.End{Frame: frame, Code: closeCodes[reason], Grace: cutGrace, Drop: true}) {
		c.srv.metrics.cut(reason)
	}
}
