package load

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// column is one column of the summary.
type column struct {
	head  string
	value func(*Row) string
}

var columns = []column{
	{"step", func(r *Row) string { return r.Label }},
	{"clients", func(r *Row) string { return count(uint64(r.Clients)) }},
	{"published", func(r *Row) string { return count(r.Published) }},
	{"delivered", func(r *Row) string { return count(r.Delivered) }},
	{"per s", func(r *Row) string { return count(uint64(r.PerSecond)) }},
	{"lost", func(r *Row) string { return count(r.Lost) }},
	{"doubled", func(r *Row) string { return count(r.Doubled) }},
	{"inverted", func(r *Row) string { return count(r.Inverted) }},
	{"errors", func(r *Row) string { return count(r.errorCount()) }},
	{"p50 ms", func(r *Row) string { return short(r.Latency.P50) }},
	{"p95 ms", func(r *Row) string { return short(r.Latency.P95) }},
	{"p99 ms", func(r *Row) string { return short(r.Latency.P99) }},
	{"max ms", func(r *Row) string { return short(r.Latency.Max) }},
	{"µs/delivery", func(r *Row) string { return dash(r.Cost) }},
	{"server CPU %", func(r *Row) string { return dash(r.ServerCPU) }},
	{"own CPU %", func(r *Row) string { return short(r.OwnCPU) }},
	{"RSS MiB", func(r *Row) string { return dash(mib(r.RSS)) }},
}

func dash(v float64) string {
	if v == 0 {
		return "-"
	}
	return short(v)
}

// short prints a number with as many digits as can be read.
func short(v float64) string {
	switch {
	case v >= 1000 || v == float64(int64(v)):
		return count(uint64(max(v, 0) + 0.5))
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v < 0:
		return "-" + short(-v)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// count prints a whole number in groups of three.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// WriteText writes the summary for people.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%s · %s · published by %s · %s\n\n", r.Scenario, r.About, r.Server, r.Protocol, r.Publish, r.Machine)
	lines := [][]string{nil}
	for _, c := range columns {
		lines[0] = append(lines[0], c.head)
	}
	for i := range r.Rows {
		var line []string
		for _, c := range columns {
			line = append(line, c.value(&r.Rows[i]))
		}
		lines = append(lines, line)
	}
	writeTable(&b, lines)
	for i := range r.Rows {
		row := &r.Rows[i]
		if len(row.Figures) == 0 && len(row.Errors) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n", row.Label)
		for _, f := range row.Figures {
			fmt.Fprintf(&b, "  %-32s %s %s\n", f.Name, short(f.Value), f.Unit)
		}
		for _, text := range sortedKeys(row.Errors) {
			fmt.Fprintf(&b, "  %s × %s\n", count(row.Errors[text]), text)
		}
	}
	if len(r.Checks) > 0 {
		b.WriteString("\nChecks\n")
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	if len(r.Notes) > 0 {
		b.WriteString("\nNotes\n")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	if r.Interrupted {
		b.WriteString("\nInterrupted: what was found so far.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is a check in one line.
func (c Check) String() string {
	verdict, relation := "FAILS", "at most"
	if c.OK {
		verdict = "holds"
	}
	if c.Least {
		relation = "at least"
	}
	return strings.TrimSpace(fmt.Sprintf("%s  %s: %s (%s %s %s)", verdict, c.Name, short(c.Value), relation, short(c.Bound), c.Unit))
}

// String describes the machine in a line.
func (m Machine) String() string {
	parts := []string{fmt.Sprintf("%d cores", m.Cores)}
	if m.CPU != "" {
		parts[0] += " of " + m.CPU
	}
	if m.Memory > 0 {
		parts = append(parts, fmt.Sprintf("%.0f GiB", float64(m.Memory)/(1<<30)))
	}
	if m.Kernel != "" {
		return strings.Join(append(parts, m.System, m.Kernel), ", ")
	}
	return strings.Join(append(parts, m.System), ", ")
}

func sortedKeys(m map[string]uint64) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// writeTable writes columns under one another, the first to the left, the
// others to the right.
func writeTable(b *strings.Builder, lines [][]string) {
	width := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range lines {
		for i, cell := range line {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
			} else {
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteByte('\n')
	}
}
