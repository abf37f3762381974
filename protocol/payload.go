package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxPayloadDepth is how deep arrays and objects of a payload may be nested. A
// client whose JSON parser gives up on a frame loses the stream, so what some
// parsers cannot read is refused before it takes an offset.
const MaxPayloadDepth = 512

// ErrPayload reports what cannot be a payload. It is wrapped with the cause;
// test with errors.Is.
var ErrPayload = errors.New("protocol: the payload cannot be broadcast")

// CheckPayload returns an error that wraps [ErrPayload] unless data can be
// broadcast: one JSON text, valid UTF-8, nested at most [MaxPayloadDepth]
// deep. What passes is stored and sent as it is.
func CheckPayload(data []byte) error {
	switch {
	case !utf8.Valid(data):
		return fmt.Errorf("%w: it is not valid UTF-8", ErrPayload)
	case !json.Valid(data):
		return fmt.Errorf("%w: it is not valid JSON", ErrPayload)
	case tooDeep(data):
		return fmt.Errorf("%w: it is nested more than %d deep", ErrPayload, MaxPayloadDepth)
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
	return appendQuoted(make([]byte, 0, quotedLen(text)), text), nil
}

// quotedLen returns the length of what appendQuoted makes of valid text.
func quotedLen(text []byte) int {
	n := len(text) + 2
	for _, c := range text {
		switch {
		case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
			n++
		case c < 0x20:
			n += 5
		}
	}
	return n
}

// tooDeep reports whether valid JSON text is nested deeper than
// MaxPayloadDepth.
func tooDeep(data []byte) bool {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= MaxPayloadDepth {
		return false
	}
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = skipString(data, i) - 1
		case '[', '{':
			if depth++; depth > MaxPayloadDepth {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}
