package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Published is one broadcast as a publisher sent it, before it has a place.
type Published struct {
	Stream string
	Data   []byte // a payload, in memory of its own
}

// Errors of [DecodeBroadcasts], wrapped with the cause; test with errors.Is. A
// bad stream name wraps [ErrStreamName], a bad payload [ErrPayload].
var (
	// ErrBroadcast: the body is not what AnyCable's publishers send.
	ErrBroadcast = errors.New("protocol: malformed broadcast")
	// ErrTooManyBroadcasts: more in one body than the caller allows.
	ErrTooManyBroadcasts = errors.New("protocol: too many broadcasts in one request")
	// ErrRemoteCommand: the body holds a remote command, such as disconnect,
	// instead of a broadcast.
	ErrRemoteCommand = errors.New("protocol: remote commands are not supported")
)

// DecodeBroadcasts reads a body in AnyCable's format: one object
// {"stream":"…","data":"…","meta":{…}} or an array of 1 to maxItems of them.
// data is a string. When the text in it is itself valid JSON, that text is the
// payload, byte for byte; other text becomes a JSON string. meta and unknown
// members are ignored. Either every item is good or the body is refused.
func DecodeBroadcasts(body []byte, maxItems int) ([]Published, error) {
	if !validJSON(body) {
		return nil, fmt.Errorf("%w: the body is not valid JSON in UTF-8, or nested too deep", ErrBroadcast)
	}
	var items []Published
	array, err := elements(body, func(value []byte) error {
		if len(items) == maxItems {
			return fmt.Errorf("%w: at most %d", ErrTooManyBroadcasts, maxItems)
		}
		p, err := decodeBroadcast(value)
		if err != nil {
			return fmt.Errorf("%w (item %d)", err, len(items))
		}
		items = append(items, p)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case !array:
		p, err := decodeBroadcast(body)
		if err != nil {
			return nil, err
		}
		return []Published{p}, nil
	case len(items) == 0:
		return nil, fmt.Errorf("%w: an empty array", ErrBroadcast)
	}
	return items, nil
}

func decodeBroadcast(raw []byte) (Published, error) {
	var stream, data, command []byte
	object, _ := members(raw, func(key, value []byte) error {
		switch string(key) {
		case "stream":
			stream = value
		case "data":
			data = value
		case "command":
			command = value
		}
		return nil
	})
	switch {
	case !object:
		return Published{}, fmt.Errorf("%w: neither an object nor an array of objects", ErrBroadcast)
	case isNull(stream) && !isNull(command):
		return Published{}, ErrRemoteCommand
	}
	var p Published
	var ok bool
	if p.Stream, ok = stringValue(stream); !ok {
		return Published{}, fmt.Errorf("%w: stream must be a string", ErrBroadcast)
	}
	if err := CheckStream(p.Stream); err != nil {
		return Published{}, err
	}
	if isNull(data) || data[0] != '"' {
		return Published{}, fmt.Errorf("%w: data must be a string", ErrBroadcast)
	}
	text, ok := unquote(data)
	if !ok {
		return Published{}, fmt.Errorf("%w: data holds half of a surrogate pair", ErrPayload)
	}
	switch check(text) {
	case valid:
		p.Data = text
	case deep:
		// The check ends where the text becomes too deep; text that only
		// begins like that is no JSON at all.
		if json.Valid(text) {
			return Published{}, errDeep()
		}
		fallthrough
	default:
		p.Data = appendText(make([]byte, 0, quotedLen(text)), text)
	}
	return p, nil
}
