package hubtest

import (
	"fmt"
	"sync"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/protocol"
)

var _ hub.Sink = (*Sink)(nil)

// Sink is a hub.Sink whose peer reads at once, or not at all while stalled.
// It passes [SinkSuite].
type Sink struct {
	bound int

	mu       sync.Mutex // guards what follows
	changed  chan struct{}
	stalled  bool
	queue    [][]byte
	queued   int
	received [][]byte
	waiting  []func()
	cut      protocol.DisconnectReason
	watch    func(frame []byte)
}

// NewSink returns a sink whose queue takes bound bytes.
func NewSink(bound int) *Sink { return &Sink{bound: bound, changed: make(chan struct{})} }

// Watch has f called with the text of every frame as the peer reads it, in order, with the
// sink's lock held.
func (s *Sink) Watch(f func(frame []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = f
}

// Push implements hub.Sink.
func (s *Sink) Push(frames [][]byte) bool {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != "" {
		return false
	}
	if s.stalled && s.queued > 0 && s.queued+size > s.bound {
		return false
	}
	if s.stalled {
		s.queue, s.queued = append(s.queue, split(frames)...), s.queued+size
		s.changedLocked()
		return true
	}
	s.readLocked(split(frames))
	return true
}

// split cuts what was pushed into single frames, headers included.
func split(wire [][]byte) [][]byte {
	frames := make([][]byte, 0, len(wire))
	for _, w := range wire {
		for len(w) > 0 {
			_, rest, ok := protocol.CutTextFrame(w)
			if !ok {
				panic(fmt.Sprintf("hubtest: no text frame was pushed: %.80q", w))
			}
			frames, w = append(frames, w[:len(w)-len(rest)]), rest
		}
	}
	return frames
}

// textOf returns the text of a single frame.
func textOf(frame []byte) []byte {
	text, _, _ := protocol.CutTextFrame(frame)
	return text
}

func (s *Sink) readLocked(frames [][]byte) {
	for _, f := range frames {
		f = textOf(f)
		if s.watch != nil {
			s.watch(f)
			continue
		}
		s.received = append(s.received, f)
	}
	s.changedLocked()
}

func (s *Sink) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Room implements hub.Sink.
func (s *Sink) Room(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != "" {
		return
	}
	if s.waiting = append(s.waiting, f); s.queued <= s.bound/4 {
		s.callLocked()
	}
}

func (s *Sink) callLocked() {
	for _, f := range s.waiting {
		go f()
	}
	s.waiting = nil
}

// Cut implements hub.Sink.
func (s *Sink) Cut(reason protocol.DisconnectReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != "" {
		return
	}
	s.cut = reason
	s.queue, s.queued, s.waiting = nil, 0, nil
	last := protocol.AppendTextFrame(nil, fmt.Appendf(nil, `{"type":"disconnect","reason":%q,"reconnect":true}`, reason))
	if s.stalled {
		s.queue = [][]byte{last}
	} else {
		s.readLocked([][]byte{last})
	}
	s.changedLocked()
}

// Stall has the peer stop reading.
func (s *Sink) Stall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = true
}

// Resume has the peer read what is queued and go on.
func (s *Sink) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = false
	s.readSomeLocked(len(s.queue))
}

// Read has a stalled peer read n frames.
func (s *Sink) Read(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readSomeLocked(min(n, len(s.queue)))
}

func (s *Sink) readSomeLocked(n int) {
	for _, f := range s.queue[:n] {
		s.queued = max(s.queued-len(f), 0)
	}
	s.readLocked(s.queue[:n])
	s.queue = s.queue[n:]
	if s.queued <= s.bound/4 {
		s.callLocked()
	}
}

// Next has a stalled peer read one frame, waiting for it, and returns its text; false when the
// connection has ended.
func (s *Sink) Next() (frame []byte, ok bool) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			frame = textOf(s.queue[0])
			s.readSomeLocked(1)
			s.mu.Unlock()
			return frame, true
		}
		ended, changed := s.cut != "", s.changed
		s.mu.Unlock()
		if ended {
			return nil, false
		}
		<-changed
	}
}

// Queued returns how many bytes wait for the peer.
func (s *Sink) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued
}

// Frames returns the texts of the frames the peer has read, but for those a Watch took.
func (s *Sink) Frames() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received[:len(s.received):len(s.received)]
}

// WasCut returns the reason of Cut, or "".
func (s *Sink) WasCut() protocol.DisconnectReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// Changed returns a channel that is closed when the next frame comes, or when
// the sink is cut.
func (s *Sink) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
