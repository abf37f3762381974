package load

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A mark stands at the beginning of every payload of ours:
//
//	~cTTTTTTLLLSSSSS
//
// T is the time the message was due in microseconds since the run began, L its
// lane and S its number in the lane, from 1. All digits are of base 64 and need
// no escape in JSON or HTML, so a mark is found by its two first bytes in
// whatever a server wraps around the payload.
type mark struct {
	at   uint64 // microseconds since the run began
	lane uint32
	seq  uint32
}

const (
	markBytes  = 16
	maxLane    = 1<<18 - 1
	maxSeq     = 1<<30 - 1
	digits64   = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	minPayload = markBytes + 2 // quotes
)

var markStart = []byte("~c")

// value64 is the value of each digit, 0xff for all other bytes.
var value64 = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range len(digits64) {
		t[digits64[i]] = byte(i)
	}
	return t
}()

func appendDigits(b []byte, v uint64, n int) []byte {
	for i := n - 1; i >= 0; i-- {
		b = append(b, digits64[v>>(6*i)&63])
	}
	return b
}

func (m mark) append(b []byte) []byte {
	b = append(b, markStart...)
	b = appendDigits(b, m.at, 6)
	b = appendDigits(b, uint64(m.lane), 3)
	return appendDigits(b, uint64(m.seq), 5)
}

// nextMark finds the first mark in b and returns what follows it.
func nextMark(b []byte) (m mark, rest []byte, ok bool) {
	for {
		i := bytes.Index(b, markStart)
		if i < 0 || len(b)-i < markBytes {
			return mark{}, nil, false
		}
		d := b[i+2 : i+markBytes : i+markBytes]
		var v [14]uint64
		var all byte
		for j := range v {
			x := value64[d[j]]
			all |= x
			v[j] = uint64(x)
		}
		if all < 64 {
			m.at = v[0]<<30 | v[1]<<24 | v[2]<<18 | v[3]<<12 | v[4]<<6 | v[5]
			m.lane = uint32(v[6]<<12 | v[7]<<6 | v[8])
			m.seq = uint32(v[9]<<24 | v[10]<<18 | v[11]<<12 | v[12]<<6 | v[13])
			return m, b[i+markBytes:], true
		}
		b = b[i+2:]
	}
}

// shape is what payloads look like. Each is JSON text with a mark in it.
type shape struct {
	name string
	head []byte // before the mark
	tail []byte // behind it
}

// newShape returns the named shape in n bytes: text is a JSON string, json an
// object with a list of objects, turbo a Turbo Stream element in a JSON string
// whose HTML stands unescaped but for its quotes.
func newShape(name string, n int) (shape, error) {
	s := shape{name: name}
	var unit, end string
	switch name {
	case "text":
		s.head, unit, end = []byte(`"`), "lorem ipsum dolor sit amet, ", `"`
	case "json":
		s.head, unit, end = []byte(`{"mark":"`), `,{"id":17,"name":"Ada Lovelace","tags":["a","b"],"at":"2026-12-01T12:00:00Z"}`, `"]}`
	case "turbo":
		s.head = []byte(`"<turbo-stream action=\"append\" target=\"messages\"><template><div id=\"`)
		unit, end = `<p class=\"line\">Lorem <b>ipsum</b> dolor &amp; sit</p>`, `</div></template></turbo-stream>"`
	default:
		return shape{}, fmt.Errorf("load: a payload is text, json or turbo, not %q", name)
	}
	var middle string
	switch name {
	case "json":
		middle = `","items":[0`
		end = `,"` + "%s" + end
	case "turbo":
		middle = `\">`
	}
	fixed := len(s.head) + markBytes + len(middle) + len(strings.ReplaceAll(end, "%s", ""))
	if n < fixed {
		return shape{}, fmt.Errorf("load: a %s payload has at least %d bytes", name, fixed)
	}
	room := n - fixed
	var fill strings.Builder
	for fill.Len()+len(unit) <= room {
		fill.WriteString(unit)
	}
	pad := strings.Repeat("x", room-fill.Len())
	if name == "json" {
		s.tail = []byte(middle + fill.String() + strings.Replace(end, "%s", pad, 1))
	} else {
		s.tail = []byte(middle + fill.String() + pad + end)
	}
	return s, nil
}

// size is the length of each payload.
func (s shape) size() int { return len(s.head) + markBytes + len(s.tail) }

// payload appends one payload.
func (s shape) payload(b []byte, m mark) []byte {
	b = append(b, s.head...)
	b = m.append(b)
	return append(b, s.tail...)
}

// clock is the beginning of the run, from which marks count.
type clock struct{ began time.Time }

func (c clock) micros(t time.Time) uint64 { return uint64(max(t.Sub(c.began), 0) / time.Microsecond) }

// age is how long before now the mark was due.
func (c clock) age(m mark, now time.Time) time.Duration {
	return now.Sub(c.began) - time.Duration(m.at)*time.Microsecond
}

// track is what one client has seen of one lane. The zero value has seen
// nothing and expects number 1.
type track struct {
	last    uint32      // highest number seen
	missing [][2]uint32 // ranges below last that have not been seen, ascending
}

// verdict is what a number was to a track.
type verdict uint8

const (
	inOrder  verdict = iota // the next, or further on
	inverted                // late: a higher number was seen before
	doubled                 // seen before
)

// maxHoles bounds the ranges a track remembers; what lies in older ones counts
// as doubled when it comes after all.
const maxHoles = 4096

// see takes note of one number.
func (t *track) see(seq uint32) verdict {
	if seq > t.last {
		if seq > t.last+1 && len(t.missing) < maxHoles {
			t.missing = append(t.missing, [2]uint32{t.last + 1, seq - 1})
		}
		t.last = seq
		return inOrder
	}
	for i := len(t.missing) - 1; i >= 0; i-- {
		hole := &t.missing[i]
		switch {
		case seq > hole[1]:
			return doubled
		case seq < hole[0]:
			continue
		}
		low, high := hole[0], hole[1]
		switch {
		case low == high:
			t.missing = slices.Delete(t.missing, i, i+1)
		case seq == low:
			hole[0]++
		case seq == high:
			hole[1]--
		default:
			hole[1] = seq - 1
			t.missing = slices.Insert(t.missing, i+1, [2]uint32{seq + 1, high})
		}
		return inverted
	}
	return doubled
}

// lost is how many of the numbers 1 to sent were not seen.
func (t *track) lost(sent uint32) uint64 {
	var n uint64
	for _, hole := range t.missing {
		n += uint64(hole[1] - hole[0] + 1)
	}
	if sent > t.last {
		n += uint64(sent - t.last)
	}
	return n
}

// skip makes number seq the last one that is not expected any more.
func (t *track) skip(seq uint32) { *t = track{last: seq} }
