package load

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// target is where clients connect.
type target struct {
	url      *url.URL
	host     string
	addr     netip.AddrPort
	shake    *handshake // nil: bare connections
	tls      *tls.Config
	patience time.Duration // until a client must be live
}

// parseTarget reads the address of a cable: ws, wss, http or https; a host
// alone means /cable on it.
func parseTarget(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "ws://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, errors.New("the URL must look like ws://127.0.0.1:8080/cable")
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	case "ws", "wss":
	default:
		return nil, fmt.Errorf("the URL must begin with ws:// or wss://, not %s://", u.Scheme)
	}
	if u.User != nil {
		return nil, errors.New("the URL must not carry a user name or a password; give --header 'Authorization: …'")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/cable"
	}
	return u, nil
}

// resolve finds the address of a URL's host.
func resolve(u *url.URL) (netip.AddrPort, error) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"ws": "80", "http": "80", "wss": "443", "https": "443"}[u.Scheme]
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, fmt.Errorf("the URL has no port that can be used: %q", port)
	}
	ips, err := net.LookupIP(u.Hostname())
	if err != nil || len(ips) == 0 {
		return netip.AddrPort{}, fmt.Errorf("there is no host %q", u.Hostname())
	}
	best := ips[0]
	for _, ip := range ips {
		if ip.To4() != nil {
			best = ip
			break
		}
	}
	a, _ := netip.AddrFromSlice(best)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}

// newTarget prepares a target for clients of one subprotocol.
func newTarget(u *url.URL, o Options) (*target, error) {
	addr, err := resolve(u)
	if err != nil {
		return nil, err
	}
	t := &target{url: u, host: u.Host, addr: addr, patience: o.Timeout}
	if u.Scheme == "wss" {
		t.tls = &tls.Config{ServerName: u.Hostname(), InsecureSkipVerify: o.Insecure}
	}
	shake := newHandshake(u.RequestURI(), u.Host, o.Origin, o.Protocol, o.Headers)
	t.shake = &shake
	return t, nil
}

// source is the address a client connects from. One address has about 28,000
// ports for each server, of which the kernel looks at one half first: beyond
// 14,000 each connect takes milliseconds to find a free one, and the loop
// stands still meanwhile. On this machine there are as many addresses as one
// likes.
func (t *target) source(i int) netip.AddrPort {
	const perAddress = 5_000
	n := i / perAddress
	if n == 0 || !t.addr.Addr().IsLoopback() || !t.addr.Addr().Is4() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + n%250)}), 0)
}
