package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// replacedWords reads the second table of the glossary: word to replacement.
func replacedWords(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Words that are not used")
	words := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+) \\|$").FindAllStringSubmatch(table, -1) {
		words[row[1]] = row[2]
	}
	if len(words) < 10 {
		t.Fatalf("the glossary replaces only %d words", len(words))
	}
	return words
}

// TestWordsOfTheGlossary looks for replaced words in the documents and in all Go files.
func TestWordsOfTheGlossary(t *testing.T) {
	inRepository(t)
	files := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/cli/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(found))
		}
		files = append(files, found...)
	}
	for _, path := range goFiles(t) {
		if !strings.HasPrefix(path, "hack/rules/") { // It names the words.
			files = append(files, path)
		}
	}
	words := replacedWords(t)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if path != "docs/glossary.md" {
			for _, found := range replaced(string(text), words) {
				t.Errorf("%s: %s", path, found)
			}
		}
	}
}

// replaced returns the replaced words of a text, with what to write.
func replaced(text string, words map[string]string) []string {
	var found []string
	plain := strings.ToLower(strings.Join(strings.Fields(strings.ReplaceAll(text, "//", " ")), " "))
	for word, instead := range words {
		if strings.Contains(plain, word) && regexp.MustCompile(`\b`+regexp.QuoteMeta(word)+`\b`).MatchString(plain) {
			found = append(found, "write "+instead+" in place of "+word)
		}
	}
	slices.Sort(found)
	return found
}

// TestWordsAreFound proves that the check above can fail, over the end of a comment's line too.
func TestWordsAreFound(t *testing.T) {
	inRepository(t)
	words := map[string]string{"in vain": "without success", "mend": "fix"}
	if found := replaced("// It tries in\n// vain.\nfunc recommend() {}\n", words); !slices.Equal(found, []string{"write without success in place of in vain"}) {
		t.Errorf("found %q", found)
	}
}
