package protocol

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxOffset is the highest offset a stream can reach: the largest integer a
// JavaScript number holds exactly, 2^53-1.
const MaxOffset = 1<<53 - 1

// MaxStreamBytes is the longest stream name, in bytes of UTF-8.
const MaxStreamBytes = 255

// Epoch identifies one life of a stream's numbering: microseconds since 1970
// when that life began, strictly greater than the epoch before it. It is
// compared for equality to decide whether a position can be continued; its
// order only tells an older life from a newer one. Zero is no epoch.
//
// In JSON an epoch is a decimal string, because it passes 2^53.
type Epoch int64

// String returns the decimal form of e.
func (e Epoch) String() string { return strconv.FormatInt(int64(e), 10) }

// ParseEpoch reads the decimal form written by [Epoch.String]: digits only,
// no sign, no leading zero, greater than zero.
func ParseEpoch(s string) (Epoch, error) {
	n, err := parseDecimal(s, 1<<63-1)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("protocol: epoch %.32q is not a positive decimal integer", s)
	}
	return Epoch(n), nil
}

// Position is a place in a stream: the message with this offset in this epoch.
// Offset 0 is the place before the first message. The two halves are kept and
// changed together; an epoch paired with the offset of another epoch means
// nothing.
type Position struct {
	Epoch  Epoch
	Offset uint64
}

// String returns the text form EPOCH:OFFSET.
func (p Position) String() string {
	return p.Epoch.String() + ":" + strconv.FormatUint(p.Offset, 10)
}

// ParsePosition reads the text form EPOCH:OFFSET. A bare OFFSET is accepted
// too and gives Epoch 0, meaning "whatever the current epoch is".
func ParsePosition(s string) (Position, error) {
	epoch, offset, both := strings.Cut(s, ":")
	if !both {
		epoch, offset = "", s
	}
	var p Position
	if both {
		e, err := ParseEpoch(epoch)
		if err != nil {
			return Position{}, err
		}
		p.Epoch = e
	}
	n, err := parseDecimal(offset, MaxOffset)
	if err != nil {
		return Position{}, fmt.Errorf("protocol: offset %.32q is not an integer from 0 to %d", offset, uint64(MaxOffset))
	}
	p.Offset = n
	return p, nil
}

var errDecimal = errors.New("not a plain decimal")

// parseDecimal accepts only the one canonical spelling of each number, so that
// equal positions have equal text.
func parseDecimal(s string, max uint64) (uint64, error) {
	if s == "" || len(s) > 20 || (len(s) > 1 && s[0] == '0') {
		return 0, errDecimal
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, errDecimal
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > max {
		return 0, errDecimal
	}
	return n, nil
}

// ErrStreamName reports a name that no stream can have.
var ErrStreamName = errors.New("protocol: a stream name is 1 to 255 bytes of UTF-8 without control characters")

// CheckStream returns [ErrStreamName] unless name can name a stream: 1 to
// [MaxStreamBytes] bytes of valid UTF-8 without control characters (C0, DEL,
// C1). Names are compared byte for byte; no normalization is applied.
func CheckStream(name string) error {
	if len(name) == 0 || len(name) > MaxStreamBytes || !utf8.ValidString(name) {
		return ErrStreamName
	}
	for _, r := range name {
		if r < 0x20 || (r >= 0x7f && r <= 0x9f) {
			return ErrStreamName
		}
	}
	return nil
}
