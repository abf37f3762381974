// Package socket moves frames between WebSocket clients and the server, once
// the handshake is over.
//
// On Linux a plain TCP connection is taken out of the Go runtime: its
// descriptor is duplicated, the net.Conn closed, and one epoll loop reads for
// all. A connection that says nothing has no goroutine and no buffer. What is
// sent is written at once by whoever pushes it, without waiting; what the
// kernel does not take is kept as references to the bytes all receivers share,
// and written when there is room. Everywhere else (another system, TLS, a
// connection that is no TCP) a connection has one goroutine that reads, and one
// that writes while there is something to write. Both kinds are a [Conn], keep
// the same promises and pass the same tests.
//
// # Who may do what
//
//   - The lock of a connection guards its queue and its state. It is held across
//     a write that cannot wait, never across one that can, and never across a
//     callback.
//   - What a client sends has one owner at a time: the loop, or the worker that
//     runs the client's commands. Ownership changes hands under the lock
//     (Conn.busy).
//   - A descriptor is closed by the loop that reads from it and by nobody else.
//     Others shut the socket down, under the connection's lock, and the loop
//     notices. Were it closed elsewhere, its number could belong to another
//     client by the time somebody reads from it or writes to it.
//   - Handler.Ended is called once, after everything else.
package socket
