package rules_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinksOfDocuments follows each relative link of each document, to its heading where it names one.
func TestLinksOfDocuments(t *testing.T) {
	inRepository(t)
	links := 0
	for path, text := range markdown(t) {
		for _, target := range linksOf(text) {
			links++
			if why := broken(path, target); why != "" {
				t.Errorf("%s: link to %s: %s", path, target, why)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links found", links)
	}
}

// TestPathsInDocuments looks for the files, packages and make targets that documents name. A moved package or a renamed file
// must be renamed in the documents too.
func TestPathsInDocuments(t *testing.T) {
	inRepository(t)
	paths, targets := 0, makeTargets(t)
	for document, text := range markdown(t) {
		for _, path := range pathsIn(text) {
			paths++
			if found, err := filepath.Glob(path); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist", document, path)
			}
		}
		for _, m := range regexp.MustCompile("(?:`|    )make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s names make %s, which the Makefile does not have", document, m[1])
			}
		}
	}
	if paths < 100 || len(targets) < 5 {
		t.Errorf("only %d paths and %d make targets found", paths, len(targets))
	}
}

// TestBrokenReferencesAreFound proves that the two checks above can fail.
func TestBrokenReferencesAreFound(t *testing.T) {
	inRepository(t)
	text := "# A title\n\nSee [one](docs/glossary.md#terms), [two](docs/glossary.md#no-such), [three](no-such.md), [four](#a-title), [web](https://example.com).\n" +
		"```text\n[code](gone.md)\n```\nThe package `internal/core/gone` and `go test ./internal/core/health`, but not example.com/internal/x.\n"
	var bad []string
	for _, target := range linksOf(text) {
		if broken("README.md", target) != "" {
			bad = append(bad, target)
		}
	}
	// The link within the text itself is looked up in README.md, which has no such title.
	if want := []string{"docs/glossary.md#no-such", "no-such.md", "#a-title"}; !slices.Equal(bad, want) {
		t.Errorf("broken links %q, want %q", bad, want)
	}
	if got, want := pathsIn(text), []string{"docs/glossary.md", "internal/core/gone", "internal/core/health"}; !slices.Equal(got, want) {
		t.Errorf("paths %q, want %q", got, want)
	}
}

// markdown returns the text of each Markdown file of the repository by its path.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (path != "." && strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts[path] = string(text)
		}
		return nil
	})
	if err != nil || len(texts) < 30 {
		t.Fatalf("%d documents, error %v", len(texts), err)
	}
	return texts
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	// treePath is a path from the root of the repository, optionally with ./ before it.
	treePath = regexp.MustCompile("(?m)(?:^|[ `(])(?:\\./)?((?:api|charts|cmd|deploy|docs|hack|internal|kube)/[A-Za-z0-9_./*-]*[A-Za-z0-9_*])")
)

// linksOf returns the targets of a text's links within the repository.
func linksOf(text string) []string {
	var targets []string
	for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), ""), -1) {
		if !strings.Contains(m[1], "://") {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// pathsIn returns the paths of this repository that a text names.
func pathsIn(text string) []string {
	var paths []string
	for _, m := range treePath.FindAllStringSubmatch(text, -1) {
		path := strings.TrimSuffix(m[1], "/...")
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// broken says what is wrong with a link of a document, or "".
func broken(document, target string) string {
	file, anchor, _ := strings.Cut(target, "#")
	path := document
	if file != "" {
		path = filepath.Join(filepath.Dir(document), file)
	}
	text, err := os.ReadFile(path)
	if info, statErr := os.Stat(path); statErr != nil || !info.IsDir() && err != nil {
		return "the file does not exist"
	}
	if anchor == "" {
		return ""
	}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(text), ""), -1) {
		if anchorOf(m[1]) == anchor {
			return ""
		}
	}
	return "no heading has this anchor"
}

// anchorOf returns the anchor that GitHub gives a heading.
func anchorOf(title string) string {
	title = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(title, "$1")
	title = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(title), "")
	return strings.ReplaceAll(strings.TrimSpace(title), " ", "-")
}

func makeTargets(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(text), -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// commandLine is a command of berth or berth-agent with its words and flags.
var commandLine = regexp.MustCompile(`(?:^|[\s/])(berth(?:-agent)?)((?: [a-z]+)+)((?: [^\s|#;()]+)*)`)

// TestCommandsInDocuments looks for the commands and flags that documents name, in docs/cli: in code everywhere, and in
// the fixes of docs/problems.md.
func TestCommandsInDocuments(t *testing.T) {
	inRepository(t)
	texts := markdown(t)
	commands := 0
	for document, text := range texts {
		var lines []string
		if document == "docs/problems.md" {
			for _, m := range regexp.MustCompile(`(?m)^\*\*Fix\.\*\* .*$`).FindAllString(text, -1) {
				lines = append(lines, regexp.MustCompile(`berth(?:-agent)? [a-z]+[^.,;:()]*`).FindAllString(m, -1)...)
			}
		} else {
			lines = codeOf(text)
		}
		for _, line := range lines {
			// The release and the chart of Helm are named berth too.
			if strings.HasPrefix(strings.TrimSpace(line), "helm ") {
				continue
			}
			for _, m := range commandLine.FindAllStringSubmatch(line, -1) {
				commands++
				page := "docs/cli/" + strings.ReplaceAll(m[1]+m[2], " ", "_") + ".md"
				// A word may be an argument, such as the name of a pod.
				for texts[page] == "" && strings.Contains(page, "_") {
					page = page[:strings.LastIndex(page, "_")] + ".md"
				}
				if page == "docs/cli/"+m[1]+".md" {
					t.Errorf("%s: %q names a command that does not exist", document, line)
				}
				for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(m[3], -1) {
					if !strings.Contains(texts[page], flag+" ") {
						t.Errorf("%s: %q has %s, which %s does not list", document, line, flag, page)
					}
				}
			}
		}
	}
	if commands < 100 {
		t.Errorf("only %d commands found", commands)
	}
}

// codeOf returns the lines of a text's code blocks and its code spans.
func codeOf(text string) []string {
	var lines []string
	for _, block := range codeBlock.FindAllString(text, -1) {
		lines = append(lines, strings.Split(block, "\n")...)
	}
	lines = append(lines, codeSpan.FindAllString(codeBlock.ReplaceAllString(text, ""), -1)...)
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "    ") {
			lines = append(lines, line)
		}
	}
	return lines
}
