package config

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/spelling"
)

// suggestion names the known key nearest to a mistyped one, or lists them all
// when none is near.
func suggestion(typed string, known []string) string {
	if near := spelling.Nearest(typed, known); near != "" {
		return "did you mean " + near + "?"
	}
	sorted := slices.Sorted(slices.Values(known))
	return "known keys here: " + strings.Join(sorted, ", ")
}
