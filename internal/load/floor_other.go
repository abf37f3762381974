//go:build !linux

package load

import (
	"context"
	"errors"
	"io"
)

func runFloor(context.Context, io.Reader, io.Writer) error {
	return errors.New("load: the bare loop that others are compared with runs on Linux only")
}
