package e2e

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// verdict compares acknowledged broadcasts, stored messages and deliveries. It
// collects what is wrong and reports a few lines of each kind.
type verdict struct {
	log    []message // what history holds, the truth
	byAt   map[place]string
	faults []string
}

// judge takes the log as read from history. Its own contiguity (I1) and that no
// payload stands in it twice (I5, payloads of these tests are unique) are
// checked at once.
func judge(log []message, unique bool) *verdict {
	v := &verdict{log: log, byAt: map[place]string{}}
	seen := map[string]place{}
	for i, m := range log {
		if i > 0 && (m.Offset != log[i-1].Offset+1 || m.Epoch != log[i-1].Epoch) {
			v.fault("I1: the log goes from %v to %v", log[i-1].place, m.place)
		}
		if at, twice := seen[m.data]; twice && unique {
			v.fault("I5: one payload is stored at %v and at %v: %.60s", at, m.place, m.data)
		}
		seen[m.data] = m.place
		v.byAt[m.place] = m.data
	}
	return v
}

func (v *verdict) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

// acknowledged checks that every acknowledged broadcast is in the log at the
// place and with the bytes that were acknowledged (I4, I20).
func (v *verdict) acknowledged(acks map[place]string) *verdict {
	for at, payload := range acks {
		switch got, ok := v.byAt[at]; {
		case !ok:
			v.fault("I4: acknowledged at %v and not in the log: %.60s", at, payload)
		case got != payload:
			v.fault("I20: stored at %v is %.60s, published was %.60s", at, got, payload)
		}
	}
	return v
}

// delivered checks one subscriber: consecutive places without hole, repeat or
// step back, equal to the log (I2, I3, I15, I20), from the message after the
// place after to the end of the log. With whole false it may end earlier.
func (v *verdict) delivered(name string, got []message, after uint64, whole bool) *verdict {
	next, lost, doubled, disordered := after+1, 0, 0, 0
	for _, m := range got {
		switch {
		case m.Offset > next:
			lost += int(m.Offset - next)
			v.fault("I2: %s: %v came where %d belongs", name, m.place, next)
			next = m.Offset + 1
		case m.Offset < next:
			if m.Offset == next-1 {
				doubled++
			} else {
				disordered++
			}
			v.fault("I2: %s: %v came again or late, %d was next", name, m.place, next)
		default:
			next++
		}
		if want, ok := v.byAt[m.place]; !ok {
			v.fault("I15: %s: %v is not in the log: %.60s", name, m.place, m.data)
		} else if want != m.data {
			v.fault("I20: %s: %v is %.60s, in the log it is %.60s", name, m.place, m.data, want)
		}
	}
	if n := len(v.log); whole && n > 0 && next != v.log[n-1].Offset+1 {
		v.fault("I2: %s: ends before %d, the log ends with %d", name, next, v.log[n-1].Offset)
	}
	return v
}

func (v *verdict) report(t testing.TB) {
	t.Helper()
	for i, f := range v.faults {
		if i == 8 {
			t.Errorf("and %d faults more", len(v.faults)-i)
			return
		}
		t.Error(f)
	}
}

// inversions counts deliveries that step back on the wire.
func inversions(got []message) int {
	n := 0
	for i := 1; i < len(got); i++ {
		if got[i].Offset <= got[i-1].Offset {
			n++
		}
	}
	return n
}

func sha(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// The verdict itself has to see each kind of fault, or all tests below are
// worth nothing.
func TestVerdict_SeesEveryKindOfFault(t *testing.T) {
	at := func(n uint64) place { return place{"7", n} }
	m := func(n uint64, data string) message { return message{stream: "s", place: at(n), data: data} }
	log := []message{m(1, "a"), m(2, "b"), m(3, "c")}
	for name, broken := range map[string]func(v *verdict){
		"lost":               func(v *verdict) { v.delivered("x", []message{m(1, "a"), m(3, "c")}, 0, true) },
		"doubled":            func(v *verdict) { v.delivered("x", []message{m(1, "a"), m(1, "a"), m(2, "b"), m(3, "c")}, 0, true) },
		"disordered":         func(v *verdict) { v.delivered("x", []message{m(2, "b"), m(1, "a"), m(3, "c")}, 0, true) },
		"cut short":          func(v *verdict) { v.delivered("x", log[:2], 0, true) },
		"first missing":      func(v *verdict) { v.delivered("x", log[1:], 0, true) },
		"other bytes":        func(v *verdict) { v.delivered("x", []message{m(1, "a"), m(2, "B"), m(3, "c")}, 0, true) },
		"never stored":       func(v *verdict) { v.delivered("x", append(log[:3:3], m(4, "d")), 0, false) },
		"acknowledged, gone": func(v *verdict) { v.acknowledged(map[place]string{at(4): "d"}) },
		"acknowledged other": func(v *verdict) { v.acknowledged(map[place]string{at(2): "B"}) },
		"other epoch":        func(v *verdict) { v.delivered("x", []message{{"s", place{"8", 1}, "a", false}}, 0, false) },
	} {
		v := judge(log, true)
		broken(v)
		if len(v.faults) == 0 {
			t.Errorf("%s was not seen", name)
		}
	}
	for name, log := range map[string][]message{
		"hole in the log": {m(1, "a"), m(3, "c")},
		"stored twice":    {m(1, "a"), m(2, "a")},
		"two epochs":      {m(1, "a"), {"s", place{"8", 2}, "b", false}},
	} {
		if len(judge(log, true).faults) == 0 {
			t.Errorf("%s was not seen", name)
		}
	}
	if v := judge(log, true).delivered("x", log, 0, true).acknowledged(map[place]string{at(1): "a"}); len(v.faults) != 0 {
		t.Errorf("faults where there are none: %v", v.faults)
	}
}
