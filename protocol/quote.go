package protocol

import (
	"bytes"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// literal tells the bytes that stand for themselves in a JSON string: all but
// quotes, backslashes and control characters below 0x20.
var literal = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return t
}()

// appendQuoted appends s as one JSON string. Only what JSON requires is
// escaped; everything else stays as it is, U+2028 and <>& included. Bytes that
// are not UTF-8 become U+FFFD, so the result is always valid.
func appendQuoted(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = string([]rune(s))
	}
	return appendText(dst, s)
}

// appendText is appendQuoted for text that is known to be UTF-8.
func appendText[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0 // start of what is not yet copied
	for i := 0; i < len(s); i++ {
		c := s[i]
		if literal[c] {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// quotedLen returns the length of what appendText makes of text.
func quotedLen(text []byte) int {
	n := len(text) + 2
	for _, c := range text {
		if literal[c] {
			continue
		}
		switch c {
		case '"', '\\', '\b', '\f', '\n', '\r', '\t':
			n++
		default:
			n += 5
		}
	}
	return n
}

// unquote returns the text of a JSON string, quotes included in raw, in memory
// of its own and of the exact size. It returns false for what is no JSON
// string, and for an escaped lone surrogate: that has no UTF-8, and replacing
// it would change the text without a word.
func unquote(raw []byte) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return nil, false
	}
	raw = raw[1 : len(raw)-1]
	size, ok := unquotedLen(raw)
	if !ok {
		return nil, false
	}
	dst := make([]byte, 0, size)
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), true
		}
		r, n := escape(raw[i:])
		dst = utf8.AppendRune(append(dst, raw[:i]...), r)
		raw = raw[i+n:]
	}
}

// unquotedLen returns how long the text of a JSON string is, given what stands
// between its quotes, and whether it can be had.
func unquotedLen(raw []byte) (int, bool) {
	size := len(raw)
	for i := 0; i < len(raw); i++ {
		if literal[raw[i]] {
			continue
		}
		r, n := escape(raw[i:])
		if n == 0 {
			return 0, false
		}
		size += utf8.RuneLen(r) - n
		i += n - 1
	}
	return size, true
}

// escape reads the escape sequence that raw begins with, both halves of a
// surrogate pair together, and returns its rune and length; length 0 when it
// is none.
func escape(raw []byte) (rune, int) {
	if len(raw) < 2 || raw[0] != '\\' {
		return 0, 0
	}
	switch raw[1] {
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	high, ok := unit(raw)
	switch {
	case !ok, high >= 0xdc00 && high <= 0xdfff:
		return 0, 0
	case high < 0xd800 || high > 0xdfff:
		return high, 6
	}
	low, ok := unit(raw[6:])
	if !ok || low < 0xdc00 || low > 0xdfff {
		return 0, 0
	}
	return (high-0xd800)<<10 + (low - 0xdc00) + 0x10000, 12
}

// unit reads one \uXXXX, a UTF-16 code unit.
func unit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range raw[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
