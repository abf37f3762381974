package load

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

func TestShapes_AreJSONOfExactlyTheirSize(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes []int
	}{
		{"text", []int{18, 19, 80, 300, 2950}},
		{"json", []int{200, 2950, 80_500}},
		{"turbo", []int{300, 2950, 80_500}},
	} {
		for _, n := range c.sizes {
			s, err := newShape(c.name, n)
			if err != nil {
				t.Fatal(err)
			}
			m := mark{at: 1<<36 - 1, lane: maxLane, seq: maxSeq}
			p := s.payload(nil, m)
			if len(p) != n || s.size() != n {
				t.Errorf("%s of %d bytes has %d", c.name, n, len(p))
			}
			if !json.Valid(p) || !utf8.Valid(p) {
				t.Errorf("%s of %d bytes is no JSON: %.80s", c.name, n, p)
			}
			got, rest, ok := nextMark(p)
			if !ok || got != m {
				t.Errorf("%s of %d bytes: mark %+v", c.name, n, got)
			}
			if _, _, more := nextMark(rest); more {
				t.Errorf("%s of %d bytes has two marks", c.name, n)
			}
		}
	}
	if _, err := newShape("text", 17); err == nil {
		t.Error("a payload without room for its mark")
	}
	if _, err := newShape("xml", 100); err == nil {
		t.Error("a shape that is none")
	}
}

func FuzzNextMark(f *testing.F) {
	f.Add([]byte(`{"identifier":"x","message":"~cAAAABBAABAAAAB"}`))
	f.Add([]byte("~c~c~cAAAABBAABAAAAB~c"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for rest, n := b, 0; ; n++ {
			m, after, ok := nextMark(rest)
			if !ok {
				return
			}
			if len(after) > len(rest)-markBytes || n > len(b) {
				t.Fatal("no progress")
			}
			if !bytes.Contains(rest, m.append(nil)) {
				t.Fatalf("%+v was read and is not there", m)
			}
			rest = after
		}
	})
}

// TestTrack_CountsAsTheNaiveWayDoes compares with a set of what was seen.
func TestTrack_CountsAsTheNaiveWayDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		n := uint32(1 + r.IntN(60))
		var order []uint32
		for seq := uint32(1); seq <= n; seq++ {
			for range []int{0, 1, 1, 1, 1, 2}[r.IntN(6)] {
				order = append(order, seq)
			}
		}
		for range r.IntN(20) {
			if len(order) > 1 {
				i, j := r.IntN(len(order)), r.IntN(len(order))
				order[i], order[j] = order[j], order[i]
			}
		}
		var tr track
		seen, highest := map[uint32]bool{}, uint32(0)
		for _, seq := range order {
			want := inOrder
			switch {
			case seen[seq]:
				want = doubled
			case seq < highest:
				want = inverted
			}
			seen[seq], highest = true, max(highest, seq)
			if got := tr.see(seq); got != want {
				t.Fatalf("round %d, %v: %d is %d, want %d", round, order, seq, got, want)
			}
		}
		if got, want := tr.lost(n), uint64(n)-uint64(len(seen)); got != want {
			t.Fatalf("round %d, %v of %d: %d lost, want %d", round, order, n, got, want)
		}
	}
}
