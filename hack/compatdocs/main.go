// Command compatdocs writes the tables of distributions and of versions of Kubernetes in docs/compatibility.md. The first is from the hosts
// of internal/node/hostruntime/hosttest, the second from the list of versions that the tests of this command try against stand-ins of their
// kubelets.
//
// It must not be imported; go generate runs it, in its own directory.
package main

import (
	"fmt"
	"os"
	"strings"
)

//go:generate go run .

// document is the page, relative to this package.
const document = "../../docs/compatibility.md"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "compatdocs:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	page, err := fill(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(document, []byte(page), 0o644)
}

// fill returns the page with present tables.
func fill(page string) (string, error) {
	hosts, err := distributions()
	if err != nil {
		return "", err
	}
	if page, err = between(page, "distributions", hosts); err != nil {
		return "", err
	}
	return between(page, "kubernetes", kubernetes())
}

// between replaces what is between the two marks of a name.
func between(page, name, text string) (string, error) {
	begin, end := "<!-- compatdocs: "+name+" -->\n", "<!-- compatdocs: end of "+name+" -->\n"
	before, rest, ok := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s lacks the line %q or, below it, %q", document, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + text + end + after, nil
}

// table returns a table of Markdown.
func table(columns []string, rows [][]string) string {
	var out strings.Builder
	line := func(cells []string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	line(columns)
	out.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		line(row)
	}
	return out.String()
}
