package protocol

// The WebSocket subprotocols this package has codecs for.
const (
	SubprotocolPlain      = "actioncable-v1-json"     // Action Cable as Rails speaks it
	SubprotocolExtended   = "actioncable-v1-ext-json" // AnyCable's extension with history
	SubprotocolChronocast = "chronocast-v1-json"      // ours: resets, errors, bursts in one frame
)

// Level orders the subprotocols by what a client of each can understand.
type Level int

// The levels. A frame type introduced at one level is never sent below it.
const (
	LevelPlain      Level = iota // messages, confirmations, rejections
	LevelExtended                // and history
	LevelChronocast              // and reset, error and messages frames
)

// DisconnectReason is why the server ends a connection.
type DisconnectReason string

// The disconnect reasons.
const (
	DisconnectUnauthorized  DisconnectReason = "unauthorized"
	DisconnectTokenExpired  DisconnectReason = "token_expired"
	DisconnectServerRestart DisconnectReason = "server_restart"
	DisconnectTooSlow       DisconnectReason = "too_slow"
	DisconnectRemote        DisconnectReason = "remote"
	DisconnectIdleTimeout   DisconnectReason = "idle_timeout"
)

// StreamPosition is a position together with the stream it belongs to.
type StreamPosition struct {
	Stream string
	Position
}

// Address is where a message frame goes: a subscription identifier and a
// stream, quoted once as JSON strings so that encoding a message only copies
// them. The identifier is echoed byte for byte in meaning: the JSON string
// decodes to exactly the text the client sent.
type Address struct {
	Identifier string
	Stream     string

	identifierJSON []byte
	streamJSON     []byte
}

// Codec encodes replies and decodes commands for one subprotocol. Codecs are
// stateless and safe for concurrent use. Every Append method appends the text of
// one frame to dst and returns the extended slice; [AppendTextFrame] makes it
// ready for the wire.
type Codec interface {
	// Name is the subprotocol's name as it is negotiated.
	Name() string
	Level() Level

	// Decode reads one client frame. The error, if any, is a *CommandError
	// whose Reason and Message may be shown to the client.
	Decode(frame []byte) (Command, error)

	AppendWelcome(dst []byte, sid string) []byte
	// AppendPing appends a ping with the server's time in unix seconds. heads
	// tells how far each stream has been sent on this socket; levels below
	// LevelChronocast leave it out.
	AppendPing(dst []byte, unix int64, heads []StreamPosition) []byte
	AppendConfirm(dst []byte, identifier string, at []StreamPosition) []byte
	AppendReject(dst []byte, identifier, reason string) []byte
	// AppendConfirmHistory, AppendRejectHistory and AppendPresenceError are for
	// LevelExtended and above; below it they append nothing, because a Rails
	// client takes every frame type it does not know for a message. A zero
	// span is left out.
	AppendConfirmHistory(dst []byte, identifier string) []byte
	AppendRejectHistory(dst []byte, identifier, reason string, span Span) []byte
	// AppendPresenceError tells that there is no presence to ask for.
	AppendPresenceError(dst []byte, identifier string) []byte
	AppendDisconnect(dst []byte, reason DisconnectReason, reconnect bool) []byte

	// AppendReset and AppendError are for LevelChronocast; below it they
	// append nothing.
	AppendReset(dst []byte, a *Address, reason Reason, span Span) []byte
	AppendError(dst []byte, command, identifier, reason, message string) []byte

	// Frames encodes consecutive messages, in order, and appends them to dst.
	// What it appends is ready for the wire: each element is one or more whole
	// WebSocket text frames, headers included, as many together as
	// [MaxRunBytes] and [MaxFrameBytes] allow. replay marks messages read back from history.
	// Each element is memory of its own and may be kept and shared; payloads
	// are copied once.
	Frames(dst [][]byte, a *Address, epoch Epoch, msgs []Message, replay bool) [][]byte
}
