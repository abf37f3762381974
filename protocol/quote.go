package protocol

import (
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendQuoted appends s as one JSON string. Only what JSON requires is
// escaped: quotes, backslashes and control characters below 0x20. Everything
// else stays as it is, U+2028 and <>& included. Bytes that are not UTF-8
// become U+FFFD, so the result is always valid.
func appendQuoted[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0 // start of what is not yet copied
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
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
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[from:i]...)
			dst = utf8.AppendRune(dst, utf8.RuneError)
			i++
			from = i
			continue
		}
		i += n
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
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
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		r, n := escape(raw[i:])
		dst = utf8.AppendRune(dst, r)
		i += n
	}
	return dst, true
}

// unquotedLen returns how long the text of a JSON string is, given what stands
// between its quotes, and whether it can be had.
func unquotedLen(raw []byte) (int, bool) {
	size := 0
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '\\':
			r, n := escape(raw[i:])
			if n == 0 {
				return 0, false
			}
			size += utf8.RuneLen(r)
			i += n
		case c < 0x20 || c == '"':
			return 0, false
		default:
			size++
			i++
		}
	}
	return size, true
}

// escape reads the escape sequence that raw begins with, both halves of a
// surrogate pair together, and returns its rune and length; length 0 when it
// is none.
func escape(raw []byte) (rune, int) {
	if len(raw) < 2 {
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
