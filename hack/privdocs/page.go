package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const head = `# Privileges

What each component may do, and why. This page is generated from the manifests, in which each reason stands beside its right; a right without a
reason fails the tests. No component may write Secrets or objects of RBAC, or list Secrets. The agent and the MPS supervisor are the
only privileged programs. Policies limit what the agent does with its rights: see [install.md](install.md#policies).
`

// page returns the document for the manifests below root.
func page(root string, manifests []string) (string, error) {
	var out strings.Builder
	out.WriteString(head)
	for _, name := range manifests {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return "", fmt.Errorf("read manifest: %w", err)
		}
		sections, err := sectionsOf(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		for _, s := range sections {
			fmt.Fprintf(&out, "\n## %s\n\nIn [%s](../%s).\n\n", s.title, name, name)
			writeTable(&out, s.columns, s.rows)
		}
	}
	return out.String(), nil
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
