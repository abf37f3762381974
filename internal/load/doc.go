// Package load puts load on an Action Cable server and measures what comes
// back: it is what chronocast bench runs.
//
// A [Loop] owns many client connections on one goroutine. On Linux it reads and
// writes them through epoll, so that ten thousand clients cost the generator
// less than they cost the server; elsewhere, and for wss, a goroutine for each
// connection feeds the same loop. Every message carries a mark with the time it
// was due and a sequence number of its lane, a lane being one publisher whose
// messages must arrive in order. From the marks each client counts what was
// lost, doubled and out of order, and the latency from due to read.
//
// [Run] runs one scenario against a URL or against servers of our own, and
// returns a [Result], which becomes a table, JSON or a page of HTML.
package load
