//go:build !unix

package main

import "go.uber.org/zap"

// raiseFileLimit does nothing: there is no such limit.
func raiseFileLimit(*zap.Logger) {}
