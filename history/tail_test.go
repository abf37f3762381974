package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chronocast/chronocast/protocol"
)

// vector is one case of testdata/order.json, which the bundled client reads
// too: both gates do the same.
type vector struct {
	Name  string         `json:"name"`
	Start vectorPosition `json:"start"`
	Steps []vectorStep   `json:"steps"`
}

type vectorPosition struct {
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
}

type vectorStep struct {
	Add      []vectorMessage `json:"add"`
	Deliver  []uint64        `json:"deliver"`
	Position vectorPosition  `json:"position"`
	Gap      *[2]uint64      `json:"gap"`
	Newer    bool            `json:"newer_epoch"`
}

// vectorMessage is [epoch, offset] or [epoch, offset, bytes].
type vectorMessage struct {
	epoch protocol.Epoch
	protocol.Message
}

func (m *vectorMessage) UnmarshalJSON(b []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	if len(parts) != 2 && len(parts) != 3 {
		return fmt.Errorf("a message has an epoch, an offset and perhaps a size, not %s", b)
	}
	var epoch string
	if err := json.Unmarshal(parts[0], &epoch); err != nil {
		return err
	}
	size := 1
	if len(parts) == 3 {
		if err := json.Unmarshal(parts[2], &size); err != nil {
			return err
		}
	}
	m.Data = make([]byte, size)
	var err error
	if m.epoch, err = protocol.ParseEpoch(epoch); err != nil {
		return err
	}
	return json.Unmarshal(parts[1], &m.Offset)
}

func (p vectorPosition) position(t *testing.T) protocol.Position {
	t.Helper()
	epoch, err := protocol.ParseEpoch(p.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Position{Epoch: epoch, Offset: p.Offset}
}

func TestTail_Vectors(t *testing.T) {
	text, err := os.ReadFile("testdata/order.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 25 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			tail := NewTail(TailLimits{})
			tail.Start(v.Start.position(t))
			for i, step := range v.Steps {
				var got []uint64
				newer := false
				for _, m := range step.Add {
					passed, n := tail.Add(m.epoch, []protocol.Message{m.Message})
					got = append(got, offsets(passed)...)
					newer = newer || n
				}
				if !slices.Equal(got, step.Deliver) {
					t.Errorf("step %d delivers %v, want %v", i, got, step.Deliver)
				}
				if want := step.Position.position(t); tail.Head() != want {
					t.Errorf("step %d leaves the position at %v, want %v", i, tail.Head(), want)
				}
				after, before, ok := tail.Gap()
				if (step.Gap != nil) != ok || ok && *step.Gap != [2]uint64{after, before} {
					t.Errorf("step %d leaves the gap %d %d %v, want %v", i, after, before, ok, step.Gap)
				}
				if newer != step.Newer {
					t.Errorf("step %d tells a newer epoch: %v, want %v", i, newer, step.Newer)
				}
			}
		})
	}
}

func offsets(msgs []protocol.Message) []uint64 {
	var list []uint64
	for _, m := range msgs {
		list = append(list, m.Offset)
	}
	return list
}

func run(from, to uint64, size int) []protocol.Message {
	var msgs []protocol.Message
	for o := from; o <= to; o++ {
		data := make([]byte, max(size, 8))
		copy(data, fmt.Sprint(o))
		msgs = append(msgs, protocol.Message{Offset: o, Data: data})
	}
	return msgs
}

func at(offset uint64) protocol.Position { return protocol.Position{Epoch: 7, Offset: offset} }

func TestTail_NothingPassesBeforeStart(t *testing.T) {
	tail := NewTail(TailLimits{})
	if passed, newer := tail.Add(7, run(1, 3, 8)); len(passed) > 0 || !newer {
		t.Fatalf("passed %v, newer %v", passed, newer)
	}
}

