package protocol

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxPayloadDepth is how deep arrays and objects may be nested, in a payload
// and in everything else that is read. A client whose JSON parser gives up on a
// frame loses the stream, so what some parsers cannot read is refused before it
// takes an offset.
const MaxPayloadDepth = 512

// ErrPayload reports what cannot be a payload. It is wrapped with the cause;
// test with errors.Is.
var ErrPayload = errors.New("protocol: the payload cannot be broadcast")

// CheckPayload returns an error that wraps [ErrPayload] unless data can be
// broadcast: one JSON text, valid UTF-8, nested at most [MaxPayloadDepth]
// deep. What passes is stored and sent as it is.
func CheckPayload(data []byte) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("%w: it is not valid UTF-8", ErrPayload)
	}
	switch check(data) {
	case broken:
		return fmt.Errorf("%w: it is not valid JSON", ErrPayload)
	case deep:
		return errDeep()
	}
	return nil
}

// QuotePayload makes text a payload: one JSON string in memory of its own.
// Nothing but what JSON requires is escaped. Text that is not valid UTF-8
// gives an error that wraps [ErrPayload].
func QuotePayload(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: the text is not valid UTF-8", ErrPayload)
	}
	return appendText(make([]byte, 0, quotedLen(text)), text), nil
}

func errDeep() error {
	return fmt.Errorf("%w: it is nested more than %d deep", ErrPayload, MaxPayloadDepth)
}
