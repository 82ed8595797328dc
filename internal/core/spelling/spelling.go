// Package spelling finds what somebody meant to type: the nearest of the names that exist.
//
// It guarantees the same answer for the same names in any order but for ties, which go to
// the first. It must not import anything but the standard library.
package spelling

import "strings"

// Nearest is the name that differs from what was typed by the fewest letters, whatever
// their case; empty when none is near.
func Nearest(typed string, names []string) string {
	best, distance := "", Tolerance(typed)+1
	for _, name := range names {
		if d := Distance(strings.ToLower(typed), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// Tolerance is how many edits away a name may be to be near.
func Tolerance(typed string) int { return max(2, len(typed)/3) }

// Distance counts the single-byte insertions, deletions and replacements that turn a
// into b (Levenshtein).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
