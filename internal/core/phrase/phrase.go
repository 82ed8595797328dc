// Package phrase joins numbers and names for sentences.
//
// It must not import anything but the standard library.
package phrase

import (
	"fmt"
	"strings"
)

// Count returns a number with its noun: "1 pod", "2 pods".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// And joins names: "a, b and c".
func And(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// Some names the first of many, and counts the others: "a, b and 5 more". Up to so many names are joined by commas.
func Some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
