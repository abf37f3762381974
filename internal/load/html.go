package load

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"short": short, "count": count, "keys": sortedKeys,
}).Parse(reportPage))

// WriteHTML writes a report of one page that needs nothing else: style and
// plots are in it, and no script.
func (r *Result) WriteHTML(w io.Writer) error {
	var head []string
	var body [][]string
	for _, c := range columns {
		head = append(head, c.head)
	}
	for i := range r.Rows {
		var line []string
		for _, c := range columns {
			line = append(line, c.value(&r.Rows[i]))
		}
		body = append(body, line)
	}
	return reportTemplate.Execute(w, map[string]any{
		"R": r, "Head": head, "Body": body, "Plots": r.plots(),
		"When": r.Started.Format("2006-01-02 15:04 UTC"), "Took": short(r.Seconds),
	})
}

// plot is one picture with its title and legend.
type plot struct {
	Title  string
	Legend []legend
	SVG    template.HTML // built from numbers and escaped text alone
}

type legend struct{ Class, Name string }

// line is one line of a plot; a NaN leaves a hole in it.
type line struct {
	name string
	y    []float64
}

// plots draws what there is to draw.
func (r *Result) plots() (list []plot) {
	if len(r.Rows) > 1 {
		var x []float64
		var labels []string
		p := [3]line{{name: "p50"}, {name: "p95"}, {name: "p99"}}
		for i, row := range r.Rows {
			if row.Latency.Count == 0 {
				continue
			}
			x, labels = append(x, float64(i)), append(labels, row.Label)
			for k, v := range []float64{row.Latency.P50, row.Latency.P95, row.Latency.P99} {
				p[k].y = append(p[k].y, v)
			}
		}
		if len(x) > 1 {
			list = append(list, draw("Latency by step", "ms", x, labels, p[:]))
		}
	}
	if len(r.Series) < 2 {
		return list
	}
	var x []float64
	latency := []line{{name: "p50"}, {name: "p95"}, {name: "p99"}}
	rate, clients, memory := []line{{name: "deliveries a second"}}, []line{{name: "clients"}}, []line{{name: "server RSS"}}
	cpu := []line{{name: "generator"}, {name: "server"}}
	var heard, measured, crowded bool
	for _, p := range r.Series {
		x = append(x, p.At)
		ms := []float64{p.P50, p.P95, p.P99}
		for k := range ms {
			if p.PerSecond == 0 {
				ms[k] = math.NaN()
			}
			latency[k].y = append(latency[k].y, ms[k])
		}
		rate[0].y = append(rate[0].y, p.PerSecond)
		clients[0].y = append(clients[0].y, float64(p.Clients))
		cpu[0].y, cpu[1].y = append(cpu[0].y, p.OwnCPU), append(cpu[1].y, p.ServerCPU)
		memory[0].y = append(memory[0].y, mib(p.RSS))
		heard, measured, crowded = heard || p.PerSecond > 0, measured || p.RSS > 0, crowded || p.Clients > 1
	}
	if heard {
		list = append(list, draw("Latency over time", "ms", x, nil, latency), draw("Deliveries a second", "/s", x, nil, rate))
	}
	if crowded {
		list = append(list, draw("Connected clients", "", x, nil, clients))
	}
	if measured {
		list = append(list, draw("Processor time, % of one core", "%", x, nil, cpu), draw("Server memory", "MiB", x, nil, memory))
	} else {
		list = append(list, draw("Processor time, % of one core", "%", x, nil, cpu[:1]))
	}
	return list
}

// The plane of a plot, in units of its own; the page scales it.
const (
	plotWidth, plotHeight     = 480.0, 236.0
	plotLeft, plotRight       = 58.0, 12.0
	plotTop, plotBottom       = 10.0, 30.0
	innerWidth, innerHeight   = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	mostDots                  = 80
	widestLabel, labelsAtMost = 16, 3
)

// draw draws lines over x, which is in seconds, or names steps by labels.
func draw(title, unit string, x []float64, labels []string, lines []line) plot {
	p := plot{Title: title}
	top := 0.0
	for k, l := range lines {
		p.Legend = append(p.Legend, legend{fmt.Sprintf("c%d", k+1), l.name})
		for _, v := range l.y {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	step := niceStep(top / 4)
	top = step * math.Max(math.Ceil(top/step), 1)
	from, to := x[0], x[len(x)-1]
	if to <= from {
		to = from + 1
	}
	at := func(v float64) float64 { return plotLeft + (v-from)/(to-from)*innerWidth }
	height := func(v float64) float64 { return plotTop + (1-v/top)*innerHeight }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotWidth, plotHeight, template.HTMLEscapeString(title))
	for v := 0.0; v <= top*1.0001; v += step {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, plotLeft, plotWidth-plotRight, height(v), height(v))
		fmt.Fprintf(&b, `<text class="y" x="%g" y="%.1f">%s</text>`, plotLeft-6, height(v)+4.5, tickText(v, step))
	}
	if labels != nil {
		every := (len(labels) + labelsAtMost - 1) / labelsAtMost
		for i := 0; i < len(labels); i += every {
			anchor := "middle"
			switch {
			case i == 0:
				anchor = "start"
			case i == len(labels)-1:
				anchor = "end"
			}
			fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="%s">%s</text>`, at(x[i]), plotHeight-8, anchor, template.HTMLEscapeString(oneLine(labels[i], widestLabel)))
		}
	} else {
		step := niceStep((to - from) / 5)
		for v := math.Ceil(from/step) * step; v <= to; v += step {
			fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s s</text>`, min(at(v), plotWidth-24), plotHeight-8, tickText(v, step))
		}
	}
	for k, l := range lines {
		fmt.Fprintf(&b, `<path class="c%d" d="%s"/>`, k+1, path(x, l.y, at, height))
		if len(x) > mostDots {
			continue
		}
		for i, v := range l.y {
			if !math.IsNaN(v) {
				name := fmt.Sprintf("%s s", short(x[i]))
				if labels != nil {
					name = labels[i]
				}
				fmt.Fprintf(&b, `<circle class="c%d" cx="%.1f" cy="%.1f" r="2.5"><title>%s, %s: %s %s</title></circle>`,
					k+1, at(x[i]), height(v), template.HTMLEscapeString(l.name), template.HTMLEscapeString(name), short(v), unit)
			}
		}
	}
	b.WriteString(`</svg>`)
	p.SVG = template.HTML(b.String())
	return p
}

// path is the line through the points, with holes where there are none.
func path(x, y []float64, at, height func(float64) float64) string {
	var b strings.Builder
	pen := "M"
	for i, v := range y {
		if math.IsNaN(v) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, at(x[i]), height(v))
		pen = "L"
	}
	return b.String()
}

// niceStep is 1, 2 or 5 times a power of ten, and at least v.
func niceStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= v*0.9999 {
			return m * base
		}
	}
	return 10 * base
}

// tickText prints a value on an axis.
func tickText(v, step float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%g M", round(v/1e6))
	case v >= 1e4:
		return fmt.Sprintf("%g k", round(v/1e3))
	case step < 1:
		return fmt.Sprintf("%.*f", int(math.Ceil(-math.Log10(step))), v)
	}
	return fmt.Sprintf("%.0f", v)
}
