package protocol

import (
	"bytes"
	"unicode/utf8"
)

// The scanner below walks JSON text without building values. It is used
// instead of encoding/json's decoder because that one matches keys without
// regard to case, and turns lone surrogates and wrong bytes into U+FFFD.
//
// Everything here expects text that validJSON accepted. It does not recurse,
// so nesting costs no stack.

// validJSON reports whether b is one JSON text in valid UTF-8, nested at most
// MaxPayloadDepth deep.
func validJSON(b []byte) bool { return utf8.Valid(b) && check(b) == valid }

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipWord returns the index after the number, true, false or null at i.
func skipWord(b []byte, i int) int {
	for ; i < len(b); i++ {
		switch b[i] {
		case ',', ':', ']', '}', ' ', '\t', '\n', '\r':
			return i
		}
	}
	return i
}

// skipValue returns the index after the value that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default:
			i = skipWord(b, i)
		}
		if depth == 0 {
			return i
		}
	}
	return len(b)
}

// members calls f with the key and the raw value of each member of the object
// b, in order, until f returns an error. A key comes unquoted; it is only good
// during the call. A key that has no text, because of a lone surrogate in it,
// is left out: it is none of ours. members returns false when b is no object.
func members(b []byte, f func(key, value []byte) error) (bool, error) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return false, nil
	}
	for i++; ; i++ {
		i = skipSpace(b, i)
		if i >= len(b) || b[i] == '}' {
			return true, nil
		}
		end := skipString(b, i)
		key, known := b[i:end], true
		if bytes.IndexByte(key, '\\') < 0 && len(key) >= 2 {
			key = key[1 : len(key)-1]
		} else {
			key, known = unquote(key)
		}
		i = skipSpace(b, end)              // at the colon
		i = skipSpace(b, min(i+1, len(b))) // at the value
		end = skipValue(b, i)
		if known {
			if err := f(key, b[i:end]); err != nil {
				return true, err
			}
		}
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ',' {
			return true, nil
		}
	}
}

// elements calls f with the raw value of each element of the array b, in
// order, until f returns an error. It returns false when b is no array.
func elements(b []byte, f func(value []byte) error) (bool, error) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return false, nil
	}
	for i++; ; i++ {
		i = skipSpace(b, i)
		if i >= len(b) || b[i] == ']' {
			return true, nil
		}
		end := skipValue(b, i)
		if err := f(b[i:end]); err != nil {
			return true, err
		}
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ',' {
			return true, nil
		}
	}
}

// isNull reports whether a raw value is absent or null.
func isNull(value []byte) bool { return len(value) == 0 || value[0] == 'n' }

// stringValue returns the text of a raw value that is a JSON string.
func stringValue(value []byte) (string, bool) {
	text, ok := unquote(value)
	return string(text), ok
}
