package auth

import (
	"net/netip"
	"sync"
	"time"
)

// failures counts wrong credentials by address. It never stands in the way of
// right ones: an address may be a proxy with everybody behind it.
type failures struct {
	limit int // in a minute; 0 counts nothing
	now   func() time.Time

	mu    sync.Mutex // guards what follows
	count map[netip.Prefix]int
	since time.Time // when count was emptied last
}

// maxAddresses bounds what is remembered of addresses.
const maxAddresses = 10_000

// note counts a failure and says whether the address has had too many in this
// minute.
func (f *failures) note(addr netip.Addr) bool {
	if f.limit <= 0 || !addr.IsValid() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.count == nil || now.Sub(f.since) >= time.Minute || now.Before(f.since) {
		f.count, f.since = make(map[netip.Prefix]int), now
	}
	key := Network(addr)
	if _, known := f.count[key]; !known && len(f.count) >= maxAddresses {
		return false
	}
	f.count[key]++
	return f.count[key] > f.limit
}
