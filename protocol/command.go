package protocol

// Command is one decoded client frame.
type Command struct {
	// Name is subscribe, unsubscribe, history, message, token, pong, or any other
	// word a client may send; the session decides what it answers.
	Name string
	// Identifier is the subscription identifier as received, a JSON text.
	Identifier string
	// Data is the argument of a message command, a JSON text, or the token of a
	// token command; empty for others.
	Data string
	// History is the history asked for by subscribe and history, or nil.
	History *HistoryRequest
}

// HistoryRequest asks for what was missed, as AnyCable's client words it: the
// position of each stream that has one, and a time for those that have none. A
// position that another server issued has [ForeignEpoch].
type HistoryRequest struct {
	Since   int64 // unix seconds; 0 is none
	Streams map[string]Position
}

// CommandError tells why a client frame cannot be served. Reason is a word for
// machines, Message a sentence for people; both may be shown to the client.
type CommandError struct {
	Reason     string
	Message    string
	Command    string // name of the command, when it could be read
	Identifier string // its identifier, when it could be read
}

func (e *CommandError) Error() string { return "protocol: " + e.Reason + ": " + e.Message }

// Identifier is what a subscription identifier asks for.
type Identifier struct {
	Channel          string
	StreamName       string    // public stream, for channel $pubsub
	SignedStreamName string    // signed stream, for $pubsub and Turbo::StreamsChannel
	At               *Position // position carried inside the identifier, or nil
	Page             string    // token of the page that was rendered at the position, or empty
}
