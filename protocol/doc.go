// Package protocol holds the words that Chronocast's parts and its clients
// share: positions and spans, messages, commands, and the codecs that turn
// them into the frames of a WebSocket subprotocol. It does no I/O, starts no
// goroutine and imports nothing of Chronocast. PROTOCOL.md beside it is the
// specification, each of its rules with the test that proves it.
//
// A payload is checked once, on its way in, by [CheckPayload], [QuotePayload]
// or [DecodeBroadcasts]. From then on its bytes are copied and never looked at
// again: they reach every client as they came.
//
// What clients send is read by hand over text that was validated as a whole.
// Keys are compared exactly, a repeated key counts by its last value, members
// of other names are ignored, and text that has no UTF-8 (an escaped lone
// surrogate) is refused where it would have to be changed to be kept.
package protocol
