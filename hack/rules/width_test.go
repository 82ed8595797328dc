package rules_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// commentColumns is the width that no line of a comment exceeds, with tabs of four columns.
const commentColumns = 140

// wideComments returns the lines of Go source that are a comment and too wide, as "line: columns".
func wideComments(source string) []string {
	var wide []string
	number := 0
	for line := range strings.Lines(source) {
		number++
		text := strings.TrimSpace(line)
		if !strings.HasPrefix(text, "//") || strings.HasPrefix(text, "// +") {
			continue
		}
		if columns := utf8.RuneCountInString(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")); columns > commentColumns {
			wide = append(wide, fmt.Sprintf("%d: %d columns", number, columns))
		}
	}
	return wide
}

// TestCommentsWrap: no line of a comment is wider than commentColumns. Generated files are exempt.
func TestCommentsWrap(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if strings.HasPrefix(filepath.Base(path), "zz_") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range wideComments(string(source)) {
			t.Errorf("%s:%s, want at most %d", path, line, commentColumns)
		}
	}
}

// TestWideCommentsAreFound proves that the check above can fail.
func TestWideCommentsAreFound(t *testing.T) {
	inRepository(t)
	source := "package x\n\t// " + strings.Repeat("a", commentColumns-6) + "\n// +" + strings.Repeat("a", 200) + "\nvar s = \"" + strings.Repeat("a", 200) + "\"\n"
	if got := wideComments(source); len(got) != 1 || got[0] != "2: 141 columns" {
		t.Errorf("found %q, want line 2 alone", got)
	}
}
