package socket

import "encoding/binary"

// The frames the server writes have no mask, come in one piece and, but for the
// answers to control frames, are made by whoever pushes them.

// headerOf reads the header of a server's frame: its length and that of the
// payload.
func headerOf(frame []byte) (size, payload int) {
	switch n := int(frame[1] &^ maskBit); n {
	case 126:
		return 4, int(binary.BigEndian.Uint16(frame[2:]))
	case 127:
		return 10, int(binary.BigEndian.Uint64(frame[2:]))
	default:
		return 2, n
	}
}

// frameEnd returns where the frame ends that the byte before off belongs to: off
// itself when a frame ends there. b is one or more whole frames.
func frameEnd(b []byte, off int) int {
	end := 0
	for end < off {
		size, payload := headerOf(b[end:])
		end += size + payload
	}
	return end
}

// tally counts text frames and the bytes of their payload.
type tally struct{ frames, bytes uint64 }

// add counts the frames of b.
func (t *tally) add(b []byte) {
	for len(b) > 0 {
		size, payload := headerOf(b)
		if b[0]&0x0f == opText {
			t.frames++
			t.bytes += uint64(payload)
		}
		b = b[size+payload:]
	}
}

// controlFrame returns a control frame; the payload has at most 125 bytes.
func controlFrame(opcode byte, payload []byte) []byte {
	b := make([]byte, 0, 2+len(payload))
	b = append(b, finBit|opcode, byte(len(payload)))
	return append(b, payload...)
}

// closeFrame returns a close frame with the code.
func closeFrame(code int) []byte {
	return controlFrame(opClose, []byte{byte(code >> 8), byte(code)})
}

// forget makes up for frames that will be counted and must not be.
func (t *tally) forget(b []byte) {
	var own tally
	own.add(b)
	t.frames -= own.frames
	t.bytes -= own.bytes
}
