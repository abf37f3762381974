package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/chronocast/chronocast/internal/load"
)

// liveLine shows how far a run has come: one line that is written over on a
// terminal, a line now and then elsewhere.
type liveLine struct {
	w        io.Writer
	terminal bool
	width    int // of what stands there
	seen     int
	label    string
}

func newLiveLine(w io.Writer, terminal bool) *liveLine { return &liveLine{w: w, terminal: terminal} }

// everyLines is how many seconds lie between two lines where nobody watches.
const everyLines = 5

func (l *liveLine) show(p load.Progress) {
	text := liveText(p, l.terminal)
	if l.terminal {
		pad := max(l.width-len([]rune(text)), 0)
		l.width = len([]rune(text))
		fmt.Fprintf(l.w, "\r%s%s", text, strings.Repeat(" ", pad))
		return
	}
	if l.seen++; p.Label == l.label && l.seen%everyLines != 0 {
		return
	}
	l.label = p.Label
	fmt.Fprintln(l.w, text)
}

// clear leaves an empty line behind.
func (l *liveLine) clear() {
	if l.terminal && l.width > 0 {
		fmt.Fprintf(l.w, "\r%s\r", strings.Repeat(" ", l.width))
	}
	l.width = 0
}

func liveText(p load.Progress, bar bool) string {
	var b strings.Builder
	if bar {
		const cells = 16
		done := int((float64(max(p.Step-1, 0)) + p.Done) / float64(max(p.Steps, 1)) * cells)
		done = min(max(done, 0), cells)
		b.WriteString("[" + strings.Repeat("#", done) + strings.Repeat("-", cells-done) + "] ")
	}
	if p.Step > 0 {
		fmt.Fprintf(&b, "%d/%d ", p.Step, max(p.Steps, p.Step))
	}
	b.WriteString(p.Label)
	fmt.Fprintf(&b, "  %.0f deliveries/s  p50 %.1f  p99 %.1f ms", p.Point.PerSecond, p.Point.P50, p.Point.P99)
	if p.Point.RSS > 0 {
		fmt.Fprintf(&b, "  server %.0f %% %.0f MiB", p.Point.ServerCPU, float64(p.Point.RSS)/(1<<20))
	}
	return b.String()
}
