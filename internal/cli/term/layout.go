package term

import (
	"io"
	"strings"
)

// Column is a column of a Layout.
type Column struct {
	Head string
	// Least is the width to which the column may be shortened; 0 means that it is not.
	Least int
	// Drop is the order in which columns are left out where they do not fit even after shortening, the highest first; 0 means never.
	Drop int
	// Right aligns numbers.
	Right bool
}

// Cell is a cell with its colour.
type Cell struct {
	Text   string
	Colour Colour
}

// Cells returns plain cells.
func Cells(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i].Text = text
	}
	return cells
}

// Layout is a table that fits into the columns of an output.
type Layout struct {
	Columns []Column
	Rows    [][]Cell
	// NoHead leaves the row of headings out.
	NoHead bool
}

// Write prints the table: all of it where the columns have no limit. Otherwise it shortens cells, then leaves out columns, then cuts lines.
func (l *Layout) Write(w io.Writer, out Output) error {
	rows := make([][]Cell, 0, len(l.Rows)+1)
	head := make([]Cell, len(l.Columns))
	for i := range l.Columns {
		head[i] = Cell{l.Columns[i].Head, Heading}
	}
	rows = append(append(rows, head), l.Rows...)
	widths := make([]int, len(l.Columns))
	for r, row := range rows {
		clean := make([]Cell, len(row))
		for i, cell := range row {
			clean[i] = Cell{Clean(cell.Text), cell.Colour}
			widths[i] = max(widths[i], width(clean[i].Text))
		}
		rows[r] = clean
	}
	shown := l.fit(widths, out.Columns)
	var text strings.Builder
	if l.NoHead {
		rows = rows[1:]
	}
	for _, row := range rows {
		l.line(&text, row, widths, shown, out)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// line appends a row.
func (l *Layout) line(text *strings.Builder, row []Cell, widths []int, shown []bool, out Output) {
	column, pending := 0, 0
	for i := range row {
		if !shown[i] {
			continue
		}
		if column > 0 {
			column, pending = column+len(gap), pending+len(gap)
		}
		cell := shorten(row[i].Text, widths[i])
		blanks := widths[i] - width(cell)
		if l.Columns[i].Right {
			column, pending = column+blanks, pending+blanks
			blanks = 0
		}
		if out.Columns > 0 {
			cell = shorten(cell, max(0, out.Columns-column))
		}
		if cell != "" {
			text.WriteString(strings.Repeat(" ", pending) + out.paint(cell, row[i].Colour))
			pending = 0
		}
		column, pending = column+width(cell)+blanks, pending+blanks
	}
	text.WriteString("\n")
}

// fit returns the columns that are shown, and reduces widths.
func (l *Layout) fit(widths []int, limit int) []bool {
	shown := make([]bool, len(widths))
	for i := range shown {
		shown[i] = true
	}
	if limit <= 0 {
		return shown
	}
	for {
		excess := -len(gap) - limit
		spare, drop := 0, -1
		for i := range l.Columns {
			if !shown[i] {
				continue
			}
			excess += widths[i] + len(gap)
			spare += l.spare(i, widths)
			if l.Columns[i].Drop > 0 && (drop < 0 || l.Columns[i].Drop > l.Columns[drop].Drop) {
				drop = i
			}
		}
		if excess > spare && drop >= 0 {
			shown[drop] = false
			continue
		}
		l.shorten(widths, shown, excess)
		return shown
	}
}

// spare returns by how much a column may be shortened.
func (l *Layout) spare(i int, widths []int) int {
	if l.Columns[i].Least == 0 {
		return 0
	}
	return max(0, widths[i]-max(l.Columns[i].Least, width(l.Columns[i].Head)))
}

// shorten takes the excess from the columns that may be shortened, each time from the one with the most to spare.
func (l *Layout) shorten(widths []int, shown []bool, excess int) {
	for ; excess > 0; excess-- {
		widest, spare := -1, 0
		for i := range l.Columns {
			if s := l.spare(i, widths); shown[i] && s > spare {
				widest, spare = i, s
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// shorten returns text in at most some columns, with … at the end of what was cut.
func shorten(text string, columns int) string {
	if width(text) <= columns {
		return text
	}
	if columns <= 0 {
		return ""
	}
	return string([]rune(text)[:columns-1]) + "…"
}
