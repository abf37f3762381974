package socket

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// The opcodes of frames (RFC 6455, section 5.2).
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa

	finBit  = 0x80
	rsvBits = 0x70
	maskBit = 0x80
)

// The close codes this package sends by itself (RFC 6455, section 7.4.1).
const (
	CloseNormal      = 1000
	CloseProtocol    = 1002
	CloseUnsupported = 1003
	closeNoStatus    = 1005 // never on the wire
	CloseInvalidData = 1007
	CloseTooBig      = 1009
)

// maxControl is the longest payload of a control frame.
const maxControl = 125

// Kind is what a client has sent.
type Kind uint8

// The kinds of events.
const (
	None Kind = iota // nothing yet: more input is needed
	Text             // a whole text message, valid UTF-8
	Ping
	Pong
	Close
)

// Event is one thing a client has sent. Data is the message, or the payload of
// a control frame; of a close frame it is the reason, and Code its code, 1005
// when it has none. Data may lie in the decoder's input or in its own memory and
// is valid until Next is called again.
type Event struct {
	Kind Kind
	Code int
	Data []byte
}

// Fault is why a client's frames cannot be read any further, with the close
// code that says so.
type Fault struct {
	Code int
	Why  string
}

func (f *Fault) Error() string { return "socket: " + f.Why }

// Faults of a client. They are few and always the same, so that finding one
// costs nothing.
var (
	errReserved     = &Fault{CloseProtocol, "reserved bits are set and no extension is in use"}
	errOpcode       = &Fault{CloseProtocol, "unknown opcode"}
	errNoMessage    = &Fault{CloseProtocol, "continuation of no message"}
	errInMessage    = &Fault{CloseProtocol, "new message before the end of the last"}
	errControl      = &Fault{CloseProtocol, "control frame of more than 125 bytes, or in fragments"}
	errUnmasked     = &Fault{CloseProtocol, "frame without a mask"}
	errLength       = &Fault{CloseProtocol, "length not written in the fewest bytes"}
	errClosePayload = &Fault{CloseProtocol, "close frame with a code that is none"}
	errBinary       = &Fault{CloseUnsupported, "binary message on a text subprotocol"}
	errUTF8         = &Fault{CloseInvalidData, "text that is not UTF-8"}
	errTooBig       = &Fault{CloseTooBig, "message larger than is taken"}
)

// Decoder reads the frames of one client. It does no I/O and holds nothing but
// the fragments of an unfinished message. The zero Decoder is ready.
type Decoder struct {
	msg   []byte // of the fragments so far
	valid int    // how much of msg is known to be UTF-8
	open  bool   // a message in fragments has begun
}

// Next reads the first frame of in, unmasking it in place, and returns what it
// brings and how many bytes it took. A fragment brings nothing by itself: Next
// goes on to the frame behind it. With [None] the bytes from n on are the
// beginning of a frame and must come again, with more behind them. limit bounds
// the bytes of one message. The error is a *[Fault]; nothing can be decoded
// after it.
func (d *Decoder) Next(in []byte, limit int) (ev Event, n int, err error) {
	for {
		h, err := d.header(in[n:], limit)
		if err != nil || h.size == 0 || len(in)-n-h.size < h.length {
			return Event{}, n, err
		}
		payload := in[n+h.size : n+h.size+h.length]
		unmask(payload, in[n+h.size-4:])
		n += h.size + h.length
		switch h.opcode {
		case opPing:
			return Event{Kind: Ping, Data: payload}, n, nil
		case opPong:
			return Event{Kind: Pong, Data: payload}, n, nil
		case opClose:
			ev, err := closing(payload)
			return ev, n, err
		}
		if !d.open && h.fin {
			if !utf8.Valid(payload) {
				return Event{}, n, errUTF8
			}
			return Event{Kind: Text, Data: payload}, n, nil
		}
		d.open = true
		d.msg = append(d.msg, payload...)
		whole, ok := validUTF8(d.msg[d.valid:])
		d.valid += whole
		if !ok || h.fin && d.valid < len(d.msg) {
			return Event{}, n, errUTF8
		}
		if h.fin {
			msg := d.msg
			*d = Decoder{}
			return Event{Kind: Text, Data: msg}, n, nil
		}
	}
}

