package protocol

// Batch is a run of consecutive committed messages of one stream, in one
// epoch, ascending and without holes. It is immutable and shared.
type Batch struct {
	Stream   string
	Epoch    Epoch
	Messages []Message
}
