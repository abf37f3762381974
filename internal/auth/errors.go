package auth

import (
	"errors"

	"github.com/chronocast/chronocast/protocol"
)

// Why a request is refused. The texts are for clients: none says more than the
// client knows, and none depends on whether a stream exists.
var (
	// ErrForbidden: who asks may not do this, or the request comes from where
	// none may come from. It may be wrapped with why.
	ErrForbidden = errors.New("auth: forbidden")
	// ErrUnauthorized: there are no credentials, or none that this server
	// accepts.
	ErrUnauthorized = errors.New("auth: unauthorized")
	// ErrExpired: the credentials were right and are too old now.
	ErrExpired = errors.New("auth: token expired")
	// ErrUnavailable: who decides does not answer. Nothing is permitted then.
	ErrUnavailable = errors.New("auth: the application does not answer")
	// ErrTooManyFailures: this address has shown too many wrong credentials.
	ErrTooManyFailures = errors.New("auth: too many failures")
	// ErrTooManyConnections: the server, or this address, has as many as it may.
	ErrTooManyConnections = errors.New("auth: too many connections")
)

// Reasons of a refused subscription.
const (
	ReasonUnauthorized   = "unauthorized"
	ReasonTokenExpired   = "token_expired"
	ReasonMalformed      = "malformed"
	ReasonUnknownChannel = "unknown_channel"
	// ReasonAuthorizerUnavailable: the same command may succeed in a moment.
	ReasonAuthorizerUnavailable = "authorizer_unavailable"
)

func reject(reason, message string) error {
	return &protocol.CommandError{Reason: reason, Message: message}
}

// rejection makes a refused subscription of an error of a verifier.
func rejection(err error) error {
	switch {
	case errors.Is(err, ErrExpired):
		return reject(ReasonTokenExpired, "the signed stream name has expired")
	case errors.Is(err, ErrUnavailable):
		return err
	}
	return reject(ReasonUnauthorized, "no access to this stream")
}
