package demo

import (
	"unicode"
	"unicode/utf8"
)

// halfWord is the number of letters from which a word may come in two pieces.
const halfWord = 8

// split cuts text into pieces as a language model emits them: a word together
// with the space before it, a long word often in two halves, punctuation and
// line breaks by themselves, scripts without spaces rune by rune. Joined, the
// pieces are the text again; every piece is valid UTF-8 when the text is.
//
// An emoji of several code points comes in several pieces on purpose: whoever
// treats a piece as more than bytes to be joined will show it broken.
func split(text string) []string {
	var pieces []string
	for len(text) > 0 {
		n := pieceLen(text)
		piece := text[:n]
		if at := halfAt(piece, len(pieces)); at > 0 {
			pieces = append(pieces, piece[:at], piece[at:])
		} else {
			pieces = append(pieces, piece)
		}
		text = text[n:]
	}
	return pieces
}

// pieceLen is the length in bytes of the piece text begins with.
func pieceLen(text string) int {
	first, size := utf8.DecodeRuneInString(text)
	if first == '\n' {
		n := 1
		for n < len(text) && text[n] == '\n' {
			n++
		}
		return n
	}
	n := 0
	if first == ' ' {
		n = size
		if n == len(text) {
			return n
		}
		first, size = utf8.DecodeRuneInString(text[n:])
		if first == ' ' || first == '\n' {
			return n
		}
	}
	n += size
	if !inWord(first) {
		return n
	}
	for n < len(text) {
		r, size := utf8.DecodeRuneInString(text[n:])
		if !inWord(r) && !(unicode.Is(unicode.Mn, r)) {
			break
		}
		n += size
	}
	return n
}

// inWord reports whether r continues a word. Scripts that put no spaces
// between words have none in this sense.
func inWord(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r)) &&
		!unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul)
}

// halfAt is where the piece at this index is cut in two, or 0. Every second
// long word, more or less, is cut, at a rune boundary that moves about with the index.
func halfAt(piece string, index int) int {
	runes := utf8.RuneCountInString(piece)
	if runes < halfWord || index%2 == 0 {
		return 0
	}
	at, keep := 0, 3+index%(runes-5)
	for range keep {
		_, size := utf8.DecodeRuneInString(piece[at:])
		at += size
	}
	if r, _ := utf8.DecodeRuneInString(piece[at:]); unicode.Is(unicode.Mn, r) {
		return 0
	}
	return at
}
