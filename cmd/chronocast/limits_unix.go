//go:build unix

package main

import (
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// fewFiles is how many open files are fewer than a server of any size needs.
const fewFiles = 4096

// raiseFileLimit lets the process open as many files as it is permitted to:
// every connection is one. It says plainly when that is little.
func raiseFileLimit(log *zap.Logger) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("limit of open files unknown", zap.Error(err))
		return
	}
	had := limit.Cur
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = had
	}
	if limit.Cur < fewFiles {
		log.Warn("few connections are possible: every one takes an open file; raise the limit (ulimit -n, LimitNOFILE)", zap.Uint64("files", uint64(limit.Cur)))
		return
	}
	log.Info("connections are bounded by the limit of open files", zap.Uint64("files", uint64(limit.Cur)))
}
