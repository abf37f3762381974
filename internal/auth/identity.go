package auth

import (
	"net/netip"
	"time"
)

// Identity is who a connection or a request speaks for. Once a method of a
// policy has returned it, it does not change.
type Identity struct {
	Subject string    // sub of the token, or what the application answered
	Ext     string    // AnyCable's identifiers, a JSON text
	Grants  []Grant   // streams it may use by their plain names
	Expires time.Time // zero: never
	Admin   bool      // an unlimited publish key: may administer the server

	known bool       // by credentials of its own
	addr  netip.Addr // where it comes from
	asked request    // what the application is asked about it with
}

// can says whether one of the grants covers the stream.
func (id *Identity) can(publish bool, stream string) bool {
	if id == nil {
		return false
	}
	for _, g := range id.Grants {
		if (publish && g.Publish || !publish && g.Read) && g.covers(stream) {
			return true
		}
	}
	return false
}

// Over says whether it has expired, clocks that differ a little allowed for.
func (id *Identity) Over(now time.Time) bool {
	return id != nil && !id.Expires.IsZero() && now.After(id.Expires.Add(Skew))
}

// Access is what a subscription identifier leads to.
type Access struct {
	Streams []string  // at least one
	Expires time.Time // when it must be asked for again; zero: never
}
