package config

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// suggestion names the known key nearest to a mistyped one, or lists them all
// when none is near.
func suggestion(typed string, known []string) string { return suggest("known keys here", typed, known) }

// suggest is suggestion for names of another kind.
func suggest(kind, typed string, known []string) string {
	if near := spelling.Nearest(typed, known); near != "" {
		return "did you mean " + near + "?"
	}
	sorted := slices.Sorted(slices.Values(known))
	return kind + ": " + strings.Join(sorted, ", ")
}
