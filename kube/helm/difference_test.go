package helm_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
)

// rendering is what the chart renders from one file of values.
type rendering struct {
	title   string
	objects map[string]string // by name
	order   []string          // the names
}

func newRendering(title, rendered string) rendering {
	r := rendering{title: title, objects: map[string]string{}}
	for _, object := range objects(rendered) {
		r.objects[name(object)] = object
		r.order = append(r.order, name(object))
	}
	return r
}

// difference prints what r has other than the first of the bases: the names of objects that are missing, and each object that is new or has
// another text, as the lines that differ from the base that it is most like, or from nothing.
func (r rendering) difference(t *testing.T, bases ...rendering) string {
	t.Helper()
	var out strings.Builder
	for _, object := range bases[0].order {
		if r.objects[object] == "" {
			fmt.Fprintf(&out, "=== without %s\n", object)
		}
	}
	for _, object := range r.order {
		if r.objects[object] == bases[0].objects[object] {
			continue
		}
		base, lines := "nothing", unified(t, "", r.objects[object])
		for _, b := range bases {
			if shorter := unified(t, b.objects[object], r.objects[object]); len(shorter) < len(lines) {
				base, lines = b.title, shorter
			}
		}
		fmt.Fprintf(&out, "=== %s from %s\n%s", object, base, lines)
	}
	return out.String()
}

func unified(t *testing.T, before, now string) string {
	t.Helper()
	lines, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: slices.Collect(strings.Lines(before)), B: slices.Collect(strings.Lines(now)), Context: 3})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// rebuild returns the objects of the rendering of which difference printed the text, by name.
func rebuild(t *testing.T, text string, bases ...rendering) map[string]string {
	t.Helper()
	rebuilt := maps.Clone(bases[0].objects)
	for _, section := range regexp.MustCompile(`(?m)^=== `).Split(text, -1)[1:] {
		title, lines, _ := strings.Cut(section, "\n")
		if missing, is := strings.CutPrefix(title, "without "); is {
			delete(rebuilt, missing)
			continue
		}
		object, from, _ := strings.Cut(title, " from ")
		before := ""
		for _, b := range bases {
			if b.title == from {
				before = b.objects[object]
			}
		}
		rebuilt[object] = patched(t, before, lines)
	}
	return rebuilt
}

// patched returns a text with the changes that unified printed.
func patched(t *testing.T, before, changes string) string {
	t.Helper()
	lines, read := slices.Collect(strings.Lines(before)), 0
	var now strings.Builder
	for line := range strings.Lines(changes) {
		switch line[0] {
		case '@':
			start, err := strconv.Atoi(regexp.MustCompile(`^@@ -(\d+)`).FindStringSubmatch(line)[1])
			if err != nil {
				t.Fatal(err)
			}
			for ; read < start-1; read++ {
				now.WriteString(lines[read])
			}
		case '+':
			now.WriteString(line[1:])
		default:
			if line[0] == ' ' {
				now.WriteString(lines[read])
			}
			read++
		}
	}
	return now.String() + strings.Join(lines[read:], "")
}

// sameOrder reports whether the objects that two renderings have are in the same order.
func sameOrder(a, b rendering) bool {
	common := func(r, other rendering) []string {
		return slices.DeleteFunc(slices.Clone(r.order), func(object string) bool { return other.objects[object] == "" })
	}
	return slices.Equal(common(a, b), common(b, a))
}
