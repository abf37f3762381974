package protocol

import (
	"slices"
	"strconv"
)

// Bounds of what messages are put together to. A message larger than that goes
// alone.
const (
	MaxFrameBytes = 256 << 10 // a frame of several messages
	MaxRunBytes   = 64 << 10  // frames in one piece: a ping can only go between pieces
)

// jsonCodec speaks JSON at one level. Frames are appended piece by piece:
// payloads, identifiers and stream names are copied, never encoded again.
type jsonCodec struct {
	name  string
	level Level
}

// codecs are all there are, best first.
var codecs = [...]Codec{
	&jsonCodec{SubprotocolChronocast, LevelChronocast},
	&jsonCodec{SubprotocolExtended, LevelExtended},
	&jsonCodec{SubprotocolPlain, LevelPlain},
}

// Codecs returns every codec, the one the server likes best first. Each codec
// exists once, so that two can be compared with ==.
func Codecs() []Codec { return slices.Clone(codecs[:]) }

// ForSubprotocols picks the codec for a client by the subprotocols it offered:
// the best one that the server knows, in the order of [Codecs], whatever the
// order of the offer. Unknown names are passed over. A client that offers
// nothing gets the plain codec; the server then echoes no subprotocol. The
// result is false when something was offered and nothing of it is known.
func ForSubprotocols(offered []string) (Codec, bool) {
	if len(offered) == 0 {
		return codecs[len(codecs)-1], true
	}
	for _, c := range codecs {
		if slices.Contains(offered, c.Name()) {
			return c, true
		}
	}
	return nil, false
}

// NewAddress returns the address of a stream's messages under a subscription
// identifier. Make it once for each subscription and reuse it.
func NewAddress(identifier, stream string) *Address {
	return &Address{
		Identifier:     identifier,
		Stream:         stream,
		identifierJSON: appendQuoted(make([]byte, 0, len(identifier)+len(identifier)/4+2), identifier),
		streamJSON:     appendQuoted(make([]byte, 0, len(stream)+2), stream),
	}
}

func (c *jsonCodec) Name() string { return c.name }

func (c *jsonCodec) Level() Level { return c.level }

func (c *jsonCodec) AppendWelcome(dst []byte, sid string) []byte {
	dst = append(dst, `{"type":"welcome"`...)
	if sid != "" {
		dst = append(dst, `,"sid":`...)
		dst = appendQuoted(dst, sid)
	}
	return append(dst, '}')
}

func (c *jsonCodec) AppendPing(dst []byte, unix int64, heads []StreamPosition) []byte {
	dst = append(dst, `{"type":"ping","message":`...)
	dst = strconv.AppendInt(dst, unix, 10)
	if c.level >= LevelChronocast {
		dst = appendStreams(dst, heads)
	}
	return append(dst, '}')
}

func (c *jsonCodec) AppendConfirm(dst []byte, identifier string, at []StreamPosition) []byte {
	dst = append(dst, `{"type":"confirm_subscription","identifier":`...)
	dst = appendQuoted(dst, identifier)
	dst = appendStreams(dst, at)
	return append(dst, '}')
}

func (c *jsonCodec) AppendReject(dst []byte, identifier, reason string) []byte {
	dst = append(dst, `{"type":"reject_subscription","identifier":`...)
	dst = appendQuoted(dst, identifier)
	dst = append(dst, `,"reason":`...)
	dst = appendQuoted(dst, reason)
	return append(dst, '}')
}

func (c *jsonCodec) AppendConfirmHistory(dst []byte, identifier string) []byte {
	if c.level < LevelExtended {
		return dst
	}
	dst = append(dst, `{"type":"confirm_history","identifier":`...)
	dst = appendQuoted(dst, identifier)
	return append(dst, '}')
}

func (c *jsonCodec) AppendRejectHistory(dst []byte, identifier, reason string, span Span) []byte {
	if c.level < LevelExtended {
		return dst
	}
	dst = append(dst, `{"type":"reject_history","identifier":`...)
	dst = appendQuoted(dst, identifier)
	dst = append(dst, `,"reason":`...)
	dst = appendQuoted(dst, reason)
	dst = appendSpan(dst, span)
	return append(dst, '}')
}

func (c *jsonCodec) AppendPresenceError(dst []byte, identifier string) []byte {
	if c.level < LevelExtended {
		return dst
	}
	dst = append(dst, `{"type":"presence","identifier":`...)
	dst = appendQuoted(dst, identifier)
	return append(dst, `,"message":{"type":"error"}}`...)
}

func (c *jsonCodec) AppendDisconnect(dst []byte, reason DisconnectReason, reconnect bool) []byte {
	dst = append(dst, `{"type":"disconnect","reason":`...)
	dst = appendQuoted(dst, string(reason))
	dst = append(dst, `,"reconnect":`...)
	dst = strconv.AppendBool(dst, reconnect)
	return append(dst, '}')
}

func (c *jsonCodec) AppendReset(dst []byte, a *Address, reason Reason, span Span) []byte {
	if c.level < LevelChronocast {
		return dst
	}
	dst = append(dst, `{"type":"reset","identifier":`...)
	dst = append(dst, a.identifierJSON...)
	dst = append(dst, `,"stream_id":`...)
	dst = append(dst, a.streamJSON...)
	dst = append(dst, `,"reason":`...)
	dst = appendQuoted(dst, string(reason))
	dst = appendSpan(dst, span)
	return append(dst, '}')
}

