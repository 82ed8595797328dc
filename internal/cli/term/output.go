package term

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Output is what is known about where text is written.
type Output struct {
	// Rows and Columns are 0 where there is no limit.
	Rows    int
	Columns int
	// Colour is true where colours may be used.
	Colour bool
}

// Of returns the output that w is. Only a terminal has a size of its own and colours, and no colours where NO_COLOR is set to anything or
// TERM is dumb; see https://no-color.org. Where w is no terminal, the variable COLUMNS limits the columns.
func Of(w io.Writer, getenv func(string) string) Output {
	if file, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil {
			return Output{Rows: int(size.Row), Columns: int(size.Col), Colour: getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
		}
	}
	columns, err := strconv.Atoi(getenv("COLUMNS"))
	if err != nil || columns < 0 {
		return Output{}
	}
	return Output{Columns: columns}
}

// Colour is the colour of a cell.
type Colour int

// The colours: of text as it is, and of what deserves a look, or is bad; and of headings.
const (
	Plain Colour = iota
	Warn
	Bad
	Heading
)

// paint returns text in a colour.
func (o Output) paint(text string, colour Colour) string {
	if !o.Colour || colour == Plain || text == "" {
		return text
	}
	codes := [...]string{Warn: "33", Bad: "31", Heading: "1"}
	return "\x1b[" + codes[colour] + "m" + text + "\x1b[0m"
}

// Line returns a line of text in a colour, without control characters of its own and cut to the columns.
func (o Output) Line(text string, colour Colour) string {
	text = Clean(text)
	if o.Columns > 0 {
		text = shorten(text, o.Columns)
	}
	return o.paint(text, colour)
}
