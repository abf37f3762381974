package load

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"go.uber.org/goleak"
)

// childVariable makes this test binary one of the bench's workers.
const childVariable = "CHRONOCAST_LOAD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err := RunChild(ctx, os.Args[len(os.Args)-1], os.Stdin, os.Stdout)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