func TestTail_StartForgets(t *testing.T) {
	tail := NewTail(TailLimits{})
	tail.Start(at(0))
	tail.Add(7, run(1, 5, 8))
	tail.Add(7, run(9, 12, 8))
	tail.Know(40)
	tail.Start(protocol.Position{Epoch: 8, Offset: 2})
	if _, _, gap := tail.Gap(); gap || tail.WindowBytes() != 0 || tail.Known() != 2 {
		t.Fatalf("gap %v, window of %d bytes, known %d", gap, tail.WindowBytes(), tail.Known())
	}
	if passed, _ := tail.Add(8, run(3, 3, 8)); !slices.Equal(offsets(passed), []uint64{3}) {
		t.Fatalf("passed %v", offsets(passed))
	}
}

// The newest message may be lost without any later one to reveal it.
func TestTail_KnowReportsALostNewestMessage(t *testing.T) {
	tail := NewTail(TailLimits{})
	tail.Start(at(3))
	tail.Know(3)
	if _, _, gap := tail.Gap(); gap {
		t.Fatal("a gap at the head")
	}
	tail.Know(5)
	if after, before, gap := tail.Gap(); !gap || after != 3 || before != 6 {
		t.Fatalf("gap %d %d %v", after, before, gap)
	}
	tail.Add(7, run(4, 5, 8))
	if _, _, gap := tail.Gap(); gap {
		t.Fatal("the gap stays after it was filled")
	}
}

func TestTail_HeldMessagesAreBounded(t *testing.T) {
	for name, limits := range map[string]TailLimits{
		"count": {HeldCount: 10},
		"bytes": {HeldBytes: 10 * (messageOverhead + 100)},
	} {
		t.Run(name, func(t *testing.T) {
			tail := NewTail(limits)
			tail.Start(at(0))
			tail.Add(7, run(21, 40, 100))
			tail.Add(7, run(2, 15, 100)) // lower ones push out higher ones
			if len(tail.held) != 10 || tail.held[9].Offset != 11 {
				t.Fatalf("held %v", offsets(tail.held))
			}
			if passed, _ := tail.Add(7, run(1, 1, 100)); len(passed) != 11 {
				t.Fatalf("passed %v", offsets(passed))
			}
			if tail.heldBytes != 0 {
				t.Fatalf("%d bytes counted for nothing held", tail.heldBytes)
			}
			// What was dropped is known to exist: it is read from the log.
			if after, before, gap := tail.Gap(); !gap || after != 11 || before != 41 {
				t.Fatalf("gap %d %d %v", after, before, gap)
			}
		})
	}
}

func TestTail_WindowIsBoundedAndReadable(t *testing.T) {
	tail := NewTail(TailLimits{WindowCount: 10})
	tail.Start(at(100))
	tail.Add(7, run(101, 150, 100))
	for after, want := range map[uint64][]uint64{
		140: {141, 142, 143, 144, 145, 146, 147, 148, 149, 150},
		148: {149, 150},
		150: nil,
		900: nil,
	} {
		msgs, covered := tail.After(after, 100, 1<<20)
		if !covered || !slices.Equal(offsets(msgs), want) {
			t.Errorf("after %d: %v %v, want %v", after, offsets(msgs), covered, want)
		}
	}
	if _, covered := tail.After(139, 100, 1<<20); covered {
		t.Error("139 is before the window")
	}
	if msgs, _ := tail.After(140, 3, 1<<20); !slices.Equal(offsets(msgs), []uint64{141, 142, 143}) {
		t.Errorf("limit: %v", offsets(msgs))
	}
	if msgs, _ := tail.After(140, 100, 250); !slices.Equal(offsets(msgs), []uint64{141, 142}) {
		t.Errorf("bytes: %v", offsets(msgs))
	}
	if msgs, _ := tail.After(140, 100, 1); !slices.Equal(offsets(msgs), []uint64{141}) {
		t.Errorf("at least one: %v", offsets(msgs))
	}
	tail.Forget(146)
	if _, covered := tail.After(144, 100, 1<<20); covered {
		t.Error("forgotten messages are still covered")
	}
	if msgs, covered := tail.After(145, 100, 1<<20); !covered || len(msgs) != 5 {
		t.Errorf("after 145: %v %v", offsets(msgs), covered)
	}
	if tail.WindowBytes() != 5*(100+messageOverhead) {
		t.Errorf("window of %d bytes", tail.WindowBytes())
	}
}

