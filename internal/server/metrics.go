package server

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/chronocast/chronocast/protocol"
)

// metrics counts what the server does, for /metrics in the text format of
// Prometheus. There are few of them and none has a label whose values a client
// could choose.
type metrics struct {
	upgrades   atomic.Uint64 // connections that became WebSockets
	commands   atomic.Uint64 // client frames handed to a session
	broadcasts atomic.Uint64 // stored over HTTP
	repeats    atomic.Uint64 // answered by an earlier one under the same key

	mu       sync.Mutex // guards what follows
	cuts     map[string]uint64
	refusals map[string]uint64
}

// refused counts a refusal by its code. The codes are the server's own words,
// so their number is bounded.
func (m *metrics) refused(code string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusals == nil {
		m.refusals = make(map[string]uint64)
	}
	m.refusals[code]++
}

func (m *metrics) cut(reason protocol.DisconnectReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cuts == nil {
		m.cuts = make(map[string]uint64)
	}
	m.cuts[string(reason)]++
}

// Sample is one figure of /metrics that the server is told by its owner.
type Sample struct {
	Name    string // without the prefix chronocast_
	Help    string
	Counter bool // it only ever grows; otherwise a gauge
	Value   uint64
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	var b []byte
	family := func(name, kind, help string) {
		b = append(b, "# HELP chronocast_"+name+" "+help+"\n# TYPE chronocast_"+name+" "+kind+"\n"...)
	}
	one := func(name, kind, help string, value uint64) {
		family(name, kind, help)
		b = append(b, "chronocast_"+name+" "...)
		b = append(strconv.AppendUint(b, value, 10), '\n')
	}
	labelled := func(name, label, help string, values map[string]uint64) {
		family(name, "counter", help)
		for _, v := range slices.Sorted(maps.Keys(values)) {
			b = append(b, "chronocast_"+name+"{"+label+"=\""+v+"\"} "...)
			b = append(strconv.AppendUint(b, values[v], 10), '\n')
		}
	}
	m := &s.metrics
	connections, subscriptions := s.load()
	frames, bytes := s.written()
	one("connections", "gauge", "WebSocket connections open now.", uint64(connections))
	one("subscriptions", "gauge", "Subscriptions of the connections open now.", uint64(subscriptions))
	one("connections_total", "counter", "WebSocket connections accepted.", m.upgrades.Load())
	one("commands_total", "counter", "Client frames handled.", m.commands.Load())
	one("frames_sent_total", "counter", "Text frames written to WebSockets, pings apart.", frames)
	one("frames_sent_bytes_total", "counter", "Payload bytes of those frames.", bytes)
	one("broadcasts_total", "counter", "Broadcasts stored over HTTP.", m.broadcasts.Load())
	one("broadcast_repeats_total", "counter", "Broadcasts answered by an earlier one under the same key.", m.repeats.Load())
	m.mu.Lock()
	labelled("connections_cut_total", "reason", "Connections ended by the server, by reason.", m.cuts)
	labelled("errors_total", "code", "Requests and commands refused, by code.", m.refusals)
	m.mu.Unlock()
	if s.opts.Samples != nil {
		for _, sample := range s.opts.Samples() {
			kind := "gauge"
			if sample.Counter {
				kind = "counter"
			}
			one(sample.Name, kind, sample.Help, sample.Value)
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b)
}
