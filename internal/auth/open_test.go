package auth

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen_AdmitsThisMachineOnly(t *testing.T) {
	const none = "-"
	tests := []struct {
		host, origin string
		admitted     bool
	}{
		{"127.0.0.1:8080", none, true},
		{"127.0.0.1", none, true},
		{"127.8.9.1:80", none, true},
		{"localhost:8080", none, true},
		{"LOCALHOST", none, true},
		{"localhost.:8080", none, true},
		{"[::1]:8080", none, true},
		{"[::1]", none, true},
		{"[::ffff:127.0.0.1]:80", none, true},
		{"localhost:8080", "http://localhost:8080", true},
		{"localhost:8080", "http://localhost:3000", true},
		{"localhost:8080", "https://127.0.0.1:3000", true},
		{"127.0.0.1:8080", "http://[::1]:5173", true},

		// DNS rebinding: the page's own name, resolved to this machine.
		{"evil.example:8080", none, false},
		{"evil.example:8080", "http://evil.example:8080", false},
		{"localhost.evil.example", none, false},
		{"127.0.0.1.nip.io:8080", none, false},
		{"192.168.1.2:8080", none, false},
		{"0.0.0.0:8080", none, false},
		{"[::]:8080", none, false},
		{"", none, false},
		{"[::1%25lo]:8080", none, false},
		// Pages of other origins.
		{"localhost:8080", "http://evil.example", false},
		{"localhost:8080", "https://localhost.evil.example", false},
		{"localhost:8080", "http://localhost@evil.example", false},
		{"localhost:8080", "http://user@localhost", false},
		{"localhost:8080", "null", false},
		{"localhost:8080", "", false},
		{"localhost:8080", "file://localhost", false},
		{"localhost:8080", "http://", false},
		{"localhost:8080", "http://localhost/x", false},
	}
	for _, tt := range tests {
		r := httptest.NewRequest("GET", "/cable", nil)
		r.Host = tt.host
		if tt.origin != none {
			r.Header["Origin"] = []string{tt.origin}
		}
		err := Open{}.Admit(r)
		if (err == nil) != tt.admitted {
			t.Errorf("Host %q Origin %q: admitted %t, want %t", tt.host, tt.origin, err == nil, tt.admitted)
		}
		if err != nil && !errors.Is(err, ErrForbidden) {
			t.Errorf("Host %q Origin %q: %v is not ErrForbidden", tt.host, tt.origin, err)
		}
	}

	r := httptest.NewRequest("GET", "/cable", nil)
	r.Host = "localhost"
	r.Header["Origin"] = []string{"http://localhost", "http://evil.example"}
	if (Open{}).Admit(r) == nil {
		t.Error("two Origin headers were admitted")
	}
}

func TestOpen_StreamOfAnIdentifier(t *testing.T) {
	tests := []struct {
		id     protocol.Identifier
		stream string
		reason string
	}{
		{protocol.Identifier{Channel: "$pubsub", StreamName: "chat/42"}, "chat/42", ""},
		{protocol.Identifier{Channel: "$pubsub", StreamName: strings.Repeat("語", 85)}, strings.Repeat("語", 85), ""},
		{protocol.Identifier{Channel: "$pubsub", StreamName: strings.Repeat("x", 256)}, "", "malformed"},
		{protocol.Identifier{Channel: "$pubsub", StreamName: "a\nb"}, "", "malformed"},
		{protocol.Identifier{Channel: "$pubsub"}, "", "malformed"},
		{protocol.Identifier{Channel: "$pubsub", SignedStreamName: "x--y"}, "", "unauthorized"},
		{protocol.Identifier{Channel: "$pubsub", StreamName: "a", SignedStreamName: "x--y"}, "", "unauthorized"},
		{protocol.Identifier{Channel: "Turbo::StreamsChannel", SignedStreamName: "x--y"}, "", "unauthorized"},
		{protocol.Identifier{Channel: "Turbo::StreamsChannel", StreamName: "a"}, "", "unauthorized"},
		{protocol.Identifier{Channel: "ChatChannel", StreamName: "a"}, "", "unknown_channel"},
		{protocol.Identifier{}, "", "unknown_channel"},
	}
	for _, tt := range tests {
		access, err := Open{}.Subscribe(context.Background(), nil, "", tt.id)
		stream := strings.Join(access.Streams, " ")
		var refusal *protocol.CommandError
		switch {
		case tt.reason == "" && (err != nil || stream != tt.stream):
			t.Errorf("%+v: %q, %v, want %q", tt.id, stream, err, tt.stream)
		case tt.reason != "" && (!errors.As(err, &refusal) || refusal.Reason != tt.reason || stream != ""):
			t.Errorf("%+v: %q, %v, want refusal %q", tt.id, stream, err, tt.reason)
		}
	}
}

func TestLoopback_RefusesAddressesOthersCanReach(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:8080", "127.0.0.2:0", "localhost:80", "[::1]:0"} {
		if err := Loopback(addr); err != nil {
			t.Errorf("Loopback(%q): %v", addr, err)
		}
	}
	for _, addr := range []string{":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.1:80", "example.com:80", "localhost", "", "8080"} {
		if err := Loopback(addr); err == nil {
			t.Errorf("Loopback(%q) is allowed", addr)
		}
	}
}
