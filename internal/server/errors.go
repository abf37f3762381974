package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/gorilla/websocket"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// problem is an answer that refuses: the status, a word for machines and a
// sentence for people.
type problem struct {
	status  int
	code    string
	message string
	retry   bool // the same request may well succeed in a moment
	log     bool // somebody has to look at the server
}

func (p *problem) Error() string { return p.code + ": " + p.message }

func refuse(status int, code, message string) *problem {
	return &problem{status: status, code: code, message: message}
}

// problems maps what the layers below return to answers. The first entry that
// matches counts, so the more telling error stands before the one it is
// wrapped together with.
var problems = []struct {
	err error
	problem
}{
	{auth.ErrForbidden, problem{status: http.StatusForbidden, code: "forbidden"}},
	{protocol.ErrStreamName, problem{status: http.StatusBadRequest, code: "malformed", message: "a stream name is 1 to 255 bytes of UTF-8 without control characters"}},
	{protocol.ErrTooManyBroadcasts, problem{status: http.StatusUnprocessableEntity, code: "too_many_broadcasts", message: "too many broadcasts in one request"}},
	{protocol.ErrRemoteCommand, *errRemoteCommand},
	{protocol.ErrPayload, problem{status: http.StatusUnprocessableEntity, code: "bad_payload"}},
	{protocol.ErrBroadcast, problem{status: http.StatusUnprocessableEntity, code: "bad_broadcast"}},
	{sequencer.ErrKeyConflict, problem{status: http.StatusConflict, code: "key_conflict", message: "the idempotency key was used with another payload"}},
	{sequencer.ErrStreamFull, problem{status: http.StatusConflict, code: "stream_full", message: "the stream has used up its offsets", log: true}},
	{sequencer.ErrDiskFull, problem{status: http.StatusInsufficientStorage, code: "disk_full", message: "the disk of the database is full; nothing was stored", retry: true, log: true}},
	{sequencer.ErrOutcomeUnknown, problem{status: http.StatusServiceUnavailable, code: "outcome_unknown", message: "it is not known whether the broadcast was stored; retry with the same Idempotency-Key", retry: true, log: true}},
	{sequencer.ErrOverloaded, problem{status: http.StatusServiceUnavailable, code: "overloaded", message: "too many broadcasts are waiting; nothing was stored", retry: true}},
	{sequencer.ErrLocked, problem{status: http.StatusServiceUnavailable, code: "busy", message: "the stream is held by an open transaction of an application; nothing was stored", retry: true}},
	{sequencer.ErrBusy, problem{status: http.StatusServiceUnavailable, code: "busy", message: "the database does not take broadcasts at this moment; nothing was stored", retry: true, log: true}},
	{sequencer.ErrClosed, problem{status: http.StatusServiceUnavailable, code: "stopping", message: "the server is stopping; nothing was stored", retry: true}},
	{sequencer.ErrNotStored, problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the database did not take the broadcast; nothing was stored", retry: true, log: true}},
	{history.ErrUnavailable, problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the database does not answer in time", retry: true, log: true}},
	{context.Canceled, problem{status: http.StatusServiceUnavailable, code: "canceled", message: "the request was given up", retry: true}},
	{context.DeadlineExceeded, problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the database does not answer in time", retry: true, log: true}},
}

// problemOf finds the answer to an error. What is in no table is a fault of
// the server's own: the client may try again and somebody has to look.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return refuse(http.StatusRequestEntityTooLarge, "too_large", "the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes")
	}
	if p := authProblem(err); p != nil {
		return p
	}
	for _, known := range problems {
		if errors.Is(err, known.err) {
			p := known.problem
			if p.message == "" {
				p.message = sentence(err)
			}
			return &p
		}
	}
	return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the server cannot answer at the moment", retry: true, log: true}
}

// sentence is the text of an error for a client: without the package's prefix.
func sentence(err error) string {
	text := err.Error()
	for i := 0; i+1 < len(text); i++ {
		if text[i] == ':' && text[i+1] == ' ' {
			return text[i+2:]
		}
	}
	return text
}

// fail answers r with what err means.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	s.metrics.refused(p.code)
	if p.log {
		s.log.Warn("request not served", zap.String("method", r.Method), zap.String("code", p.code), zap.Error(err))
	}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.retry {
		w.Header().Set("Retry-After", "1")
	}
	b := appendMember(nil, '{', "error", p.code)
	b = appendMember(b, ',', "message", p.message)
	writeJSON(w, p.status, append(b, '}'))
}

// gone answers that a position cannot be continued, and where the stream is.
func (s *Server) gone(w http.ResponseWriter, stream string, reason protocol.Reason, span protocol.Span) {
	s.metrics.refused(string(reason))
	message := map[protocol.Reason]string{
		protocol.ReasonEpochChanged: "the position belongs to another epoch of the stream",
		protocol.ReasonTrimmed:      "messages after the position are no longer kept",
		protocol.ReasonAhead:        "the position lies past the newest message",
	}[reason]
	b := appendMember(nil, '{', "error", string(reason))
	b = appendMember(b, ',', "message", message)
	b = appendMember(b, ',', "stream", stream)
	b = appendSpan(b, span)
	writeJSON(w, http.StatusGone, append(b, '}'))
}

// Close codes by the reason the connection is ended for.
var closeCodes = map[protocol.DisconnectReason]int{
	protocol.DisconnectUnauthorized:  websocket.ClosePolicyViolation,
	protocol.DisconnectTokenExpired:  websocket.ClosePolicyViolation,
	protocol.DisconnectServerRestart: websocket.CloseServiceRestart,
	protocol.DisconnectTooSlow:       websocket.CloseTryAgainLater,
	protocol.DisconnectRemote:        websocket.CloseNormalClosure,
	protocol.DisconnectIdleTimeout:   websocket.CloseGoingAway,
	session.DisconnectInvalidRequest: websocket.ClosePolicyViolation,
}
