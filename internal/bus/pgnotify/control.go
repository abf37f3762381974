package pgnotify

import (
	"context"
	"fmt"
)

// told is the first word of a notification that is for whoever runs the nodes,
// such as whose connections are to be ended.
const told = "tell"

// MaxTell is the longest text [Bus.Tell] takes: PostgreSQL bounds a
// notification.
const MaxTell = 7000

// Tell gives text to [Options.Told] of every node that listens at this moment,
// this one as well. It is not kept for those that do not.
func (b *Bus) Tell(ctx context.Context, text []byte) error {
	if len(text) > MaxTell {
		return fmt.Errorf("pgnotify: a text of %d bytes cannot be told, at most %d can", len(text), MaxTell)
	}
	if err := b.store.Notify(ctx, told+" "+string(text)); err != nil {
		return fmt.Errorf("pgnotify: tell: %w", err)
	}
	return nil
}
