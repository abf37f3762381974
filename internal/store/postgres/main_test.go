package postgres

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/internal/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "leaked:", err)
			return 1
		}
		return code
	}))
}
