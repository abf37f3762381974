// Package hubtest has what tests of the hub and of its callers share: a log in
// memory whose failures can be planted, a sink, the suite that every sink must
// pass, and a reader of the frames a sink was given.
package hubtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

var _ history.Log = (*Log)(nil)

// Log is a history.Log in memory. Its zero value is not ready; use NewLog.
type Log struct {
	mu      sync.Mutex // guards what follows
	epoch   protocol.Epoch
	streams map[string]*kept
	fault   func(ctx context.Context, op, stream string) error
	reads   map[string]int
	clock   int64
}

type kept struct {
	span protocol.Span
	msgs []protocol.Message
}

// NewLog returns an empty log with the life epoch.
func NewLog(epoch protocol.Epoch) *Log {
	return &Log{epoch: epoch, streams: make(map[string]*kept), reads: make(map[string]int)}
}

// Fault has f called before every read, without locks held: op is "range",
// "since" or "heads", stream the first one asked for. What f returns fails the
// read. nil heals the log.
func (l *Log) Fault(f func(ctx context.Context, op, stream string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

// Down makes every read fail with history.ErrUnavailable, until Fault(nil).
func (l *Log) Down() {
	l.Fault(func(context.Context, string, string) error { return history.ErrUnavailable })
}

// Slow makes every read take d, until Fault(nil).
func (l *Log) Slow(d time.Duration) {
	l.Fault(func(ctx context.Context, _, _ string) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// Reads returns how many reads of the kind there were: "range", "since" or
// "heads".
func (l *Log) Reads(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads[op]
}

// Append commits the payloads, JSON texts, and returns what a sequencer would
// tell a hub.
func (l *Log) Append(stream string, data ...string) protocol.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.streamLocked(stream)
	b := protocol.Batch{Stream: stream, Epoch: k.span.Epoch}
	for _, d := range data {
		l.clock++
		k.span.Last++
		m := protocol.Message{Offset: k.span.Last, At: l.clock, Data: []byte(d)}
		k.msgs = append(k.msgs, m)
		b.Messages = append(b.Messages, m)
	}
	return b
}

// AppendN commits n payloads, each the text "stream/offset" as JSON.
func (l *Log) AppendN(stream string, n int) protocol.Batch {
	l.mu.Lock()
	last := l.streamLocked(stream).span.Last
	l.mu.Unlock()
	data := make([]string, n)
	for i := range data {
		data[i] = Payload(stream, last+uint64(i)+1)
	}
	return l.Append(stream, data...)
}

// Payload is the text AppendN commits at an offset.
func Payload(stream string, offset uint64) string {
	text, err := json.Marshal(fmt.Sprintf("%s/%d", stream, offset))
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(text)
}

// Trimmed drops the messages before the offset first.
func (l *Log) Trimmed(stream string, first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.streamLocked(stream)
	n := 0
	for n < len(k.msgs) && k.msgs[n].Offset < first {
		n++
	}
	k.msgs = slices.Clone(k.msgs[n:])
	k.span.First = max(k.span.First, min(first, k.span.Last+1))
}

// Wipe drops everything and begins another life.
func (l *Log) Wipe(epoch protocol.Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch = epoch
	clear(l.streams)
}

// Rewind drops the newest messages down to the offset last, as a database
// restored from an older copy does that kept its epoch.
func (l *Log) Rewind(stream string, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.streamLocked(stream)
	n := len(k.msgs)
	for n > 0 && k.msgs[n-1].Offset > last {
		n--
	}
	k.msgs = slices.Clone(k.msgs[:n])
	k.span.Last = last
}

func (l *Log) streamLocked(stream string) *kept {
	k := l.streams[stream]
	if k == nil {
		k = &kept{span: protocol.Span{Epoch: l.epoch, First: 1}}
		l.streams[stream] = k
	}
	return k
}

func (l *Log) before(ctx context.Context, op, stream string) error {
	l.mu.Lock()
	l.reads[op]++
	fault := l.fault
	l.mu.Unlock()
	if fault != nil {
		if err := fault(ctx, op, stream); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Range implements history.Log.
func (l *Log) Range(ctx context.Context, stream string, after uint64, limit, maxBytes int) (history.Page, error) {
	if err := l.before(ctx, "range", stream); err != nil {
		return history.Page{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.streamLocked(stream)
	page := history.Page{Span: k.span}
	if after+1 < k.span.First {
		return page, nil
	}
	size := 0
	for _, m := range k.msgs[min(after+1-k.span.First, uint64(len(k.msgs))):] {
		size += len(m.Data)
		if len(page.Messages) == limit || (len(page.Messages) > 0 && size > maxBytes) {
			break
		}
		page.Messages = append(page.Messages, m)
	}
	return page, nil
}

// Since implements history.Log. Time is the number of messages committed
// before, over all streams, plus one.
func (l *Log) Since(ctx context.Context, stream string, at int64) (protocol.Span, uint64, error) {
	if err := l.before(ctx, "since", stream); err != nil {
		return protocol.Span{}, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.streamLocked(stream)
	n := 0
	for n < len(k.msgs) && k.msgs[n].At < at {
		n++
	}
	after := k.span.First - 1 + uint64(n)
	if n == 0 && k.span.First > 1 {
		after = k.span.First - 2
	}
	return k.span, after, nil
}

// Heads implements history.Log.
func (l *Log) Heads(ctx context.Context, streams []string) ([]protocol.Span, error) {
	first := ""
	if len(streams) > 0 {
		first = streams[0]
	}
	if err := l.before(ctx, "heads", first); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	spans := make([]protocol.Span, len(streams))
	for i, s := range streams {
		spans[i] = l.streamLocked(s).span
	}
	return spans, nil
}

// Trim implements history.Log: it keeps the newest r.Default.Count messages of
// each stream.
func (l *Log) Trim(_ context.Context, r history.Retention) (bool, error) {
	if r.Default.Count == 0 {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.streams {
		if over := len(k.msgs) - r.Default.Count; over > 0 {
			k.msgs = slices.Clone(k.msgs[over:])
			k.span.First += uint64(over)
		}
	}
	return false, nil
}
