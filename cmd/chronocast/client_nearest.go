package main

// nearest returns the candidate that name was most likely meant to be: the one
// a few slips of the fingers away, or the only one that begins with name. It
// returns "" when nothing is near.
func nearest(name string, candidates []string) string {
	best, distance := "", 3
	if len(name) <= 3 {
		distance = 2
	}
	begins, count := "", 0
	for _, c := range candidates {
		if d := slips(name, c); d < distance {
			best, distance = c, d
		}
		if len(name) > 0 && len(name) < len(c) && c[:len(name)] == name {
			begins = c
			count++
		}
	}
	if best == "" && count == 1 {
		return begins
	}
	return best
}

// slips counts the letters to insert, leave out, replace or swap with their
// neighbour to make b of a.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(replaced, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
