package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/chronocast/chronocast/internal/auth"
)

// maxDisconnect bounds the body of /disconnect, and so what is told the other
// nodes.
const maxDisconnect = 4 << 10

// serveDisconnect ends connections: {"sub"|"sid"|"stream":"…","reconnect":bool}.
func (s *Server) serveDisconnect(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.permit(w, r, s.opts.Authorizer.Administer); !ok {
		return
	}
	body, free, err := s.readBody(w, r, maxDisconnect)
	defer free()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var d Disconnection
	if json.Unmarshal(body, &d) != nil || d.names() != 1 {
		s.fail(w, r, refuse(http.StatusUnprocessableEntity, "malformed", `name whom to disconnect by one of "sub", "sid", "stream" and "identifier"`))
		return
	}
	s.disconnect(w, r, d)
}

// names counts by what d names connections.
func (d Disconnection) names() (n int) {
	for _, name := range []string{d.Sub, d.SID, d.Stream, d.Identifier} {
		if name != "" {
			n++
		}
	}
	return n
}

// remoteCommand reads AnyCable's {"command":"disconnect","payload":{…}}.
func remoteCommand(body []byte) (Disconnection, error) {
	var command struct {
		Command string
		Payload struct {
			Identifier string
			Reconnect  *bool
		}
	}
	err := json.Unmarshal(body, &command)
	if err != nil || command.Command != "disconnect" || command.Payload.Identifier == "" || len(body) > maxDisconnect {
		return Disconnection{}, errRemoteCommand
	}
	d := Disconnection{Identifier: command.Payload.Identifier, Reconnect: true}
	if command.Payload.Reconnect != nil {
		d.Reconnect = *command.Payload.Reconnect
	}
	return d, nil
}

func (s *Server) serveRemoteCommand(w http.ResponseWriter, r *http.Request, who *auth.Identity, body []byte) {
	err := s.opts.Authorizer.Administer(who)
	var d Disconnection
	if err == nil {
		d, err = remoteCommand(body)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.disconnect(w, r, d)
}

var errRemoteCommand = refuse(http.StatusUnprocessableEntity, "unsupported", `the only remote command is {"command":"disconnect","payload":{"identifier":"…","reconnect":bool}}`)

// disconnect does it here and on the other nodes, and answers.
func (s *Server) disconnect(w http.ResponseWriter, r *http.Request, d Disconnection) {
	closed := s.Disconnect(d)
	if s.opts.Announce != nil {
		ctx, cancel := context.WithTimeout(r.Context(), s.opts.CommandTimeout)
		defer cancel()
		text, err := json.Marshal(d)
		if err == nil {
			err = s.opts.Announce(ctx, text)
		}
		if err != nil {
			s.fail(w, r, errAnnounce)
			return
		}
	}
	writeJSON(w, http.StatusOK, append(strconv.AppendInt([]byte(`{"disconnected":`), int64(closed), 10), '}'))
}

var errAnnounce = &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the connections of this node were ended, the other nodes could not be told; try again", retry: true, log: true}

// Announced ends the connections that another node was asked to.
func (s *Server) Announced(text []byte) {
	var d Disconnection
	if json.Unmarshal(text, &d) == nil && d.names() == 1 {
		s.Disconnect(d)
	}
}

// errFull: the server has all the connections it may have.
var errFull = &problem{status: http.StatusServiceUnavailable, code: "too_many_connections", message: "the server has as many connections as it may have", retry: true}

// authProblem is the answer to an error of package auth, or nil. It tells
// nothing that depends on a stream or on what was wrong with credentials.
func authProblem(err error) *problem {
	switch {
	case errors.Is(err, auth.ErrTooManyConnections):
		return &problem{status: http.StatusTooManyRequests, code: "too_many_connections", message: "this address has as many connections as it may have", retry: true}
	case errors.Is(err, auth.ErrTooManyFailures):
		return &problem{status: http.StatusTooManyRequests, code: "too_many_failures", message: "too many wrong credentials from this address", retry: true}
	case errors.Is(err, auth.ErrExpired):
		return refuse(http.StatusUnauthorized, "token_expired", "the token, or the signed name, has expired")
	case errors.Is(err, auth.ErrUnauthorized):
		return refuse(http.StatusUnauthorized, "unauthorized", "there are no credentials, or none that are accepted here")
	case errors.Is(err, auth.ErrUnavailable):
		return &problem{status: http.StatusServiceUnavailable, code: "authorizer_unavailable", message: "the application does not say in time whether this is allowed", retry: true}
	}
	return nil
}
