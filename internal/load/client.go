package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// tally counts what clients have met.
type tally struct {
	Delivered uint64 // messages of ours, each once for each client it reached
	Frames    uint64 // that carried them
	Bytes     uint64 // of those frames, without their WebSocket headers
	Doubled   uint64
	Inverted  uint64
	Pings     uint64
	Errors    map[string]uint64
	Latency   Histogram // from due to read
}

func (t *tally) fail(err error) {
	if t.Errors == nil {
		t.Errors = make(map[string]uint64)
	}
	t.Errors[oneLine(err.Error(), 160)]++
}

// add adds o and resets it.
func (t *tally) take(o *tally) {
	t.Delivered += o.Delivered
	t.Frames += o.Frames
	t.Bytes += o.Bytes
	t.Doubled += o.Doubled
	t.Inverted += o.Inverted
	t.Pings += o.Pings
	for k, n := range o.Errors {
		if t.Errors == nil {
			t.Errors = make(map[string]uint64)
		}
		t.Errors[k] += n
	}
	t.Latency.Add(&o.Latency)
	latency := o.Latency
	latency.Reset()
	*o = tally{Latency: latency}
}

type clientState uint8

const (
	clientOff clientState = iota
	clientDialing
	clientSubscribing
	clientLive
	clientOver
)

// client is one Action Cable client with one subscription. Its methods and
// hooks run on its loop's goroutine.
type client struct {
	loop   *Loop
	target *target
	c      *conn
	state  clientState
	from   netip.AddrPort
	ident  []byte // the identifier, quoted
	stream string

	base   uint32  // lane of tracks[0]
	tracks []track // of the lanes that are checked
	began  time.Time
	joined time.Duration // from began to live
	limit  *timer        // until it is live

	resume   bool // subscribe with history after the position below
	place    bool // keep the position of what is received
	epoch    string
	offset   uint64
	got      uint64            // messages, of all connections
	holes    bool              // a message did not follow the one before it in its lane
	highest  map[uint32]uint32 // of each lane, where holes are looked for without tracks
	gone     bool              // the server has said disconnect
	comeback bool              // and that we may come back

	live    func(*client)                // the subscription is confirmed
	heard   func(*client, mark, verdict) // one message
	sample  func(text []byte)            // told of one frame with a message, then nil
	over    func(*client, error)         // the connection has ended, by no wish of ours
	control func(*client, *wireFrame)    // any other frame
}

var (
	errRejected = errors.New("the server rejects the subscription")
)

// start connects and subscribes. The error is about this machine.
func (cl *client) start() error {
	cl.state, cl.gone, cl.began = clientDialing, false, time.Now()
	c, err := cl.loop.dial(cl, cl.target.shake, cl.from, cl.target.addr)
	if err != nil {
		cl.state = clientOver
		return err
	}
	cl.c = c
	if cl.target.patience > 0 {
		cl.limit = cl.loop.after(cl.target.patience, func() {
			what := "the handshake was not answered"
			switch {
			case cl.c.state == connDialing:
				what = "no connection"
			case cl.state == clientSubscribing:
				what = "the subscription was not confirmed"
			case cl.c.state == connOpen:
				what = "no welcome came"
			}
			cl.c.fail(fmt.Errorf("%s within %v", what, cl.target.patience))
		})
	}
	return nil
}

// stop leaves.
func (cl *client) stop() {
	cl.limit.stop()
	cl.state = clientOff
	if cl.c != nil {
		cl.c.goodbye()
	}
}

func (cl *client) opened() {
	if cl.target.shake == nil { // a bare connection: nothing to subscribe to
		cl.goLive()
	}
}

func (cl *client) goLive() {
	if cl.state == clientLive {
		return
	}
	cl.limit.stop()
	cl.limit = nil
	cl.state = clientLive
	cl.joined = time.Since(cl.began)
	if cl.live != nil {
		cl.live(cl)
	}
}

func (cl *client) closed(err error) {
	cl.limit.stop()
	cl.state = clientOver
	if cl.over != nil {
		cl.over(cl, err)
		return
	}
	cl.loop.tally.fail(err)
}

var (
	pingStart = []byte(`{"type":"ping"`)
	epochKey  = []byte(`"epoch":"`)
	offsetKey = []byte(`"offset":`)
)

