// Package term draws tables, trees and matrices as plain text for terminals.
//
// It guarantees that the same values give the same bytes, that columns are aligned by characters (not bytes), and that
// untrusted text cannot move the cursor or colour the screen: control characters are printed as \x1b and the like. It
// must not import anything but the standard library, internal/core/safetext and golang.org/x/sys/unix. Colours are written only here.
package term

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/core/safetext"
)

// gap separates two columns.
const gap = "   "

// Clean escapes control characters, so that a name cannot draw on the terminal.
func Clean(text string) string {
	if !strings.ContainsFunc(text, safetext.Unsafe) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if safetext.Unsafe(r) {
			fmt.Fprintf(&out, `\x%02x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// CleanLines escapes control characters in each line of a text.
func CleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

func width(text string) int { return utf8.RuneCountInString(text) }

func pad(text string, to int) string { return text + strings.Repeat(" ", max(0, to-width(text))) }

// Columns prints rows in columns. Rows that are printed later have their columns in the same places, as long as their cells fit.
type Columns struct{ widths []int }

// Print prints rows in columns as wide as the widest cell so far. No line ends with blanks.
func (c *Columns) Print(w io.Writer, rows [][]string) error {
	clean := make([][]string, len(rows))
	for r, row := range rows {
		for i, cell := range row {
			clean[r] = append(clean[r], Clean(cell))
			if i == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			c.widths[i] = max(c.widths[i], width(clean[r][i]))
		}
	}
	var out strings.Builder
	for _, row := range clean {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString(gap)
			}
			line.WriteString(pad(cell, c.widths[i]))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Table prints rows in columns below a header; without one if head is nil. Rows may be shorter than the header.
func Table(w io.Writer, head []string, rows [][]string) error {
	if head != nil {
		rows = append([][]string{head}, rows...)
	}
	return new(Columns).Print(w, rows)
}

// Node is a line of a tree with its children. The Note is printed in a column of its own to the right.
type Node struct {
	Text     string
	Note     string
	Children []*Node
}

// Add adds a child to n and returns it.
func (n *Node) Add(text, note string) *Node {
	child := &Node{Text: text, Note: note}
	n.Children = append(n.Children, child)
	return child
}

// maxText bounds how far long lines shift the notes of all lines to the right.
const maxText = 76

// Tree prints roots with their branches, with aligned notes.
func Tree(w io.Writer, roots []*Node) error {
	type line struct {
		text string
		note string
	}
	var lines []line
	var walk func(nodes []*Node, indent string)
	walk = func(nodes []*Node, indent string) {
		for i, node := range nodes {
			branch, below := "├─ ", "│  "
			if i == len(nodes)-1 {
				branch, below = "└─ ", "   "
			}
			lines = append(lines, line{indent + branch + Clean(node.Text), Clean(node.Note)})
			walk(node.Children, indent+below)
		}
	}
	for _, root := range roots {
		lines = append(lines, line{Clean(root.Text), Clean(root.Note)})
		walk(root.Children, "")
	}
	column := 0
	for _, line := range lines {
		if line.note != "" && width(line.text) <= maxText {
			column = max(column, width(line.text))
		}
	}
	var out strings.Builder
	for _, line := range lines {
		out.WriteString(strings.TrimRight(pad(line.text, column)+gap+line.note, " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Matrix prints cells below and beside their headings; further columns, such as an affinity, follow the square.
func Matrix(w io.Writer, heads []string, cells [][]string, further []string, more [][]string) error {
	head := append(append([]string{""}, heads...), further...)
	rows := make([][]string, len(cells))
	for i := range cells {
		rows[i] = append([]string{heads[i]}, cells[i]...)
		if i < len(more) {
			rows[i] = append(rows[i], more[i]...)
		}
	}
	return Table(w, head, rows)
}
