package server

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// shown keeps everything the servers of this package's tests have shown: each
// line of their logs at every level, each refusal over HTTP, their metrics.
var shown struct {
	sync.Mutex
	text    bytes.Buffer
	planted map[string]string // what must not be in it, and what it is
}

// plant registers a secret. It returns it.
func plant(what, secret string) string {
	shown.Lock()
	defer shown.Unlock()
	if shown.planted == nil {
		shown.planted = make(map[string]string)
	}
	shown.planted[secret] = what
	return secret
}

func show(text string) {
	shown.Lock()
	defer shown.Unlock()
	shown.text.WriteString(text + "\n")
}

type shownWriter struct{}

func (shownWriter) Write(b []byte) (int, error) {
	show(string(b))
	return len(b), nil
}

// shownLog logs to what is searched.
var shownLog = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(shownWriter{}), zap.DebugLevel))

// TestMain fails when a goroutine is left, and when a secret planted by any
// test is found in what was shown (B149).
func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	shown.Lock()
	defer shown.Unlock()
	for secret, what := range shown.planted {
		for line := range strings.SplitSeq(shown.text.String(), "\n") {
			if strings.Contains(line, secret) {
				fmt.Fprintf(os.Stderr, "B149: %s was shown: %s\n", what, line)
				code = 1
			}
		}
	}
	os.Exit(code)
}
