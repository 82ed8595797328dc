package dcgm

import (
	"encoding/csv"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/core/safetext"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// Type is how a list wants a field to be exported.
type Type string

// The types. A field of type Label is a label of all series.
const (
	Gauge   Type = "gauge"
	Counter Type = "counter"
	Label   Type = "label"
)

// The bounds of a list. dcgm-exporter's longest has about 100 lines.
const (
	MaxBytes = 64 << 10
	MaxLines = 1000
)

// maxHelp bounds the help of a field, which is on each page.
const maxHelp = 500

// Entry is a line of a list: a field that is to be exported.
type Entry struct {
	Line int
	Name string
	Type Type
	Help string
}

// Mistake is a line that cannot be read, or a list that is too long.
type Mistake struct {
	// Line counts from 1.
	Line int
	// What is wrong, and the fix.
	What string
	Fix  string
}

// String returns the mistake as one line of a message.
func (m Mistake) String() string {
	return "line " + strconv.Itoa(m.Line) + ": " + m.What + "; " + m.Fix
}

// fieldName is the form of the names of fields.
var fieldName = regexp.MustCompile(`^DCGM_[A-Z0-9_]{1,100}$`)

// Parse reads a list in the form of dcgm-exporter: FIELD, type, help, each with or without double quotes. Empty lines and lines that begin
// with # count for nothing. Lines that cannot be read, and fields that are named before, are mistakes; the others are entries.
func Parse(list string) ([]Entry, []Mistake) {
	var entries []Entry
	var mistakes []Mistake
	list, cut := bounded(strings.TrimPrefix(list, "\ufeff"))
	before := map[string]int{}
	number := 0
	for line := range strings.Lines(list) {
		number++
		if number > MaxLines {
			cut = &Mistake{What: fmt.Sprintf("the list has more than %d lines", MaxLines), Fix: "remove comments, and fields that no query uses"}
			break
		}
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		entry, what, fix := parseLine(line)
		if first := before[entry.Name]; what == "" && first > 0 {
			what, fix = fmt.Sprintf("%s is in line %d too", entry.Name, first), "keep one of the two lines"
		}
		if what != "" {
			mistakes = append(mistakes, Mistake{Line: number, What: what, Fix: fix})
			continue
		}
		entry.Line, before[entry.Name] = number, number
		entries = append(entries, entry)
	}
	if cut != nil {
		cut.Line = number
		mistakes = append(mistakes, *cut)
	}
	return entries, mistakes
}

// bounded returns the whole lines within MaxBytes, and a mistake if others were cut off.
func bounded(list string) (string, *Mistake) {
	if len(list) <= MaxBytes {
		return list, nil
	}
	list = list[:strings.LastIndexByte(list[:MaxBytes], '\n')+1]
	return list, &Mistake{What: fmt.Sprintf("the list is larger than %d KiB, and ends here", MaxBytes>>10), Fix: "remove comments, and fields that no query uses"}
}

// form is the fix for a line that is not in the form of a list.
const form = "write FIELD, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C)."

// parseLine returns the entry of a line; otherwise what is wrong with it, and the fix.
func parseLine(line string) (entry Entry, what, fix string) {
	if !utf8.ValidString(line) {
		return Entry{}, "the text is not UTF-8", "save the file as UTF-8"
	}
	list, help := columns(line)
	if len(list) == 1 {
		return Entry{}, quoted(line) + " has " + alone(line), form
	}
	name, kind := list[0], list[1]
	current, legacy := legacyNames()[name]
	switch {
	case legacy:
		return Entry{}, name + " is a name of dcgm-exporter 1.x", "write " + current
	case !fieldName.MatchString(name):
		return Entry{}, quoted(name) + " is not the name of a field", "names begin with DCGM_FI_ or DCGM_EXP_; " + form
	case help == "":
		return Entry{}, name + " has no help", form
	case len(help) > maxHelp:
		return Entry{}, fmt.Sprintf("the help of %s has %d characters", name, len(help)), fmt.Sprintf("write at most %d", maxHelp)
	}
	switch Type(strings.ToLower(kind)) {
	case Gauge, Counter, Label:
		return Entry{Name: name, Type: Type(strings.ToLower(kind)), Help: help}, "", ""
	}
	types := []string{string(Gauge), string(Counter), string(Label)}
	fix = "write gauge, counter or label"
	if near := spelling.Nearest(kind, types); near != "" {
		fix = "did you mean " + near + "? " + fix
	}
	return Entry{}, "the type " + quoted(kind) + " of " + name + " is unknown", fix
}

// columns returns the columns of a line, of which there is at least one, and the help. Unlike dcgm-exporter, it accepts spaces before a
// quote, quotes within a column, and commas in a help without quotes.
func columns(line string) (list []string, help string) {
	reader := csv.NewReader(strings.NewReader(line))
	reader.LazyQuotes, reader.TrimLeadingSpace = true, true
	list, err := reader.Read()
	if err != nil || len(list) == 0 {
		return []string{line}, ""
	}
	switch {
	case len(list) == 3:
		help = list[2]
	case len(list) > 3:
		_, at := reader.FieldPos(2)
		help = line[at-1:]
	}
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list, oneLine(help)
}

// alone says why a line has one column.
func alone(line string) string {
	if strings.Contains(line, ",") {
		return "one column: the quotes do not end behind the name"
	}
	return "no comma"
}

// oneLine returns a help as one line of a page has it: a list cannot begin another line there.
func oneLine(help string) string { return safetext.Line(strings.ReplaceAll(help, `\`, " ")) }

// quoted returns what a message shows of a text.
func quoted(text string) string {
	const most = 60
	if len(text) > most {
		text = safetext.First(text, most) + "…"
	}
	return strconv.Quote(text)
}
