package load

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// sampleResult has one of everything.
func sampleResult() *Result {
	r := &Result{
		Scenario: "lecture", About: "All listen & one speaks.", Started: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Seconds: 12.5,
		Server: "ws://127.0.0.1:8080/cable", Protocol: "actioncable-v1-json", Publish: "api",
		Machine:  Machine{System: "linux/amd64", Kernel: "6.1", CPU: "a <CPU>", Cores: 2, Memory: 24 << 30},
		Settings: map[string]string{"payload": "text, 300 B"},
		Notes:    []string{"a note <script>alert(1)</script>"},
	}
	for i, n := range []int{250, 500, 1000} {
		row := Row{Label: count(uint64(n)) + " users", Clients: n, Seconds: 4, Published: 40, Delivered: uint64(40 * n), PerSecond: float64(10 * n),
			Latency: Latency{Count: 9, Mean: 2, P50: 1.5 * float64(i+1), P95: 12.25, P99: 100.4, Max: 12345}, ServerCPU: 12.5, OwnCPU: 8, Cost: 4.25, RSS: 30 << 20, FrameBytes: 430}
		row.add("offered", 40, "")
		r.Rows = append(r.Rows, row)
	}
	r.Rows[2].Errors = map[string]uint64{"the server <closed> the connection": 3}
	r.Rows[2].Lost, r.Rows[2].Doubled, r.Rows[2].Inverted = 1, 2, 3
	r.check("p99", 100.4, 60, "ms")
	r.checkLeast("deliveries a second", 951_000, 950_000, "/s")
	for i := range 12 {
		p := Point{At: float64(i + 1), Step: 1 + i/4, Clients: 250, PerSecond: float64(2500 * i), P50: 1, P95: float64(i), P99: float64(2 * i), ServerCPU: 20, OwnCPU: 10, RSS: 30 << 20}
		r.Series = append(r.Series, p)
	}
	return r
}

func TestReports_AreGolden(t *testing.T) {
	r := sampleResult()
	for name, write := range map[string]func(io.Writer) error{"report.txt": r.WriteText, "report.html": r.WriteHTML, "report.json": r.WriteJSON} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *rewrite {
			if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(b.String()), 0o644)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != b.String() {
			t.Errorf("%s has changed; when that is right, write it anew with -rewrite", path)
		}
	}
}

func TestHTML_NeedsNothingElseAndRunsNothing(t *testing.T) {
	var b strings.Builder
	if err := sampleResult().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "http://", "https://", "src=", "url(", "NaN", "a <CPU>", "<closed>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q in it", bad)
		}
	}
	for n := 0; ; n++ {
		_, rest, ok := strings.Cut(page, "<svg")
		if !ok {
			if n < 5 {
				t.Errorf("%d plots", n)
			}
			return
		}
		picture, after, _ := strings.Cut(rest, "</svg>")
		dec := xml.NewDecoder(strings.NewReader("<svg" + picture + "</svg>"))
		for {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("plot %d: %v", n, err)
			}
		}
		page = after
	}
}

func TestPlots_OfNothingMuch(t *testing.T) {
	r := &Result{Scenario: "hold", Rows: []Row{{Label: "a"}}, Series: []Point{{At: 1}, {At: 1}}}
	var b strings.Builder
	if err := r.WriteHTML(&b); err != nil || strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
		t.Errorf("%v", err)
	}
}
