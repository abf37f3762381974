//go:build !linux

package load

// newPoller returns the poller for plain TCP of this system.
func newPoller() (poller, error) { return newStreams(nil), nil }
