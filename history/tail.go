package history

import (
	"sort"

	"github.com/chronocast/chronocast/protocol"
)

// TailLimits bounds the memory of a [Tail]. Zero fields take the defaults.
type TailLimits struct {
	WindowCount int // messages kept after they passed; default 1,000
	WindowBytes int // and their bytes; default 256 KiB
	HeldCount   int // messages that came too early; default 1,024
	HeldBytes   int // and their bytes; default 1 MiB
}

func (l TailLimits) withDefaults() TailLimits {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&l.WindowCount, 1000},
		{&l.WindowBytes, 256 << 10},
		{&l.HeldCount, 1024},
		{&l.HeldBytes, 1 << 20},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return l
}

// messageOverhead is what a message is taken to cost beside its payload.
const messageOverhead = 48

func cost(m protocol.Message) int { return len(m.Data) + messageOverhead }

// Tail is the in-order gate at the end of a stream. Hints of committed
// messages go in, in any order and any number of times; every message comes
// out once, each right after the one before it. What is early is held, what is
// old is dropped, and what is missing is told by [Tail.Gap] so that the owner
// can read it from the log and add it.
//
// The newest messages that passed stay readable as the window. Tail has no
// goroutine, clock or lock: the owner serializes the calls.
type Tail struct {
	limits TailLimits
	head   protocol.Position // newest message that passed
	known  uint64            // newest offset known to exist, when past the head

	window      []protocol.Message // ends at head, without holes
	windowBytes int
	held        []protocol.Message // ascending, all past head+1
	heldBytes   int
}

// NewTail returns a Tail that lets nothing pass until [Tail.Start].
func NewTail(limits TailLimits) *Tail { return &Tail{limits: limits.withDefaults()} }

// Start places the gate after the message at head and forgets everything
// else: held messages, window, and what was known to be missing.
func (t *Tail) Start(head protocol.Position) {
	*t = Tail{limits: t.limits, head: head}
}

// Head returns the position of the newest message that passed.
func (t *Tail) Head() protocol.Position { return t.head }

// Known returns the newest offset known to exist: that of the head, or one
// past it that was held, dropped from the held ones, or told by [Tail.Know].
func (t *Tail) Known() uint64 {
	last := max(t.head.Offset, t.known)
	if n := len(t.held); n > 0 {
		last = max(last, t.held[n-1].Offset)
	}
	return last
}

// Doubt takes back what [Tail.Know] told of offsets past last: the log, asked
// again and again, does not have them.
func (t *Tail) Doubt(last uint64) { t.known = min(t.known, last) }

// Know tells that the stream reaches up to the offset last, so that
// [Tail.Gap] reports what is missing even when no later message arrives.
func (t *Tail) Know(last uint64) { t.known = max(t.known, min(last, protocol.MaxOffset)) }

// Add takes messages of one epoch and returns those that pass now, in order
// and without holes. The result may share memory with msgs and must not be
// changed. newer reports messages of a later epoch than the head's: they are
// dropped, and the owner asks the log for the truth and starts again. Messages
// of an earlier epoch are dropped.
func (t *Tail) Add(epoch protocol.Epoch, msgs []protocol.Message) (passed []protocol.Message, newer bool) {
	if epoch != t.head.Epoch {
		return nil, epoch > t.head.Epoch && len(msgs) > 0
	}
	for i := 0; i < len(msgs); {
		switch off := msgs[i].Offset; {
		case off <= t.head.Offset || off > protocol.MaxOffset:
			i++
		case off == t.head.Offset+1:
			j := i + 1
			for j < len(msgs) && msgs[j].Offset == msgs[j-1].Offset+1 && msgs[j].Offset <= protocol.MaxOffset {
				j++
			}
			passed = t.pass(passed, msgs[i:j:j])
			passed = t.release(passed)
			i = j
		default:
			t.hold(msgs[i])
			i++
		}
	}
	return passed, false
}

