package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const head = `# Privileges

What each component may do, and why. This page is generated from the templates of the chart, in which each reason stands beside its right; a right without a
reason fails the tests. No component may write Secrets or objects of RBAC, or list Secrets. The agent and the MPS supervisor are the
only privileged programs. Policies limit what the agent does with its rights: see [install.md](install.md#policies).
`

// page returns the document for the rendering below root, ordered by template.
func page(root string) (string, error) {
	var out strings.Builder
	out.WriteString(head)
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(rendering)))
	if err != nil {
		return "", fmt.Errorf("read rendering: %w", err)
	}
	byTemplate := map[string][]section{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		name, err := template(document)
		if err != nil {
			return "", err
		}
		sections, err := sectionsOf([]byte(document))
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		byTemplate[name] = append(byTemplate[name], sections...)
	}
	for _, name := range slices.Sorted(maps.Keys(byTemplate)) {
		for _, s := range byTemplate[name] {
			fmt.Fprintf(&out, "\n## %s\n\nIn [%s](../%s).\n\n", s.title, name, name)
			writeTable(&out, s.columns, s.rows)
		}
	}
	return out.String(), nil
}

// template returns the template that rendered a document, as Helm names it in a comment.
func template(document string) (string, error) {
	const source = "# Source: "
	for line := range strings.Lines(document) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), source); ok {
			return "charts/" + name, nil
		}
	}
	return "", fmt.Errorf("a document of %s does not name its template", rendering)
}

// section is a table of the page.
type section struct {
	title   string
	columns []string
	rows    [][]string
}

func writeTable(out *strings.Builder, columns []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	line(columns)
	out.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		line(row)
	}
}
