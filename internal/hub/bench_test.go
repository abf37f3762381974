package hub_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// fanOut is a hub whose subscribers only count. Its messages are in no log, so
// heads must not be compared.
type fanOut struct {
	hub     *hub.Hub
	stream  string
	offset  uint64
	left    atomic.Int64
	all     chan struct{}
	readers int64
}

func newFanOut(tb testing.TB, subscribers, identifiers int) *fanOut {
	tb.Helper()
	f := &fanOut{hub: hub.New(hubtest.NewLog(life), hub.Options{SweepEvery: time.Hour}), stream: chat, all: make(chan struct{}, 1), readers: int64(subscribers)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.hub.Run(ctx); err != nil {
			tb.Error(err)
		}
	}()
	tb.Cleanup(func() {
		cancel()
		<-ended
	})
	codec, _ := protocol.ForSubprotocols([]string{ours})
	sink := sinkFunc(func() {
		if f.left.Add(-1) == 0 {
			f.all <- struct{}{}
		}
	})
	for i := range subscribers {
		addr := protocol.NewAddress(fmt.Sprintf(`{"channel":"$pubsub","stream_name":"chat/42","n":%d}`, i%identifiers), f.stream)
		sub, _, err := f.hub.Subscribe(ctx, f.stream, addr, codec, sink)
		if err != nil {
			tb.Fatal(err)
		}
		sub.Live()
	}
	return f
}

// one publishes a message and waits until everybody has it.
func (f *fanOut) one(batch []protocol.Batch, data []byte) {
	f.offset++
	f.left.Store(f.readers)
	batch[0] = protocol.Batch{Stream: f.stream, Epoch: life, Messages: []protocol.Message{{Offset: f.offset, Data: data}}}
	f.hub.Publish(batch)
	<-f.all
}

func BenchmarkFanOut(b *testing.B) {
	for _, c := range []struct{ subscribers, identifiers int }{{1, 1}, {1000, 1}, {1000, 2}, {1000, 1000}} {
		b.Run(fmt.Sprintf("%d subscribers, %d identifiers", c.subscribers, c.identifiers), func(b *testing.B) {
			f := newFanOut(b, c.subscribers, c.identifiers)
			batch, data := make([]protocol.Batch, 1), []byte(`"`+strings.Repeat("x", 298)+`"`)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				f.one(batch, data)
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/float64(c.subscribers), "ns/delivery")
		})
	}
}
