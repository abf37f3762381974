package hub

import (
	"math/rand/v2"
	"testing"

	"github.com/chronocast/chronocast/protocol"
)

// Whoever leaves while a pass is under way, the others stay on their side: who
// was served is not served again, who is due is not passed over, and who joined
// since is neither.
func TestLeave_KeepsServedAndDueApart(t *testing.T) {
	type side int
	const (
		served side = iota
		due
		joined
	)
	codec := protocol.Codecs()[0]
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		s := &stream{}
		want := make(map[*Subscription]side)
		join := func(on side) {
			c := &Subscription{}
			s.joinLocked(c, protocol.NewAddress("i", "s"), codec)
			want[c] = on
		}
		for range 1 + rng.IntN(9) {
			join(due)
		}
		s.pass = &pass{end: len(s.members)}
		for len(s.members) > 0 {
			switch p := s.pass; rng.IntN(3) {
			case 0: // some are served
				n := rng.IntN(p.end - p.next + 1)
				for _, c := range s.members[p.next : p.next+n] {
					want[c] = served
				}
				p.next += n
			case 1:
				if rng.IntN(3) == 0 {
					join(joined)
				}
			case 2:
				c := s.members[rng.IntN(len(s.members))]
				s.leaveLocked(c)
				delete(want, c)
			}
			if len(s.members) != len(want) {
				t.Fatalf("%d members, want %d", len(s.members), len(want))
			}
			for i, c := range s.members {
				on := joined
				if i < s.pass.next {
					on = served
				} else if i < s.pass.end {
					on = due
				}
				if w, ok := want[c]; !ok || w != on || int(c.index) != i {
					t.Fatalf("member %d knows itself as %d, is %v, want %v (%v)", i, c.index, on, w, ok)
				}
			}
		}
		if s.pass.next != 0 || s.pass.end != 0 || s.groups != nil {
			t.Fatalf("left behind: %d of %d, groups %v", s.pass.next, s.pass.end, s.groups)
		}
	}
}
