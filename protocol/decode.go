package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Bounds of a client frame. The size of the whole frame is bounded by whoever
// reads the socket.
const (
	MaxCommandBytes   = 64  // longest name of a command
	MaxHistoryStreams = 100 // most streams in one history request
	// MaxSince is the latest time a history request may name, the end of the
	// year 9999 in unix seconds. Milliseconds sent by mistake lie past it.
	MaxSince = 253402300799
)

// ForeignEpoch stands for the epoch of a position that no Chronocast server
// issued. It differs from the epoch of every stream, so [Span.Check] answers
// [ReasonEpochChanged]. A client that was connected to an AnyCable server
// before has such positions.
const ForeignEpoch Epoch = -1

// maxEpochBytes bounds an epoch string that is not one of ours.
const maxEpochBytes = 64

// reasonMalformed is the Reason of every CommandError made here.
const reasonMalformed = "malformed"

// Decode reads one client frame; see [Codec].
func (c *jsonCodec) Decode(frame []byte) (Command, error) {
	fail := &CommandError{Reason: reasonMalformed}
	if !validJSON(frame) {
		fail.Message = "the frame is not valid JSON in UTF-8, or nested too deep"
		return Command{}, fail
	}
	var name, identifier, data, history, token []byte
	object, _ := members(frame, func(key, value []byte) error {
		switch string(key) {
		case "command":
			name = value
		case "identifier":
			identifier = value
		case "data":
			data = value
		case "history":
			history = value
		case "token":
			token = value
		}
		return nil
	})
	if !object {
		fail.Message = "the frame is not a JSON object"
		return Command{}, fail
	}

	var cmd Command
	var ok bool
	if cmd.Name, ok = stringValue(name); !ok || cmd.Name == "" || len(cmd.Name) > MaxCommandBytes {
		fail.Message = fmt.Sprintf("command must be a string of 1 to %d bytes", MaxCommandBytes)
		return Command{}, fail
	}
	fail.Command = cmd.Name
	switch cmd.Name {
	case "pong":
		return cmd, nil
	case "token":
		if cmd.Data, ok = stringValue(token); !ok || cmd.Data == "" {
			fail.Message = "token must be a string"
			return Command{}, fail
		}
		return cmd, nil
	}

	cmd.Identifier, ok = stringValue(identifier)
	switch {
	case len(identifier) == 0:
		fail.Message = "identifier is missing"
	case identifier[0] != '"':
		fail.Message = "identifier must be a string that holds JSON, as JSON.stringify makes it"
	case !ok:
		fail.Message = "identifier holds half of a surrogate pair"
	case cmd.Identifier == "":
		fail.Message = "identifier is empty"
	}
	if fail.Message != "" {
		return Command{}, fail
	}
	fail.Identifier = cmd.Identifier

	var err error
	switch cmd.Name {
	case "subscribe":
		if !isNull(history) {
			cmd.History, err = decodeHistory(history)
		}
	case "history":
		cmd.History, err = decodeHistory(history)
	case "message":
		if cmd.Data, ok = stringValue(data); !ok || !validJSON([]byte(cmd.Data)) {
			err = errors.New("data must be a string that holds JSON, as JSON.stringify makes it")
		}
	}
	if err != nil {
		fail.Message = err.Error()
		return Command{}, fail
	}
	return cmd, nil
}

