// Package auth decides who may do what.
package auth

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/chronocast/chronocast/protocol"
)

// The channels a subscription identifier may name.
const (
	ChannelPubSub = "$pubsub"
	ChannelTurbo  = "Turbo::StreamsChannel"
)

// Open is the policy of a server without a secret: everybody on this machine
// may do everything, nobody else anything. Streams are public and nothing is
// signed, because there is no key to check a signature with.
//
// What keeps others out is the address the server listens on ([Loopback]), and
// for pages in a browser on this machine [Open.Admit].
type Open struct{}

// Admit returns an error that wraps [ErrForbidden] when r was sent by a web
// page of another origin than this machine. It guards every path alike.
//
//   - Host must name this machine. A page whose own name was pointed at
//     127.0.0.1 after it had loaded (DNS rebinding) still sends its own name.
//   - Origin, when there is one, must be of this machine too; any port will do,
//     since pages under development live on ports of their own. A browser sends
//     Origin with every WebSocket and every request that writes.
func (Open) Admit(r *http.Request) error {
	if !loopbackName(hostOnly(r.Host)) {
		return fmt.Errorf("%w: the Host header must name this machine (localhost, 127.0.0.1 or [::1])", ErrForbidden)
	}
	switch origins := r.Header.Values("Origin"); {
	case len(origins) == 0:
		return nil
	case len(origins) > 1 || !loopbackOrigin(origins[0]):
		return fmt.Errorf("%w: pages of this Origin are not admitted, a server without a secret serves this machine only", ErrForbidden)
	}
	return nil
}

// Subscribe returns the stream an identifier leads to. The error is a
// *protocol.CommandError: the subscription is refused for good.
func (Open) Subscribe(_ context.Context, _ *Identity, _ string, id protocol.Identifier) (Access, error) {
	refuse := func(reason, message string) (Access, error) { return Access{}, reject(reason, message) }
	switch {
	case id.Channel != ChannelPubSub && id.Channel != ChannelTurbo:
		return refuse(ReasonUnknownChannel, "the channels are $pubsub and Turbo::StreamsChannel")
	case id.SignedStreamName != "":
		return refuse(ReasonUnauthorized, "this server has no key to check signed stream names with")
	case id.Channel == ChannelTurbo:
		return refuse(ReasonUnauthorized, "Turbo::StreamsChannel takes a signed_stream_name")
	}
	if err := protocol.CheckStream(id.StreamName); err != nil {
		return refuse(ReasonMalformed, "stream_name must be 1 to 255 bytes of UTF-8 without control characters")
	}
	return Access{Streams: []string{id.StreamName}}, nil
}

// Everybody who was admitted is nobody in particular and may do everything.

func (Open) PagesPublish() bool                                                { return true }
func (Open) Identify(*http.Request) (*Identity, error)                         { return nil, nil }
func (Open) Read(context.Context, *Identity, string) error                     { return nil }
func (Open) Publish(*Identity, string) error                                   { return nil }
func (Open) Publisher(*Identity) error                                         { return nil }
func (Open) Administer(*Identity) error                                        { return nil }
func (Open) Metrics(*Identity) error                                           { return nil }
func (Open) Connect(context.Context, *http.Request, string) (*Identity, error) { return nil, nil }

// Present takes no token: there is no key to check one with.
func (Open) Present(context.Context, *Identity, string) (*Identity, error) {
	return nil, ErrUnauthorized
}

// Signed opens nothing: there is no key to check a name with.
func (Open) Signed(*Identity, string) (Signed, error) { return Signed{}, ErrUnauthorized }

// Loopback returns an error unless addr, a HOST:PORT to listen on, can be
// reached from this machine only.
func Loopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT", addr)
	}
	if !loopbackName(host) {
		return fmt.Errorf("%q can be reached from other machines, and without a secret everybody who reaches the server may publish and read: "+
			"set CHRONOCAST_SECRET or --secret-file (chronocast keys new makes one), or use 127.0.0.1, [::1] or localhost", addr)
	}
	return nil
}

func loopbackOrigin(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return loopbackName(u.Hostname())
}

// hostOnly strips the port and the brackets from a Host header.
func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	if strings.HasPrefix(hostport, "[") && strings.HasSuffix(hostport, "]") {
		return hostport[1 : len(hostport)-1]
	}
	return hostport
}

func loopbackName(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}