func TestTail_WindowBytes(t *testing.T) {
	tail := NewTail(TailLimits{WindowBytes: 1000})
	tail.Start(at(0))
	for o := uint64(1); o < 200; o++ {
		tail.Add(7, run(o, o, int(o*37%900)))
		if tail.WindowBytes() > 1000 {
			t.Fatalf("window of %d bytes", tail.WindowBytes())
		}
	}
	tail.Add(7, run(200, 200, 5000))
	if msgs, covered := tail.After(199, 1, 1); covered || msgs != nil {
		t.Fatalf("a message over the bound is kept: %v", offsets(msgs))
	}
	if passed, _ := tail.Add(7, run(201, 201, 10)); len(passed) != 1 {
		t.Fatal("the gate stands still after a large message")
	}
}

// What passed is shared with the hints; what After returned is the reader's.
// Neither may change later.
func TestTail_ResultsStay(t *testing.T) {
	tail := NewTail(TailLimits{WindowCount: 8, HeldCount: 8})
	tail.Start(at(0))
	var kept [][]protocol.Message
	for o := uint64(1); o < 400; o += 4 {
		tail.Add(7, run(o+2, o+3, 8))
		passed, _ := tail.Add(7, run(o, o+1, 8))
		read, _ := tail.After(o-1, 4, 1000)
		kept = append(kept, passed, read)
	}
	for _, msgs := range kept {
		if len(msgs) != 4 {
			t.Fatalf("%d messages", len(msgs))
		}
		for i, m := range msgs {
			if m.Offset != msgs[0].Offset+uint64(i) || !strings.HasPrefix(string(m.Data), fmt.Sprint(m.Offset)) {
				t.Fatalf("message %d is now %d %q", i, m.Offset, m.Data)
			}
		}
	}
}

// naive is a gate with none of the bounds and none of the care for memory.
type naive struct {
	head protocol.Position
	held map[uint64]bool
}

func (n *naive) add(epoch protocol.Epoch, msgs []protocol.Message) (passed []uint64, newer bool) {
	for _, m := range msgs {
		switch {
		case epoch > n.head.Epoch:
			newer = true
		case epoch == n.head.Epoch && m.Offset > n.head.Offset && m.Offset <= protocol.MaxOffset:
			n.held[m.Offset] = true
		}
	}
	for n.held[n.head.Offset+1] {
		n.head.Offset++
		delete(n.held, n.head.Offset)
		passed = append(passed, n.head.Offset)
	}
	return passed, newer
}

func (n *naive) gap() (after, before uint64, ok bool) {
	for o := range n.held {
		if !ok || o < before {
			after, before, ok = n.head.Offset, o, true
		}
	}
	return after, before, ok
}

// TestTail_Model compares the gate with the naive one under random schedules:
// runs of hints reordered, repeated, cut and of other epochs.
func TestTail_Model(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		base := uint64(rng.IntN(3))
		if rng.IntN(4) == 0 {
			base = protocol.MaxOffset - 40
		}
		tail := NewTail(TailLimits{WindowCount: 1 + rng.IntN(40)})
		tail.Start(at(base))
		model := &naive{head: at(base), held: make(map[uint64]bool)}
		for step := range 30 {
			from := base + uint64(rng.IntN(45))
			msgs := run(from, from+uint64(rng.IntN(5)), 8)
			if rng.IntN(3) == 0 {
				rng.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
			}
			epoch := protocol.Epoch(7)
			if rng.IntN(10) == 0 {
				epoch += protocol.Epoch(rng.IntN(3) - 1)
			}
			passed, newer := tail.Add(epoch, msgs)
			wantPassed, wantNewer := model.add(epoch, msgs)
			a, b, gap := tail.Gap()
			wantA, wantB, wantGap := model.gap()
			if !slices.Equal(offsets(passed), wantPassed) || newer != wantNewer || tail.Head() != model.head ||
				a != wantA || b != wantB || gap != wantGap {
				t.Fatalf("seed %d step %d: passed %v newer %v head %v gap %d %d %v, want %v %v %v %d %d %v", seed, step,
					offsets(passed), newer, tail.Head(), a, b, gap, wantPassed, wantNewer, model.head, wantA, wantB, wantGap)
			}
			checkWindow(t, tail)
		}
	}
}

