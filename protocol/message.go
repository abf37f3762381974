package protocol

// Message is one committed broadcast at its place in a stream. It is immutable
// once made, and shared: whoever holds one must not change Data.
type Message struct {
	// Offset within the stream and epoch, from 1, without holes.
	Offset uint64
	// At is when the message was committed, in microseconds since 1970 by the
	// server's clock. It informs people and retention by age; it decides
	// neither order nor resumption.
	At int64
	// Data is the payload: JSON text, valid UTF-8, stored and sent as the
	// bytes that came in.
	Data []byte
}

// Span tells what a stream holds at one moment. The zero Span is of no stream.
type Span struct {
	Epoch Epoch
	// First is the lowest offset still kept; Last+1 when nothing is kept.
	First uint64
	// Last is the offset of the newest message ever committed in this epoch,
	// 0 when there is none yet. Trimming never moves it back.
	Last uint64
}

// Head is the position of the newest message.
func (s Span) Head() Position { return Position{Epoch: s.Epoch, Offset: s.Last} }

// Reason is the explicit word that a position cannot be continued.
type Reason string

// The reasons of a reset.
const (
	ReasonEpochChanged Reason = "epoch_changed" // the position belongs to another life of the numbering
	ReasonTrimmed      Reason = "trimmed"       // messages after the position are no longer kept
	ReasonAhead        Reason = "ahead"         // the position lies past the head
)

// Check returns why a reader at position p cannot be continued with the
// messages after p, or "" when it can. Epoch 0 in p stands for the current
// epoch.
func (s Span) Check(p Position) Reason {
	switch {
	case p.Epoch != 0 && p.Epoch != s.Epoch:
		return ReasonEpochChanged
	case p.Offset > s.Last:
		return ReasonAhead
	case p.Offset+1 < s.First:
		return ReasonTrimmed
	}
	return ""
}
