package load

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

const (
	opContinue = 0x0
	opText     = 0x1
	opBinary   = 0x2
	opClose    = 0x8
	opPing     = 0x9
	opPong     = 0xa
)

// maxMessage bounds one message from a server.
const maxMessage = 64 << 20

var (
	errTooLarge = errors.New("the server sent a message of more than 64 MiB")
	errMasked   = errors.New("the server sent a masked frame")
	errFrame    = errors.New("the server sent a malformed WebSocket frame")
)

// appendFrame appends one masked frame, as a client must send it.
func appendFrame(b []byte, op byte, payload []byte) []byte {
	b = append(b, 0x80|op)
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = append(b, 0x80|126, byte(n>>8), byte(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := rand.Uint32()
	b = binary.LittleEndian.AppendUint32(b, key)
	at := len(b)
	b = append(b, payload...)
	for i := range b[at:] {
		b[at+i] ^= byte(key >> (8 * (i & 3)))
	}
	return b
}

// wsFrame is one frame of a server; body is part of the input.
type wsFrame struct {
	fin  bool
	op   byte
	body []byte
}

// parseFrame returns the first frame of b and its whole length, or 0 when b
// does not hold all of it yet; need is then how many bytes it will have, as far
// as that is known.
func parseFrame(b []byte) (f wsFrame, n, need int, err error) {
	if len(b) < 2 {
		return wsFrame{}, 0, 2, nil
	}
	f.fin, f.op = b[0]&0x80 != 0, b[0]&0x0f
	switch {
	case b[0]&0x70 != 0:
		return wsFrame{}, 0, 0, errFrame
	case b[1]&0x80 != 0:
		return wsFrame{}, 0, 0, errMasked
	}
	size, head := uint64(b[1]), 2
	switch size {
	case 126:
		if head = 4; len(b) < head {
			return wsFrame{}, 0, head, nil
		}
		size = uint64(binary.BigEndian.Uint16(b[2:]))
	case 127:
		if head = 10; len(b) < head {
			return wsFrame{}, 0, head, nil
		}
		size = binary.BigEndian.Uint64(b[2:])
	}
	control := f.op >= opClose
	switch {
	case control && (size > 125 || !f.fin), f.op > opBinary && f.op < opClose, f.op > opPong:
		return wsFrame{}, 0, 0, errFrame
	case size > maxMessage:
		return wsFrame{}, 0, 0, errTooLarge
	}
	n = head + int(size)
	if len(b) < n {
		return wsFrame{}, 0, n, nil
	}
	f.body = b[head:n]
	return f, n, n, nil
}

// handshake is the request that asks for a WebSocket. Its key is new for each
// connection; the rest is the same for all.
type handshake struct {
	before, after string // the key
	protocol      string
}

// newHandshake prepares the request. headers are whole lines without their end.
func newHandshake(path, host, origin, subprotocol string, headers []string) handshake {
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n", path, host)
	if origin != "" {
		fmt.Fprintf(&b, "Origin: %s\r\n", origin)
	}
	if subprotocol != "" {
		fmt.Fprintf(&b, "Sec-WebSocket-Protocol: %s\r\n", subprotocol)
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("Sec-WebSocket-Key: ")
	return handshake{before: b.String(), after: "\r\n\r\n", protocol: subprotocol}
}

// request appends the request with a new key, which it returns.
func (h handshake) request(b []byte) ([]byte, [24]byte) {
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	var key [24]byte
	base64.StdEncoding.Encode(key[:], raw[:])
	b = append(b, h.before...)
	b = append(b, key[:]...)
	return append(b, h.after...), key
}

// maxHead bounds the head of a server's answer.
const maxHead = 16 << 10

// statusError is a refused handshake.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("the handshake was answered with status %d", e.status)
	if e.body != "" {
		text += ": " + e.body
	}
	return text
}

// check reads the answer to a handshake. n is the length of its head, 0 when
// more must come first.
func (h handshake) check(b []byte, key [24]byte) (n int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if !bytes.HasPrefix(b, []byte("HTTP/1.")[:min(len(b), 7)]) {
		return 0, errors.New("the server did not answer in HTTP")
	}
	if end < 0 {
		if len(b) > maxHead {
			return 0, errors.New("the head of the server's answer does not end")
		}
		return 0, nil
	}
	lines := strings.Split(string(b[:end]), "\r\n")
	fields := strings.Fields(lines[0])
	if len(fields) < 2 {
		return 0, errors.New("the server did not answer in HTTP")
	}
	status, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, errors.New("the server did not answer in HTTP")
	}
	if status != 101 {
		body := string(b[end+4:])
		return 0, &statusError{status: status, body: oneLine(body, 200)}
	}
	sum := sha1.Sum(append(key[:], "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...))
	want := base64.StdEncoding.EncodeToString(sum[:])
	var accept, chosen string
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "sec-websocket-accept":
			accept = strings.TrimSpace(value)
		case "sec-websocket-protocol":
			chosen = strings.TrimSpace(value)
		}
	}
	switch {
	case accept != want:
		return 0, errors.New("the server answered the handshake with a wrong Sec-WebSocket-Accept")
	case h.protocol != "" && chosen != h.protocol:
		return 0, fmt.Errorf("the server does not speak %s (it chose %q)", h.protocol, oneLine(chosen, 60))
	}
	return end + 4, nil
}

// oneLine makes text of a server fit into a line of a report.
func oneLine(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool { return r <= ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
