package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

// A page that has left is remembered for a day, and no more pages are
// remembered than there is room for; those that are being served go last.
func TestPages_ForgetTheOldAndTheTooMany(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := newPages()
	p.now, p.max = func() time.Time { return now }, 3
	id := protocol.Identifier{Page: "p"}
	rendered := protocol.Position{Epoch: 7, Offset: 1}
	join := func(identifier string) *subscription {
		sub := &subscription{past: &past{at: &rendered}}
		p.join(identifier, id, sub)
		return sub
	}
	served := func(identifier string, at uint64) {
		t.Helper()
		sub := join(identifier)
		sub.past.page.mark(sub, protocol.Position{Epoch: 7, Offset: at})
	}
	comesBackAt := func(identifier string, want uint64) {
		t.Helper()
		sub := join(identifier)
		if sub.at().Offset != want {
			t.Errorf("%s comes back at %d, want %d", identifier, sub.at().Offset, want)
		}
		sub.past.page.mark(sub, *sub.at())
	}

	served("a", 5)
	now = now.Add(pageTTL - time.Second)
	comesBackAt("a", 5)
	now = now.Add(pageTTL - time.Second)
	comesBackAt("a", 5) // a day from when it left last
	now = now.Add(pageTTL + time.Second)
	comesBackAt("a", 1)

	for i := range 5 {
		served(fmt.Sprint("many-", i), 9)
	}
	if len(p.byHash) != 3 || p.order.Len() != 3 {
		t.Errorf("%d and %d pages are remembered, room is for 3", len(p.byHash), p.order.Len())
	}
	comesBackAt("many-4", 9)
	comesBackAt("many-3", 9)
	comesBackAt("many-2", 9)
	comesBackAt("many-1", 1)

	for _, other := range []*subscription{{}, {past: &past{at: &rendered}, next: &subscription{}}} {
		p.join("x", id, other)
		if other.past != nil && other.past.page != nil {
			t.Error("what has no position of its own, or several streams, is remembered")
		}
	}
	sub := &subscription{past: &past{at: &rendered}}
	if p.join("x", protocol.Identifier{}, sub); sub.past.page != nil {
		t.Error("a page without a token is remembered")
	}
}

// A subscription that ends after another one has taken over its page leaves
// what that one will say alone.
func TestPages_OnlyTheLastSubscriptionSpeaks(t *testing.T) {
	p := newPages()
	id := protocol.Identifier{Page: "p"}
	first, second := &subscription{past: &past{at: &protocol.Position{Epoch: 7, Offset: 1}}}, &subscription{past: &past{at: &protocol.Position{Epoch: 7, Offset: 1}}}
	p.join("a", id, first)
	first.past.page.mark(first, protocol.Position{Epoch: 7, Offset: 4})
	p.join("a", id, second)
	second.past.page.mark(second, protocol.Position{Epoch: 7, Offset: 8})
	first.past.page.mark(first, protocol.Position{Epoch: 7, Offset: 4})
	third := &subscription{past: &past{at: &protocol.Position{Epoch: 7, Offset: 1}}}
	p.join("a", id, third)
	if third.at().Offset != 8 {
		t.Errorf("the page comes back at %d, want 8", third.at().Offset)
	}
}
