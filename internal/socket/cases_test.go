package socket

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// testLimit bounds a message in the cases.
const testLimit = 1000

// rawCase is what a client may send, byte by byte, and what must come of it.
type rawCase struct {
	name  string
	bytes []byte
	texts []string // messages that arrive
	pong  string   // payload of the last pong that answers; "-" is none
	code  int      // of the close frame that answers, 0 is none
}

// frame builds a client's frame as no library would: any first byte, any form
// of the length.
func frame(first byte, payload string) []byte { return frameOf(first, payload, 0, true) }

// frameOf also chooses how many bytes the length takes (0: as few as will do)
// and whether there is a mask.
func frameOf(first byte, payload string, form int, masked bool) []byte {
	n := len(payload)
	if form == 0 {
		switch {
		case n < 126:
			form = 1
		case n < 1<<16:
			form = 3
		default:
			form = 9
		}
	}
	bit := byte(0)
	if masked {
		bit = maskBit
	}
	b := []byte{first}
	switch form {
	case 1:
		b = append(b, bit|byte(n))
	case 3:
		b = binary.BigEndian.AppendUint16(append(b, bit|126), uint16(n))
	case 9:
		b = binary.BigEndian.AppendUint64(append(b, bit|127), uint64(n))
	}
	if !masked {
		return append(b, payload...)
	}
	mask := [4]byte{0x37, 0xfa, byte(n), 0x3d}
	b = append(b, mask[:]...)
	for i := range n {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// headOnly is a frame's header that announces more than ever comes.
func headOnly(first byte, n uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{first, maskBit | 127}, n)
	return append(b, 1, 2, 3, 4)
}

// rawCases are all of RFC 6455 that a client can do to a server, right and
// wrong.
func rawCases() []rawCase {
	const text, cont, fin = opText, opContinuation, finBit
	var all []rawCase
	add := func(name string, code int, bytes []byte, texts ...string) {
		all = append(all, rawCase{name: name, bytes: bytes, code: code, texts: texts, pong: "-"})
	}
	hello := frame(fin|text, "hello")

	// Section 5.2: reserved bits, opcodes, masks, lengths.
	for rsv := byte(0x10); rsv <= 0x70; rsv += 0x10 {
		for _, op := range []byte{text, opPing, opClose} {
			add(fmt.Sprintf("reserved bits %#x with opcode %#x", rsv, op), CloseProtocol, join(hello, frame(fin|rsv|op, "")), "hello")
		}
	}
	add("reserved bit on a continuation", CloseProtocol, join(frame(text, "a"), frame(fin|0x40|cont, "b")))
	for op := byte(0); op <= 15; op++ {
		switch op {
		case opContinuation, opText, opBinary, opClose, opPing, opPong:
			continue
		}
		add(fmt.Sprintf("unknown opcode %#x", op), CloseProtocol, join(hello, frame(fin|op, "x")), "hello")
		add(fmt.Sprintf("unknown opcode %#x in a message", op), CloseProtocol, join(frame(text, "a"), frame(fin|op, "x")))
	}
	for _, op := range []byte{text, opBinary, opClose, opPing, opPong} {
		add(fmt.Sprintf("no mask on opcode %#x", op), CloseProtocol, join(hello, frameOf(fin|op, "", 0, false)), "hello")
	}
	add("no mask on a continuation", CloseProtocol, join(frame(text, "a"), frameOf(fin|cont, "b", 0, false)))
	for _, n := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 124, 125, 126, 127, 128, 255, 256, 257, testLimit - 1, testLimit} {
		s := strings.Repeat("äb", n)[:n]
		if !utf8.ValidString(s) {
			s = strings.Repeat("ab", n)[:n]
		}
		add(fmt.Sprintf("%d bytes", n), 0, join(frame(fin|text, s), hello), s, "hello")
	}
	for _, n := range []int{testLimit + 1, testLimit + 2, 1 << 15, 1<<16 - 1, 1 << 16, 1 << 20} {
		add(fmt.Sprintf("%d bytes, too many", n), CloseTooBig, join(hello, frame(fin|text, strings.Repeat("x", n))), "hello")
	}
	for _, n := range []uint64{testLimit + 1<<16, 1 << 31, 1 << 32, 1<<63 - 1} {
		add(fmt.Sprintf("%d bytes announced", n), CloseTooBig, join(hello, headOnly(fin|text, n)), "hello")
	}
	for _, n := range []uint64{1 << 63, 1<<64 - 1} {
		add(fmt.Sprintf("%d bytes announced", n), CloseProtocol, join(hello, headOnly(fin|text, n)), "hello")
	}
	for _, n := range []int{0, 1, 125} {
		add(fmt.Sprintf("%d bytes in the 16-bit form", n), CloseProtocol, frameOf(fin|text, strings.Repeat("x", n), 3, true))
	}
	for _, n := range []int{0, 125, 126, 1<<16 - 1} {
		add(fmt.Sprintf("%d bytes in the 64-bit form", n), CloseProtocol, frameOf(fin|text, strings.Repeat("x", n), 9, true))
	}
	add("binary", CloseUnsupported, join(hello, frame(fin|opBinary, "x")), "hello")
	add("binary in fragments", CloseUnsupported, join(frame(opBinary, "x"), frame(fin|cont, "y")))
	add("empty binary", CloseUnsupported, frame(fin|opBinary, ""))

	// Section 5.4: fragments.
	word := "größe 𝄞!"
	for i := range len(word) + 1 {
		add(fmt.Sprintf("two fragments, split at %d", i), 0, join(frame(text, word[:i]), frame(fin|cont, word[i:]), hello), word, "hello")
	}
	var single []byte
	for i := range len(word) {
		op := byte(cont)
		if i == 0 {
			op = text
		}
		if i == len(word)-1 {
			op |= fin
		}
		single = append(single, frame(op, word[i:i+1])...)
	}
	add("one byte a fragment", 0, join(single, hello), word, "hello")
	add("empty fragments", 0, join(frame(text, ""), frame(cont, ""), frame(cont, ""), frame(fin|cont, ""), hello), "", "hello")
	add("a thousand empty fragments", 0, join(frame(text, "a"), []byte(strings.Repeat(string(frame(cont, "")), 1000)), frame(fin|cont, "b")), "ab")
	add("continuation of nothing", CloseProtocol, join(hello, frame(fin|cont, "x")), "hello")
	add("continuation of nothing, unfinished", CloseProtocol, join(hello, frame(cont, "x")), "hello")
	add("continuation after the end", CloseProtocol, join(frame(text, "a"), frame(fin|cont, "b"), frame(fin|cont, "c")), "ab")
	add("text in a message", CloseProtocol, join(frame(text, "a"), frame(fin|text, "b")))
	add("unfinished text in a message", CloseProtocol, join(frame(text, "a"), frame(text, "b")))
	add("binary in a message", CloseProtocol, join(frame(text, "a"), frame(fin|opBinary, "b")))
	half := strings.Repeat("x", testLimit/2)
	add("fragments up to the limit", 0, join(frame(text, half), frame(fin|cont, half), hello), half+half, "hello")
	add("fragments over the limit", CloseTooBig, join(frame(text, half), frame(cont, half), frame(fin|cont, "x")))
	add("fragments over the limit, announced", CloseTooBig, join(frame(text, "x"), headOnly(cont, testLimit)[:2], binary.BigEndian.AppendUint64(nil, 1<<20)))

	// Section 5.5: control frames.
	for _, n := range []int{0, 1, 124, 125} {
		p := strings.Repeat("p", n)
		add(fmt.Sprintf("ping of %d bytes", n), 0, join(frame(fin|opPing, p), hello), "hello")
		all[len(all)-1].pong = p
		add(fmt.Sprintf("pong of %d bytes that nobody asked for", n), 0, join(frame(fin|opPong, p), hello), "hello")
	}
	for _, op := range []byte{opClose, opPing, opPong} {
		for _, n := range []int{126, 127, 300, 1 << 16} {
			add(fmt.Sprintf("opcode %#x of %d bytes", op, n), CloseProtocol, join(hello, frame(fin|op, strings.Repeat("p", n))), "hello")
		}
		add(fmt.Sprintf("opcode %#x in fragments", op), CloseProtocol, join(hello, frame(op, "a"), frame(fin|cont, "b")), "hello")
		add(fmt.Sprintf("opcode %#x with the 16-bit form", op), CloseProtocol, frameOf(fin|op, "p", 3, true))
	}
	add("ping between fragments", 0, join(frame(text, "a"), frame(fin|opPing, "p"), frame(fin|cont, "b"), hello), "ab", "hello")
	all[len(all)-1].pong = "p"
	add("ping between the halves of a character", 0, join(frame(text, "\xc3"), frame(fin|opPing, "\xff"), frame(fin|cont, "\xa4")), "ä")
	all[len(all)-1].pong = "\xff"
	add("close between fragments", CloseNormal, join(frame(text, "a"), frame(fin|opClose, "\x03\xe8"), frame(fin|cont, "b")))

	// Section 5.5.1 and 7.4: closing.
	add("close without a code", CloseNormal, join(hello, frame(fin|opClose, "")), "hello")
	add("close with half a code", CloseProtocol, frame(fin|opClose, "\x03"))
	add("close with a reason of 123 bytes", CloseNormal, frame(fin|opClose, "\x03\xe8"+strings.Repeat("r", 123)))
	add("close with a reason that is not UTF-8", CloseInvalidData, frame(fin|opClose, "\x03\xe8\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80"))
	add("nothing counts after a close", CloseNormal, join(frame(fin|opClose, "\x03\xe8"), hello, frame(fin|0x70|text, "")))
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		add(fmt.Sprintf("close %d", code), code, frame(fin|opClose, string(binary.BigEndian.AppendUint16(nil, uint16(code)))+"bye"))
	}
	for _, code := range []int{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		add(fmt.Sprintf("close %d, which is none", code), CloseProtocol, frame(fin|opClose, string(binary.BigEndian.AppendUint16(nil, uint16(code)))))
	}

	// Section 8.1: text is UTF-8.
	for name, bad := range map[string]string{
		"lone continuation": "a\x80b", "overlong slash": "\xc0\xaf", "overlong in three": "\xe0\x80\xaf", "overlong in four": "\xf0\x80\x80\xaf",
		"surrogate": "\xed\xa0\x80", "above U+10FFFF": "\xf4\x90\x80\x80", "0xff": "ab\xffcd", "0xfe": "\xfe", "five bytes": "\xf8\x88\x80\x80\x80",
		"cut in two": "\xc3", "cut in three": "a\xe2\x82", "cut in four": "\xf0\x9d\x84", "cut, then more": "\xe2\x82a", "head after head": "\xc3\xc3\xa4",
	} {
		add("text with "+name, CloseInvalidData, join(hello, frame(fin|text, bad)), "hello")
		for i := range len(bad) + 1 {
			add(fmt.Sprintf("text with %s, split at %d", name, i), CloseInvalidData, join(frame(text, bad[:i]), frame(fin|cont, bad[i:]), hello))
		}
	}
	for _, good := range []string{"\u0000", "\u007f\u0080", "\u07ff\u0800", "\ud7ff\ue000", "\uffff\U00010000", "\U0010ffff", "\ufeffx", "\ufffd"} {
		add(fmt.Sprintf("text %+q", good), 0, join(frame(fin|text, good), hello), good, "hello")
	}
	return all
}