// decodeHistory reads the member "history". Its errors are sentences for the
// client, without the package's prefix.
func decodeHistory(raw []byte) (*HistoryRequest, error) {
	var since, streams []byte
	object, _ := members(raw, func(key, value []byte) error {
		switch string(key) {
		case "since":
			since = value
		case "streams":
			streams = value
		}
		return nil
	})
	if !object {
		return nil, errors.New("history must be an object with since, streams or both")
	}
	req := new(HistoryRequest)
	var err error
	if req.Since, err = decodeSince(since); err != nil {
		return nil, err
	}
	if isNull(streams) {
		return req, nil
	}
	n := 0
	object, err = members(streams, func(key, value []byte) error {
		if n++; n > MaxHistoryStreams {
			return fmt.Errorf("history.streams may name at most %d streams", MaxHistoryStreams)
		}
		stream := string(key)
		if CheckStream(stream) != nil {
			return errors.New("history.streams holds what cannot be the name of a stream")
		}
		p, err := decodePosition(value)
		if err != nil {
			return err
		}
		if req.Streams == nil {
			req.Streams = make(map[string]Position)
		}
		req.Streams[stream] = p
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !object {
		return nil, errors.New("history.streams must be an object of positions by stream name")
	}
	return req, nil
}

// decodeSince reads a time in unix seconds. false is how AnyCable's client
// spells that it has none.
func decodeSince(raw []byte) (int64, error) {
	if isNull(raw) || raw[0] == 'f' {
		return 0, nil
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return 0, errors.New("history.since must be a number of seconds since 1970")
	}
	since, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || since < 0 || since > MaxSince {
		return 0, fmt.Errorf("history.since must be a number of seconds since 1970, from 0 to %d", int64(MaxSince))
	}
	return int64(since), nil
}

// decodePosition reads {"epoch":"…","offset":n} as a message frame carries it.
func decodePosition(raw []byte) (Position, error) {
	var epoch, offset []byte
	object, _ := members(raw, func(key, value []byte) error {
		switch string(key) {
		case "epoch":
			epoch = value
		case "offset":
			offset = value
		}
		return nil
	})
	if !object {
		return Position{}, errors.New("a position must be an object with epoch and offset")
	}
	var p Position
	text, ok := stringValue(epoch)
	if !ok || text == "" || len(text) > maxEpochBytes {
		return Position{}, errors.New("epoch must be a string of decimal digits")
	}
	var err error
	if p.Epoch, err = ParseEpoch(text); err != nil {
		p.Epoch = ForeignEpoch
	}
	if p.Offset, err = parseDecimal(string(offset), MaxOffset); err != nil {
		return Position{}, fmt.Errorf("offset must be an integer from 0 to %d", uint64(MaxOffset))
	}
	return p, nil
}

// ParseIdentifier reads a subscription identifier: a JSON object with a
// channel, the stream's name, plain or signed, and maybe a position as epoch
// and offset. Both halves of the position are strings (an offset may be a
// number too) because that is how they come out of a page's attributes. With a
// position the token of the page is read too, when there is one.
// Members with other names are the application's own and left alone. The
// error is a *CommandError.
func ParseIdentifier(s string) (Identifier, error) {
	fail := func(format string, args ...any) (Identifier, error) {
		return Identifier{}, &CommandError{Reason: reasonMalformed, Message: fmt.Sprintf(format, args...), Identifier: s}
	}
	raw := []byte(s)
	if !validJSON(raw) {
		return fail("identifier does not hold valid JSON")
	}
	var channel, name, signed, epoch, offset, page []byte
	object, _ := members(raw, func(key, value []byte) error {
		switch string(key) {
		case "channel":
			channel = value
		case "stream_name":
			name = value
		case "signed_stream_name":
			signed = value
		case "epoch":
			epoch = value
		case "offset":
			offset = value
		case "page":
			page = value
		}
		return nil
	})
	if !object {
		return fail("identifier does not hold a JSON object")
	}
	var id Identifier
	var ok bool
	if id.Channel, ok = stringValue(channel); !ok || id.Channel == "" {
		return fail("channel in the identifier must be a string")
	}
	if id.StreamName, ok = stringValue(name); !ok && !isNull(name) {
		return fail("stream_name in the identifier must be a string")
	}
	if id.SignedStreamName, ok = stringValue(signed); !ok && !isNull(signed) {
		return fail("signed_stream_name in the identifier must be a string")
	}
	if isNull(epoch) && isNull(offset) {
		return id, nil
	}
	if isNull(epoch) || isNull(offset) {
		return fail("epoch and offset in the identifier go together")
	}
	text, ok := stringValue(epoch)
	at := new(Position)
	var err error
	if at.Epoch, err = ParseEpoch(text); !ok || err != nil {
		return fail("epoch in the identifier must be a string of decimal digits")
	}
	if offset[0] == '"' {
		// A string without escapes: digits need none.
		offset = bytes.TrimSuffix(offset[1:], []byte(`"`))
	}
	if at.Offset, err = parseDecimal(string(offset), MaxOffset); err != nil {
		return fail("offset in the identifier must be an integer from 0 to %d", uint64(MaxOffset))
	}
	id.At = at
	id.Page, _ = stringValue(page) // the application's own when it is something else
	return id, nil
}