func checkWindow(t *testing.T, tail *Tail) {
	t.Helper()
	size := 0
	for i, m := range tail.window {
		if m.Offset != tail.head.Offset-uint64(len(tail.window)-1-i) {
			t.Fatalf("window %v does not end at %v", offsets(tail.window), tail.head)
		}
		size += cost(m)
	}
	if size != tail.windowBytes || len(tail.window) > tail.limits.WindowCount {
		t.Fatalf("window of %d messages, %d bytes, counted as %d", len(tail.window), size, tail.windowBytes)
	}
	size = 0
	for i, m := range tail.held {
		if m.Offset <= tail.head.Offset+1 || (i > 0 && m.Offset <= tail.held[i-1].Offset) {
			t.Fatalf("held %v at %v", offsets(tail.held), tail.head)
		}
		size += cost(m)
	}
	if size != tail.heldBytes || len(tail.held) > tail.limits.HeldCount {
		t.Fatalf("held %d messages, %d bytes, counted as %d", len(tail.held), size, tail.heldBytes)
	}
}

// TestTail_BoundedModel: with tight bounds the owner who fills the gaps it is
// told, and nothing else, still gets every message once and in order.
func TestTail_BoundedModel(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		tail := NewTail(TailLimits{WindowCount: 1 + rng.IntN(5), HeldCount: 1 + rng.IntN(6), HeldBytes: 1 + rng.IntN(900)})
		tail.Start(at(0))
		const last = 60
		order := rng.Perm(last)
		var got []uint64
		for _, i := range order {
			if rng.IntN(5) == 0 {
				continue // lost
			}
			passed, _ := tail.Add(7, run(uint64(i)+1, uint64(i)+1, 8))
			got = append(got, offsets(passed)...)
			checkWindow(t, tail)
		}
		tail.Know(last)
		for reads := 0; ; reads++ {
			after, before, gap := tail.Gap()
			if !gap {
				break
			}
			if reads > last {
				t.Fatalf("seed %d: the gap %d %d does not close", seed, after, before)
			}
			passed, _ := tail.Add(7, run(after+1, min(before-1, after+7), 8))
			got = append(got, offsets(passed)...)
		}
		if !slices.Equal(got, offsets(run(1, last, 8))) {
			t.Fatalf("seed %d: got %v", seed, got)
		}
	}
}

// FuzzTail feeds the gate any sequence of hints: two bytes each, an offset and
// a mixture of run length and epoch.
func FuzzTail(f *testing.F) {
	f.Add([]byte{1, 0, 2, 0, 3, 0})
	f.Add([]byte{3, 0, 1, 1, 9, 7, 2, 64, 0, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		tail := NewTail(TailLimits{WindowCount: 5, HeldCount: 6})
		tail.Start(at(0))
		next := uint64(1)
		for ; len(script) >= 2; script = script[2:] {
			from, how := uint64(script[0]), script[1]
			epoch := protocol.Epoch(7)
			switch how >> 6 {
			case 1:
				epoch = 6
			case 2:
				epoch = 8
			case 3:
				tail.Know(from)
			}
			passed, newer := tail.Add(epoch, run(from, from+uint64(how&7), 8))
			if newer != (epoch == 8) {
				t.Fatalf("epoch %d: newer %v", epoch, newer)
			}
			for _, m := range passed {
				if m.Offset != next {
					t.Fatalf("passed %d when %d was due", m.Offset, next)
				}
				next++
			}
			if tail.Head() != at(next-1) {
				t.Fatalf("head %v, want %d", tail.Head(), next-1)
			}
			checkWindow(t, tail)
			if after, before, gap := tail.Gap(); gap && (after != next-1 || before <= after+1) {
				t.Fatalf("gap %d %d at %d", after, before, next-1)
			}
		}
	})
}

func BenchmarkTail_InOrder(b *testing.B) {
	tail := NewTail(TailLimits{})
	tail.Start(at(0))
	msgs := run(1, 1, 300)
	b.ReportAllocs()
	for b.Loop() {
		msgs[0].Offset = tail.head.Offset + 1
		tail.Add(7, msgs)
	}
}
