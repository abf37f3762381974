package auth

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Origins are the web pages that may use the server. The zero value is pages
// of the server's own origin only.
type Origins struct {
	all   bool
	exact []origin
	below []origin // hosts that begin with a dot: every host that ends so
}

type origin struct{ scheme, host, port string }

// ParseOrigins reads a list, separated by commas or spaces, of origins
// (https://example.com, http://localhost:3000), of those of all subdomains
// (https://*.example.com), or * for all pages.
func ParseOrigins(text string) (Origins, error) {
	var list Origins
	for entry := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }) {
		if entry == "*" {
			list.all = true
			continue
		}
		plain := strings.Replace(entry, "://*.", "://", 1)
		o, ok := parseOrigin(plain)
		if !ok || strings.Contains(plain, "*") {
			return Origins{}, fmt.Errorf("%q is not an origin like https://example.com, https://*.example.com or *", entry)
		}
		if plain != entry {
			o.host = "." + o.host
			list.below = append(list.below, o)
			continue
		}
		list.exact = append(list.exact, o)
	}
	return list, nil
}

// Empty says whether only the server's own origin is admitted.
func (l Origins) Empty() bool { return !l.all && len(l.exact) == 0 && len(l.below) == 0 }

// check returns an error unless r comes from no page or from one that may.
func (l Origins) check(r *http.Request) error {
	values := r.Header.Values("Origin")
	if len(values) == 0 {
		return nil
	}
	if len(values) == 1 && l.allows(values[0], r.Host) {
		return nil
	}
	return fmt.Errorf("%w: pages of this Origin are not admitted", ErrForbidden)
}

func (l Origins) allows(text, host string) bool {
	o, ok := parseOrigin(text)
	switch {
	case !ok: // null, files, extensions, and what is no origin at all
		return false
	case l.all || slices.Contains(l.exact, o):
		return true
	case l.Empty():
		own, ok := parseOrigin(o.scheme + "://" + host)
		return ok && own == o
	}
	return slices.ContainsFunc(l.below, func(b origin) bool {
		return b.scheme == o.scheme && b.port == o.port && strings.HasSuffix(o.host, b.host)
	})
}

func parseOrigin(text string) (origin, bool) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.Path != "" ||
		u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#") {
		return origin{}, false
	}
	o := origin{u.Scheme, strings.ToLower(u.Hostname()), u.Port()}
	if o.port == "" {
		o.port = map[string]string{"http": "80", "https": "443"}[o.scheme]
	}
	return o, o.host != "" && !strings.HasPrefix(o.host, ".")
}

// Proxies are the addresses whose X-Forwarded-For is believed.
type Proxies []netip.Prefix

// ParseProxies reads a list, separated by commas or spaces, of addresses and
// networks such as 10.0.0.0/8.
func ParseProxies(text string) (Proxies, error) {
	var list Proxies
	for entry := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }) {
		if addr, err := netip.ParseAddr(entry); err == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network like 10.0.0.0/8", entry)
		}
		list = append(list, prefix.Masked())
	}
	return list, nil
}

func (l Proxies) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Address returns where r comes from: the peer, or when that is a proxy of the
// list, the last address in X-Forwarded-For that is none. What stands before it
// anybody may have written.
func (l Proxies) Address(r *http.Request) (netip.Addr, error) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, errNoAddress
	}
	addr := peer.Addr().Unmap()
	if !l.trusts(addr) {
		return addr, nil
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			hostport, perr := netip.ParseAddrPort(strings.TrimSpace(hop))
			if perr != nil {
				return addr, nil // the nearest one that can be read
			}
			next = hostport.Addr()
		}
		if addr = next.Unmap().WithZone(""); !l.trusts(addr) {
			return addr, nil
		}
	}
	return addr, nil
}

var errNoAddress = errors.New("auth: the request has no address")

// Network is the part of an address that one client can be told apart by: all
// of an IPv4 address, the first half of an IPv6 address.
func Network(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
