// Package spelling finds the name that a user meant to type: the nearest of the names that exist.
//
// It guarantees that the result does not depend on the order of the names, except for ties, where the first name wins.
// It must not import anything but the standard library.
package spelling

import "strings"

// Nearest returns the name with the smallest distance to the typed text, ignoring case, or "" when none is near.
func Nearest(typed string, names []string) string {
	best, distance := "", Tolerance(typed)+1
	for _, name := range names {
		if d := Distance(strings.ToLower(typed), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// Tolerance returns the largest distance at which a name counts as near.
func Tolerance(typed string) int { return max(2, len(typed)/3) }

// Distance returns the Levenshtein distance: the single-byte insertions, deletions and replacements that turn a into b.
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
