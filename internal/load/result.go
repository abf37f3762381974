package load

import (
	"encoding/json"
	"io"
	"math"
	"time"
)

// Result is what one run has found. It is written as JSON as it stands.
type Result struct {
	Scenario string            `json:"scenario"`
	About    string            `json:"about"` // one sentence on what the scenario does
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Server   string            `json:"server"` // its address, and whether we started it
	Protocol string            `json:"protocol"`
	Publish  string            `json:"publish"`
	Machine  Machine           `json:"machine"`
	Settings map[string]string `json:"settings,omitempty"`
	Rows     []Row             `json:"rows"`
	Checks   []Check           `json:"checks,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
	Series   []Point           `json:"series"`

	Interrupted bool `json:"interrupted,omitempty"`
}

// Machine is where the run took place.
type Machine struct {
	System string `json:"system"` // GOOS/GOARCH
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memory_bytes,omitempty"`
	Files  uint64 `json:"open_file_limit,omitempty"`
}

// Row is one step of a scenario. Zero means not measured, except for counts of
// what went wrong.
type Row struct {
	Label      string            `json:"label"`
	Clients    int               `json:"clients"`
	Seconds    float64           `json:"seconds"`
	Published  uint64            `json:"published"`
	Refused    uint64            `json:"refused"` // messages the server did not acknowledge
	Delivered  uint64            `json:"delivered"`
	PerSecond  float64           `json:"deliveries_per_second"`
	Lost       uint64            `json:"lost"`
	Doubled    uint64            `json:"doubled"`
	Inverted   uint64            `json:"inverted"`
	Latency    Latency           `json:"latency"`
	FrameBytes float64           `json:"bytes_per_delivery,omitempty"`
	ServerCPU  float64           `json:"server_cpu_percent,omitempty"` // of one core
	OwnCPU     float64           `json:"generator_cpu_percent"`        // of one core, with its workers
	Cost       float64           `json:"server_cpu_us_per_delivery,omitempty"`
	RSS        uint64            `json:"server_rss_bytes,omitempty"` // at the end of the step
	PeakRSS    uint64            `json:"server_peak_rss_bytes,omitempty"`
	Errors     map[string]uint64 `json:"errors,omitempty"`
	Figures    []Figure          `json:"figures,omitempty"` // what only this scenario has
}

// Figure is one more figure of a step.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// add appends a figure, rounded to what can be read.
func (r *Row) add(name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{Name: name, Value: round(value), Unit: unit})
}

// Get returns a figure by name.
func (r *Row) Get(name string) (float64, bool) {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}

// errorCount is how many errors of all kinds there were.
func (r *Row) errorCount() (n uint64) {
	for _, k := range r.Errors {
		n += k
	}
	return n
}

// Check compares a figure with what is asked of it.
type Check struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	Bound float64 `json:"bound"`
	Least bool    `json:"at_least,omitempty"` // the bound is a lower one
	OK    bool    `json:"ok"`
}

// check adds a check: value must not exceed bound.
func (r *Result) check(name string, value, bound float64, unit string) {
	r.Checks = append(r.Checks, Check{Name: name, Value: round(value), Unit: unit, Bound: bound, OK: value <= bound})
}

// checkLeast adds a check: value must reach bound.
func (r *Result) checkLeast(name string, value, bound float64, unit string) {
	r.Checks = append(r.Checks, Check{Name: name, Value: round(value), Unit: unit, Bound: bound, Least: true, OK: value >= bound})
}

// OK reports whether every check holds.
func (r *Result) OK() bool {
	for _, c := range r.Checks {
		if !c.OK {
			return false
		}
	}
	return true
}

// Point is one interval of the series over time.
type Point struct {
	At        float64 `json:"at"` // seconds since the run began, end of the interval
	Step      int     `json:"step"`
	Clients   int     `json:"clients"`
	PerSecond float64 `json:"deliveries_per_second"`
	P50       float64 `json:"p50_ms"`
	P95       float64 `json:"p95_ms"`
	P99       float64 `json:"p99_ms"`
	ServerCPU float64 `json:"server_cpu_percent,omitempty"`
	OwnCPU    float64 `json:"generator_cpu_percent"`
	RSS       uint64  `json:"server_rss_bytes,omitempty"`
}

// WriteJSON writes the result as indented JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v*1000) / 1000
}