func (c *jsonCodec) AppendError(dst []byte, command, identifier, reason, message string) []byte {
	if c.level < LevelChronocast {
		return dst
	}
	dst = append(dst, `{"type":"error"`...)
	if command != "" {
		dst = append(dst, `,"command":`...)
		dst = appendQuoted(dst, command)
	}
	if identifier != "" {
		dst = append(dst, `,"identifier":`...)
		dst = appendQuoted(dst, identifier)
	}
	dst = append(dst, `,"reason":`...)
	dst = appendQuoted(dst, reason)
	dst = append(dst, `,"message":`...)
	dst = appendQuoted(dst, message)
	return append(dst, '}')
}

// appendStreams appends the member "streams", or nothing when at is empty.
func appendStreams(dst []byte, at []StreamPosition) []byte {
	if len(at) == 0 {
		return dst
	}
	dst = append(dst, `,"streams":{`...)
	for i, p := range at {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, p.Stream)
		dst = append(dst, `:{"epoch":"`...)
		dst = strconv.AppendInt(dst, int64(p.Epoch), 10)
		dst = append(dst, `","offset":`...)
		dst = strconv.AppendUint(dst, p.Offset, 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// appendSpan appends where a stream stands, or nothing for the zero Span.
func appendSpan(dst []byte, s Span) []byte {
	if s == (Span{}) {
		return dst
	}
	dst = append(dst, `,"epoch":"`...)
	dst = strconv.AppendInt(dst, int64(s.Epoch), 10)
	dst = append(dst, `","first":`...)
	dst = strconv.AppendUint(dst, s.First, 10)
	dst = append(dst, `,"offset":`...)
	return strconv.AppendUint(dst, s.Last, 10)
}

// The pieces of a message frame and of a frame of several.
const (
	oneHead    = `{"identifier":`
	oneMessage = `,"message":`
	oneStream  = `,"stream_id":`
	oneEpoch   = `,"epoch":"`
	oneOffset  = `","offset":`

	manyHead    = `{"type":"messages","identifier":`
	manyLive    = `","messages":[`
	manyReplay  = `","replay":true,"messages":[`
	manyOffset  = `{"offset":`
	manyMessage = `,"message":`
)

func (c *jsonCodec) Frames(dst [][]byte, a *Address, epoch Epoch, msgs []Message, replay bool) [][]byte {
	for len(msgs) > 0 {
		var wire []byte
		var n int
		if c.level < LevelChronocast {
			wire, n = ones(a, epoch, msgs)
		} else {
			wire, n = many(a, epoch, msgs, replay)
		}
		dst, msgs = append(dst, wire), msgs[n:]
	}
	return dst
}

// ones returns a frame for each of the first n messages, in memory of exactly
// their size.
func ones(a *Address, epoch Epoch, msgs []Message) (wire []byte, n int) {
	single := len(oneHead) + len(a.identifierJSON) + len(oneMessage) + len(oneStream) + len(a.streamJSON) +
		len(oneEpoch) + digits(uint64(epoch)) + len(oneOffset) + len(`}`)
	size := 0
	for n < len(msgs) {
		next := size + frameSize(single+oneSize(&msgs[n]))
		if n > 0 && next > MaxRunBytes {
			break
		}
		size, n = next, n+1
	}
	b := make([]byte, 0, size)
	for i := range msgs[:n] {
		m := &msgs[i]
		b = appendHeader(b, single+oneSize(m))
		b = append(b, oneHead...)
		b = append(b, a.identifierJSON...)
		b = append(b, oneMessage...)
		b = append(b, m.Data...)
		b = append(b, oneStream...)
		b = append(b, a.streamJSON...)
		b = append(b, oneEpoch...)
		b = strconv.AppendInt(b, int64(epoch), 10)
		b = append(b, oneOffset...)
		b = strconv.AppendUint(b, m.Offset, 10)
		b = append(b, '}')
	}
	return b, n
}

// many returns one frame of the first n messages, in memory of exactly its
// size. A live one that would hold a single message is a frame of its own.
func many(a *Address, epoch Epoch, msgs []Message, replay bool) (wire []byte, n int) {
	size := len(manyHead) + len(a.identifierJSON) + len(oneStream) + len(a.streamJSON) +
		len(oneEpoch) + digits(uint64(epoch)) + len(manyLive) + len(`]}`) - len(`,`)
	if replay {
		size += len(manyReplay) - len(manyLive)
	}
	for n < len(msgs) {
		next := size + len(`,`) + manySize(&msgs[n])
		if n > 0 && frameSize(next) > MaxFrameBytes {
			break
		}
		size, n = next, n+1
	}
	if n == 1 && !replay {
		return ones(a, epoch, msgs[:1])
	}
	b := appendHeader(make([]byte, 0, frameSize(size)), size)
	b = append(b, manyHead...)
	b = append(b, a.identifierJSON...)
	b = append(b, oneStream...)
	b = append(b, a.streamJSON...)
	b = append(b, oneEpoch...)
	b = strconv.AppendInt(b, int64(epoch), 10)
	if replay {
		b = append(b, manyReplay...)
	} else {
		b = append(b, manyLive...)
	}
	for i := range msgs[:n] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, manyOffset...)
		b = strconv.AppendUint(b, msgs[i].Offset, 10)
		b = append(b, manyMessage...)
		b = append(b, msgs[i].Data...)
		b = append(b, '}')
	}
	return append(b, `]}`...), n
}

// frameSize is what a text takes as a frame.
func frameSize(text int) int { return headerSize(text) + text }

// oneSize is what a message takes in a frame of its own.
func oneSize(m *Message) int { return len(m.Data) + digits(m.Offset) }

// manySize is what a message takes in a frame of several.
func manySize(m *Message) int {
	return len(manyOffset) + digits(m.Offset) + len(manyMessage) + len(m.Data) + len(`}`)
}

// digits returns how many decimal digits n has.
func digits(n uint64) int {
	d := 1
	for ; n >= 10; n /= 10 {
		d++
	}
	return d
}
