package load

import (
	"math"
	"math/bits"
	"time"
)

// Histogram counts durations in buckets of at most 1/64 of their value, from
// one microsecond to about 19 hours. The zero value is ready. It is not safe
// for concurrent use.
type Histogram struct {
	counts []uint32 // grows with the largest duration seen
	n      uint64
	sum    time.Duration
	max    time.Duration
}

// subBits is the number of bits of a value that are kept below its first one.
const subBits = 6

// bucket returns the index of a number of microseconds. Values below
// 2<<subBits have a bucket each, then each power of two has 1<<subBits.
func bucket(us uint64) int {
	if us < 2<<subBits {
		return int(us)
	}
	shift := bits.Len64(us) - 1 - subBits
	return shift<<subBits + int(us>>shift)
}

// upper returns the largest number of microseconds of a bucket.
func upper(i int) uint64 {
	if i < 2<<subBits {
		return uint64(i)
	}
	shift := i>>subBits - 1
	low := uint64(i-shift<<subBits) << shift
	return low + 1<<shift - 1
}

// maxMicros bounds what is counted as it is; anything longer counts as this.
const maxMicros = 1<<36 - 1

// Record counts one duration. Negative ones, of clocks that differ, count as 0.
func (h *Histogram) Record(d time.Duration) {
	us := uint64(max(d, 0) / time.Microsecond)
	i := bucket(min(us, maxMicros))
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint32, i+1-len(h.counts)+64)...)
	}
	h.counts[i]++
	h.n++
	h.sum += max(d, 0)
	if d > h.max {
		h.max = d
	}
}

// Add counts everything o has counted.
func (h *Histogram) Add(o *Histogram) {
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]uint32, len(o.counts)-len(h.counts))...)
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Reset forgets everything and keeps the memory.
func (h *Histogram) Reset() {
	clear(h.counts)
	h.n, h.sum, h.max = 0, 0, 0
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.n }

// Max returns the longest duration, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean returns the mean, exactly.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return h.sum / time.Duration(h.n)
}

// Quantile returns a duration that at least the share q (0 to 1) of those
// recorded do not exceed; it is at most 1/64 too long. 0 when there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.n))), 1)
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen >= rank {
			return min(time.Duration(upper(i))*time.Microsecond, h.max)
		}
	}
	return h.max
}

// Latency is a histogram in the figures that are reported, in milliseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Summary returns the figures that are reported.
func (h *Histogram) Summary() Latency {
	return Latency{
		Count: h.n, Mean: millis(h.Mean()), Max: millis(h.max),
		P50: millis(h.Quantile(0.50)), P95: millis(h.Quantile(0.95)), P99: millis(h.Quantile(0.99)),
	}
}

func millis(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}
