package hubtest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/chronocast/chronocast/protocol"
)

// Event is one thing a client learns from a frame.
type Event struct {
	Type       string // "message", or the type of the frame
	Identifier string
	Stream     string
	Position   protocol.Position // of the message, or the head a reset tells
	Data       string            // payload of a message, as sent
	Replay     bool
	Reason     string
}

type wireFrame struct {
	Type       string          `json:"type"`
	Identifier string          `json:"identifier"`
	Stream     string          `json:"stream_id"`
	Epoch      string          `json:"epoch"`
	Offset     uint64          `json:"offset"`
	Message    json.RawMessage `json:"message"`
	Replay     bool            `json:"replay"`
	Reason     string          `json:"reason"`
	Messages   []struct {
		Offset  uint64          `json:"offset"`
		Message json.RawMessage `json:"message"`
	} `json:"messages"`
}

// Decode reads a frame as a client does.
func Decode(frame []byte) ([]Event, error) {
	var w wireFrame
	if err := json.Unmarshal(frame, &w); err != nil {
		return nil, fmt.Errorf("hubtest: frame %.80q: %w", frame, err)
	}
	e := Event{Type: w.Type, Identifier: w.Identifier, Stream: w.Stream, Replay: w.Replay, Reason: w.Reason}
	if w.Epoch != "" {
		epoch, err := strconv.ParseInt(w.Epoch, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("hubtest: frame %.80q: %w", frame, err)
		}
		e.Position = protocol.Position{Epoch: protocol.Epoch(epoch), Offset: w.Offset}
	}
	switch w.Type {
	case "":
		e.Type, e.Data = "message", string(w.Message)
	case "messages":
		var events []Event
		for _, m := range w.Messages {
			e := e
			e.Type, e.Data, e.Position.Offset = "message", string(m.Message), m.Offset
			events = append(events, e)
		}
		return events, nil
	}
	return []Event{e}, nil
}

// Codec counts how often messages are encoded.
type Codec struct {
	protocol.Codec
	Encodes atomic.Int64
}

// NewCodec wraps the codec of a subprotocol.
func NewCodec(subprotocol string) *Codec {
	c, ok := protocol.ForSubprotocols([]string{subprotocol})
	if !ok {
		panic("hubtest: no codec for " + subprotocol)
	}
	return &Codec{Codec: c}
}

// Frames implements protocol.Codec.
func (c *Codec) Frames(dst [][]byte, a *protocol.Address, epoch protocol.Epoch, msgs []protocol.Message, replay bool) [][]byte {
	c.Encodes.Add(1)
	return c.Codec.Frames(dst, a, epoch, msgs, replay)
}
