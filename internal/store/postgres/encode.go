package postgres

import (
	"encoding/binary"
	"errors"

	"github.com/jackc/pgx/v5/pgtype"
)

// The batch statement's arguments are written straight in PostgreSQL's binary
// array form: a batch has a few numbers and a payload for each message, and
// encoding them one by one through reflection costs more than sending them.

const arrayHeader = 20

// array is a one-dimensional array under construction, without nulls. Its
// memory is used again by the next batch.
type array struct {
	buf []byte
	n   uint32
}

func (a *array) reset(element uint32) {
	if cap(a.buf) > 8<<20 {
		a.buf = nil // one huge batch need not be paid for for ever
	}
	a.buf = append(a.buf[:0],
		0, 0, 0, 1, // dimensions
		0, 0, 0, 0, // no nulls
		byte(element>>24), byte(element>>16), byte(element>>8), byte(element),
		0, 0, 0, 0, // elements, filled in by bytes
		0, 0, 0, 1) // first index
	a.n = 0
}

func (a *array) int(v int64) {
	a.buf = append(a.buf, 0, 0, 0, 8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, uint64(v))
	a.n++
}

func (a *array) data(v []byte) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(v)))
	a.buf = append(a.buf, v...)
	a.n++
}

func (a *array) bytes() []byte {
	binary.BigEndian.PutUint32(a.buf[12:], a.n)
	return a.buf
}

var errFormat = errors.New("postgres: the server's answer is malformed")

// ints decodes a bigint[] without nulls.
func ints(b []byte) ([]int64, error) {
	if len(b) == 12 && binary.BigEndian.Uint32(b) == 0 {
		return nil, nil // the empty array has no dimensions
	}
	if len(b) < arrayHeader || binary.BigEndian.Uint32(b) != 1 || binary.BigEndian.Uint32(b[8:]) != pgtype.Int8OID {
		return nil, errFormat
	}
	n := int(binary.BigEndian.Uint32(b[12:]))
	if b = b[arrayHeader:]; len(b) != 12*n {
		return nil, errFormat
	}
	out := make([]int64, n)
	for i := range out {
		if binary.BigEndian.Uint32(b) != 8 {
			return nil, errFormat
		}
		out[i], b = int64(binary.BigEndian.Uint64(b[4:])), b[12:]
	}
	return out, nil
}

func int8Of(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, errFormat
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

func appendInt8(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// y2k is the zero of PostgreSQL's timestamps, in microseconds since 1970.
const y2k = 946_684_800_000_000
