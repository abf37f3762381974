package protocol

import (
	"bytes"
	"strings"
	"testing"
)

// TestTextFrame_HeadersOfEverySize holds headers against RFC 6455, section 5.2:
// the shortest form of the length, no mask.
func TestTextFrame_HeadersOfEverySize(t *testing.T) {
	for _, c := range []struct {
		size   int
		header string
	}{
		{1, "\x81\x01"},
		{125, "\x81\x7d"},
		{126, "\x81\x7e\x00\x7e"},
		{65535, "\x81\x7e\xff\xff"},
		{65536, "\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"},
		{1 << 20, "\x81\x7f\x00\x00\x00\x00\x00\x10\x00\x00"},
	} {
		text := []byte(strings.Repeat("x", c.size))
		wire := AppendTextFrame([]byte("before"), text)
		if got := string(wire[6 : len(wire)-c.size]); got != c.header {
			t.Errorf("%d bytes: header %x, want %x", c.size, got, c.header)
		}
		if len(wire) != 6+frameSize(c.size) {
			t.Errorf("%d bytes: %d on the wire, want %d", c.size, len(wire), frameSize(c.size))
		}
		got, rest, ok := CutTextFrame(append(wire[6:], "after"...))
		if !ok || !bytes.Equal(got, text) || string(rest) != "after" {
			t.Errorf("%d bytes: cut %d and %q, %v", c.size, len(got), rest, ok)
		}
		for _, short := range []int{0, 1, len(c.header) - 1, len(c.header), len(wire) - 7} {
			if got, rest, ok := CutTextFrame(wire[6 : 6+short]); ok || got != nil || len(rest) != short {
				t.Errorf("%d bytes: cut %d from the first %d", c.size, len(got), short)
			}
		}
	}
	if got := AppendTextFrame(nil, nil); got != nil {
		t.Errorf("an empty text is %x", got)
	}
	if _, _, ok := CutTextFrame([]byte("\x82\x01x")); ok {
		t.Error("a binary frame was cut")
	}
	if _, _, ok := CutTextFrame([]byte("\x81\x81maskx")); ok {
		t.Error("a masked frame was cut")
	}
	if _, _, ok := CutTextFrame([]byte("\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xffx")); ok {
		t.Error("a frame of 2^64-1 bytes was cut")
	}
}
