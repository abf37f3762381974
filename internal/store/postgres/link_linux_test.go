package postgres

import (
	"net"
	"testing"
)

// A read that waits in the background must not hold up the look at the link.
func TestPending(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if pending(client) {
		t.Error("an idle link has something pending")
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		var b [1]byte
		_, _ = client.Read(b[:])
	}()
	for range 1000 {
		if pending(client) {
			t.Fatal("an idle link has something pending")
		}
	}
	if _, err := server.Write([]byte("xy")); err != nil {
		t.Fatal(err)
	}
	<-read // one byte; the other is left
	if !pending(client) {
		t.Error("a byte that has come is not seen")
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	server.Close()
	for !pending(client) { // until the end has come through
	}
}