// idle says whether the decoder holds nothing.
func (d *Decoder) idle() bool { return !d.open }

// header is the header of one frame.
type header struct {
	opcode byte
	fin    bool
	size   int // of the header itself, the mask included; 0 when it is not all there
	length int // of the payload
}

// header reads a header and refuses what it can as early as it can: a frame
// that will be refused is not waited for.
func (d *Decoder) header(in []byte, limit int) (header, error) {
	if len(in) == 0 {
		return header{}, nil
	}
	h := header{opcode: in[0] & 0x0f, fin: in[0]&finBit != 0}
	switch {
	case in[0]&rsvBits != 0:
		return h, errReserved
	case h.opcode == opContinuation:
		if !d.open {
			return h, errNoMessage
		}
	case h.opcode == opText, h.opcode == opBinary:
		if d.open {
			return h, errInMessage
		}
	case h.opcode < opClose || h.opcode > opPong:
		return h, errOpcode
	case !h.fin:
		return h, errControl
	}
	if len(in) < 2 {
		return h, nil
	}
	if in[1]&maskBit == 0 {
		return h, errUnmasked
	}
	size, length := 2, uint64(in[1]&^maskBit)
	if h.opcode >= opClose && length > maxControl {
		return h, errControl
	}
	if h.opcode == opBinary {
		return h, errBinary
	}
	switch length {
	case 126:
		if size = 4; len(in) < size {
			return h, nil
		}
		if length = uint64(binary.BigEndian.Uint16(in[2:])); length < 126 {
			return h, errLength
		}
	case 127:
		if size = 10; len(in) < size {
			return h, nil
		}
		length = binary.BigEndian.Uint64(in[2:])
		if length < 1<<16 || length >= 1<<63 {
			return h, errLength
		}
	}
	if h.opcode < opClose && length > uint64(limit-len(d.msg)) {
		return h, errTooBig
	}
	if size += 4; len(in) < size {
		return h, nil
	}
	h.size, h.length = size, int(length)
	return h, nil
}

// unmask turns the payload of a client into what the client meant (section
// 5.3), eight bytes at a time. mask holds the four bytes of the mask and may
// hold more.
func unmask(payload, mask []byte) {
	key := binary.LittleEndian.Uint32(mask)
	if key == 0 {
		return
	}
	wide := uint64(key)<<32 | uint64(key)
	for len(payload) >= 8 {
		binary.LittleEndian.PutUint64(payload, binary.LittleEndian.Uint64(payload)^wide)
		payload = payload[8:]
	}
	for i := range payload {
		payload[i] ^= byte(key)
		key = bits.RotateLeft32(key, -8)
	}
}

// closing reads the payload of a close frame.
func closing(payload []byte) (Event, error) {
	switch len(payload) {
	case 0:
		return Event{Kind: Close, Code: closeNoStatus}, nil
	case 1:
		return Event{}, errClosePayload
	}
	code := int(binary.BigEndian.Uint16(payload))
	if !validCloseCode(code) {
		return Event{}, errClosePayload
	}
	if !utf8.Valid(payload[2:]) {
		return Event{}, errUTF8
	}
	return Event{Kind: Close, Code: code, Data: payload[2:]}, nil
}

// validCloseCode says whether an endpoint may send the code: one of those
// registered, or of the ranges left to libraries and applications.
func validCloseCode(code int) bool {
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014:
		return true
	}
	return code >= 3000 && code <= 4999
}

// validUTF8 returns how many bytes of b are whole characters; false when they
// are not UTF-8, whatever may follow. At most the last three bytes are the
// beginning of a character.
func validUTF8(b []byte) (whole int, ok bool) {
	if utf8.Valid(b) {
		return len(b), true
	}
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax+1; i-- {
		if utf8.RuneStart(b[i]) {
			return i, !utf8.FullRune(b[i:]) && utf8.Valid(b[:i])
		}
	}
	return 0, false
}
