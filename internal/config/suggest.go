package config

import (
	"slices"
	"strings"
)

// suggestion names the known key nearest to a mistyped one, or lists them all
// when none is near.
func suggestion(typed string, known []string) string {
	best, distance := "", len(typed)/2+1
	for _, candidate := range known {
		if d := editDistance(strings.ToLower(typed), strings.ToLower(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	sorted := slices.Sorted(slices.Values(known))
	return "known keys here: " + strings.Join(sorted, ", ")
}

// editDistance counts the single-byte insertions, deletions and replacements
// that turn a into b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
