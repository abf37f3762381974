package hubtest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSink(t *testing.T) {
	SinkSuite(t, func(*testing.T) Peer {
		s := NewSink(256 << 10)
		s.Stall()
		return Peer{Sink: s, Next: s.Next}
	})
}
