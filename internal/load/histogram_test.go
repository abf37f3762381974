package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogram_QuantilesAreAtMostA64thTooLong(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		var h, parts Histogram
		var all []time.Duration
		for range 1 + r.IntN(5000) {
			d := time.Duration(math.Exp(r.Float64()*17)) * time.Microsecond
			all = append(all, d)
			h.Record(d)
			var one Histogram
			one.Record(d)
			parts.Add(&one)
		}
		slices.Sort(all)
		for _, q := range []float64{0, .01, .5, .95, .99, .999, 1} {
			exact := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
			got := h.Quantile(q)
			if got < exact || float64(got) > float64(exact)*(1+1.0/64)+float64(time.Microsecond) {
				t.Fatalf("round %d: quantile %v is %v, the exact one %v", round, q, got, exact)
			}
			if other := parts.Quantile(q); other != got {
				t.Fatalf("round %d: added up quantile %v is %v, recorded at once %v", round, q, other, got)
			}
		}
		if h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) {
			t.Fatalf("max %v of %d; want %v of %d", h.Max(), h.Count(), all[len(all)-1], len(all))
		}
	}
}

func TestHistogram_Bounds(t *testing.T) {
	var h Histogram
	if h.Quantile(.5) != 0 || h.Mean() != 0 {
		t.Error("an empty histogram has figures")
	}
	h.Record(-time.Second)
	h.Record(1000 * time.Hour)
	if h.Quantile(0) != 0 || h.Max() != 1000*time.Hour {
		t.Errorf("got %v to %v", h.Quantile(0), h.Max())
	}
	h.Reset()
	if h.Summary() != (Latency{}) {
		t.Errorf("after Reset: %+v", h.Summary())
	}
	last := -1
	for us := uint64(0); us < 1<<22; us += 1 + us/50 {
		i := bucket(us)
		if i < last || upper(i) < us || i > 0 && upper(i-1) >= us {
			t.Fatalf("%d µs is in bucket %d, which ends at %d", us, i, upper(i))
		}
		last = i
	}
}
