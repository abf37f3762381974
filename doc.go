// Package chronocast is the root of a server that delivers broadcasts to
// browsers in order, once and recoverably. It holds no code: start reading at
// docs/ARCHITECTURE.md, run cmd/chronocast.
package chronocast