// Gap returns the bounds of what is missing, both exclusive: the newest offset
// that passed, and the lowest one held. With nothing held it ends past the
// newest offset known to exist.
func (t *Tail) Gap() (after, before uint64, ok bool) {
	if len(t.held) > 0 {
		return t.head.Offset, t.held[0].Offset, true
	}
	if t.known > t.head.Offset {
		return t.head.Offset, t.known + 1, true
	}
	return 0, 0, false
}

// After returns messages following the offset after from the window, at most
// limit of them and maxBytes of payload, but at least one when there is one.
// covered is false when the window does not reach back that far. The slice is
// the caller's; what the messages share is not.
func (t *Tail) After(after uint64, limit, maxBytes int) (msgs []protocol.Message, covered bool) {
	if !t.Covers(after) {
		return nil, false
	}
	if after >= t.head.Offset {
		return nil, true
	}
	rest := t.window[len(t.window)-int(t.head.Offset-after):]
	n, size := 0, 0
	for n < len(rest) && n < limit {
		size += len(rest[n].Data)
		if n > 0 && size > maxBytes {
			break
		}
		n++
	}
	return append([]protocol.Message(nil), rest[:n]...), true
}

// Covers says whether everything after the offset is in the window.
func (t *Tail) Covers(after uint64) bool {
	return after >= t.head.Offset || t.head.Offset-after <= uint64(len(t.window))
}

// WindowBytes returns what the window costs in memory.
func (t *Tail) WindowBytes() int { return t.windowBytes }

// Forget drops the messages before the offset first from the window.
func (t *Tail) Forget(first uint64) {
	n := sort.Search(len(t.window), func(i int) bool { return t.window[i].Offset >= first })
	t.dropWindow(n)
}

func (t *Tail) pass(passed, run []protocol.Message) []protocol.Message {
	t.head.Offset = run[len(run)-1].Offset
	for _, m := range run {
		t.windowBytes += cost(m)
	}
	t.window = append(t.window, run...)
	n, size := 0, t.windowBytes
	for n < len(t.window) && (size > t.limits.WindowBytes || len(t.window)-n > t.limits.WindowCount) {
		size -= cost(t.window[n])
		n++
	}
	t.dropWindow(n)
	if passed == nil {
		return run
	}
	return append(passed, run...)
}

func (t *Tail) dropWindow(n int) {
	for _, m := range t.window[:n] {
		t.windowBytes -= cost(m)
	}
	clear(t.window[:n]) // let go of the payloads
	if t.window = t.window[n:]; len(t.window) == 0 {
		t.window = nil
	}
}

// release lets the held messages pass that follow the head, and drops those
// that passed another way.
func (t *Tail) release(passed []protocol.Message) []protocol.Message {
	old := 0
	for old < len(t.held) && t.held[old].Offset <= t.head.Offset {
		old++
	}
	end, next := old, t.head.Offset+1
	for end < len(t.held) && t.held[end].Offset == next {
		end, next = end+1, next+1
	}
	if end == 0 {
		return passed
	}
	for _, m := range t.held[:end] {
		t.heldBytes -= cost(m)
	}
	run := t.held[old:end:end]
	if t.held = t.held[end:]; len(t.held) == 0 {
		t.held = nil
	}
	if len(run) == 0 {
		return passed
	}
	return t.pass(passed, run)
}

// hold keeps a message that came too early. Over the bounds the highest held
// ones go: they are needed last, and the log has them.
func (t *Tail) hold(m protocol.Message) {
	i := len(t.held)
	if i > 0 && t.held[i-1].Offset >= m.Offset {
		i = sort.Search(len(t.held), func(i int) bool { return t.held[i].Offset >= m.Offset })
		if t.held[i].Offset == m.Offset {
			return
		}
	}
	t.held = append(t.held, protocol.Message{})
	copy(t.held[i+1:], t.held[i:])
	t.held[i] = m
	t.heldBytes += cost(m)
	for len(t.held) > t.limits.HeldCount || t.heldBytes > t.limits.HeldBytes {
		last := len(t.held) - 1
		t.Know(t.held[last].Offset)
		t.heldBytes -= cost(t.held[last])
		t.held[last] = protocol.Message{}
		t.held = t.held[:last]
	}
}