// message is one text message of the server: a ping, something that carries
// payloads of ours, or a control frame.
func (cl *client) message(text []byte) {
	t := &cl.loop.tally
	if bytes.HasPrefix(text, pingStart) {
		t.Pings++
		return
	}
	m, rest, ok := nextMark(text)
	if !ok {
		cl.readControl(text)
		return
	}
	if cl.sample != nil {
		cl.sample(text)
		cl.sample = nil
	}
	t.Frames++
	t.Bytes += uint64(len(text))
	if cl.place {
		cl.keepPlace(text)
	}
	now := cl.loop.now
	for ok {
		t.Delivered++
		cl.got++
		if cl.highest != nil {
			if last, ok := cl.highest[m.lane]; ok && m.seq != last+1 || !ok && m.seq != 1 {
				cl.holes = true
			}
			cl.highest[m.lane] = m.seq
		}
		v := inOrder
		if i := m.lane - cl.base; i < uint32(len(cl.tracks)) {
			if v = cl.tracks[i].see(m.seq); v == doubled {
				t.Doubled++
			} else if v == inverted {
				t.Inverted++
			}
		}
		t.Latency.Record(cl.loop.clk.age(m, now))
		if cl.heard != nil {
			cl.heard(cl, m, v)
		}
		m, rest, ok = nextMark(rest)
	}
}

// keepPlace notes the position of the last message of a frame.
func (cl *client) keepPlace(text []byte) {
	i := bytes.Index(text, epochKey)
	j := bytes.LastIndex(text, offsetKey)
	if i < 0 || j < 0 {
		return
	}
	epoch := text[i+len(epochKey):]
	end := bytes.IndexByte(epoch, '"')
	var n uint64
	for _, d := range text[j+len(offsetKey):] {
		if d < '0' || d > '9' {
			break
		}
		n = n*10 + uint64(d-'0')
	}
	if end > 0 && n > 0 {
		if string(epoch[:end]) != cl.epoch {
			cl.epoch = string(epoch[:end])
		}
		cl.offset = n
	}
}

// wireFrame is every control frame in one.
type wireFrame struct {
	Type       string `json:"type"`
	Identifier string `json:"identifier"`
	Reason     string `json:"reason"`
	Reconnect  *bool  `json:"reconnect"`
	Streams    map[string]struct {
		Epoch  string `json:"epoch"`
		Offset uint64 `json:"offset"`
	} `json:"streams"`
}

func (cl *client) readControl(text []byte) {
	var f wireFrame
	if err := json.Unmarshal(text, &f); err != nil {
		cl.c.fail(errors.New("the server sent a message that is no JSON object: " + oneLine(string(text[:min(len(text), 60)]), 60)))
		return
	}
	switch f.Type {
	case "welcome":
		cl.state = clientSubscribing
		cl.subscribe()
	case "confirm_subscription":
		if s, ok := f.Streams[cl.stream]; ok && cl.place && cl.epoch == "" {
			cl.epoch, cl.offset = s.Epoch, s.Offset
		}
		cl.goLive()
	case "reject_subscription":
		cl.c.fail(fmt.Errorf("%w (%s)", errRejected, oneLine(f.Reason, 60)))
		return
	case "disconnect":
		cl.gone, cl.comeback = true, f.Reconnect == nil || *f.Reconnect
	case "error":
		if cl.control == nil {
			cl.loop.tally.fail(fmt.Errorf("error frame: %s", f.Reason))
		}
	}
	if cl.control != nil {
		cl.control(cl, &f)
	}
}

// subscribe sends the command.
func (cl *client) subscribe() {
	b := append([]byte(`{"command":"subscribe","identifier":`), cl.ident...)
	if cl.resume && cl.epoch != "" {
		b = append(b, `,"history":{"streams":{`...)
		b = append(b, quote(cl.stream)...)
		b = append(b, `:{"epoch":"`...)
		b = append(b, cl.epoch...)
		b = append(b, `","offset":`...)
		b = strconv.AppendUint(b, cl.offset, 10)
		b = append(b, `}}}`...)
	}
	cl.c.send(append(b, '}'))
}

// perform sends an Action Cable message command.
func (cl *client) perform(data []byte) {
	b := append([]byte(`{"command":"message","identifier":`), cl.ident...)
	b = append(b, `,"data":`...)
	b = append(b, quote(string(data))...)
	cl.c.send(append(b, '}'))
}

// quote returns s as a JSON string, without escapes that JSON does not ask for.
func quote(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return bytes.TrimRight(b.Bytes(), "\n")
}
