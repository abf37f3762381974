package protocol

// maxHeader is the longest header of a frame from the server.
const maxHeader = 10

// textFrame is the first byte of a whole text frame: the final fragment, no
// extension, opcode 1.
const textFrame = 0x81

// AppendTextFrame appends text as one WebSocket text frame from a server:
// whole, and not masked. A text that is empty appends nothing, as the frames a
// level has no word for are empty.
func AppendTextFrame(dst, text []byte) []byte {
	if len(text) == 0 {
		return dst
	}
	return append(appendHeader(dst, len(text)), text...)
}

// CutTextFrame returns the text of the frame that wire begins with, and what
// follows it; false when wire does not begin with a whole text frame as
// [AppendTextFrame] writes it. Both share memory with wire.
func CutTextFrame(wire []byte) (text, rest []byte, ok bool) {
	if len(wire) < 2 || wire[0] != textFrame || wire[1] > 127 {
		return nil, wire, false
	}
	size, head := uint64(wire[1]), 2
	switch wire[1] {
	case 126:
		head = 4
	case 127:
		head = 10
	}
	if len(wire) < head {
		return nil, wire, false
	}
	if head > 2 {
		size = 0
		for _, b := range wire[2:head] {
			size = size<<8 | uint64(b)
		}
	}
	if size > uint64(len(wire)-head) {
		return nil, wire, false
	}
	end := head + int(size)
	return wire[head:end:end], wire[end:], true
}

// headerSize is what the header of a text frame takes.
func headerSize(text int) int {
	switch {
	case text < 126:
		return 2
	case text < 1<<16:
		return 4
	}
	return maxHeader
}

func appendHeader(dst []byte, text int) []byte {
	switch n := uint64(text); headerSize(text) {
	case 2:
		return append(dst, textFrame, byte(n))
	case 4:
		return append(dst, textFrame, 126, byte(n>>8), byte(n))
	default:
		return append(dst, textFrame, 127, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}
