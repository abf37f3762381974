// Package e2e holds the end-to-end tests: the real binary is started, killed,
// stopped and restarted; stock clients, the bundled client and a browser listen
// through a proxy that cuts, freezes and swallows; and a verdict compares every
// acknowledged broadcast with everything that was delivered. It exports
// nothing.
//
// The tests need Node, the npm packages of this folder, Chromium, PostgreSQL and
// libfaketime. `make test` installs them; without them the tests fail and say
// so.
//
// CHRONOCAST_E2E_LONG=1 raises the counts to the full figures; give the run an
// hour then (-timeout 60m).
// CHRONOCAST_E2E_RACE=1 builds the server with the race detector.
// CHRONOCAST_E2E_BINARY names a server that is already built.
package e2e
