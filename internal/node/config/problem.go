package config

import (
	"slices"
	"strconv"
	"strings"
)

// Problem is one error in a configuration file: its position, what is wrong, and the fix.
type Problem struct {
	File string
	// Line counts from 1; it is 0 when the problem concerns the whole file.
	Line int
	// Field is the path from the top, such as gpus[0].sharing.replicas.
	Field string
	What  string
	Fix   string
}

func (p Problem) String() string {
	text := p.File
	if p.Line > 0 {
		text += ":" + strconv.Itoa(p.Line)
	}
	if p.Field != "" {
		text += ": " + p.Field
	}
	text += ": " + p.What
	if p.Fix != "" {
		text += " (" + p.Fix + ")"
	}
	return text
}

// Error has all problems of a file, in the order of its lines.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems bounds an error, which is written to logs and to a condition of the node's object.
const maxProblems = 50

// err returns the problems as one error, or nil.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
	if more := len(d.problems) - maxProblems; more > 0 {
		last := Problem{File: d.file, What: strconv.Itoa(more) + " more problems follow", Fix: "fix these first"}
		return &Error{Problems: append(d.problems[:maxProblems:maxProblems], last)}
	}
	return &Error{Problems: d.problems}
}

func (d *decoder) add(line int, field, what, fix string) {
	problem := Problem{File: d.file, Line: line, Field: field, What: what, Fix: fix}
	// One entry of NVIDIA's file can become several rules with the same problem.
	if !d.filed[problem] {
		d.filed[problem] = true
		d.problems = append(d.problems, problem)
	}
}

// reject adds a problem of a field of the configuration, with its line.
func (d *decoder) reject(field, what, fix string) {
	field = d.origin(field)
	d.add(d.line(field), field, what, fix)
}

// note adds a note on a field of the file without refusing it.
func (d *decoder) note(field, what, fix string) {
	d.notes = append(d.notes, Problem{File: d.file, Line: d.line(field), Field: field, What: what, Fix: fix}.String())
}

// given reports whether the file has the field.
func (d *decoder) given(field string) bool {
	_, ok := d.lines[d.origin(field)]
	return ok
}

// line returns the line of a field, or of the nearest field that contains it.
func (d *decoder) line(field string) int {
	for ; field != ""; field = parent(field) {
		if line, ok := d.lines[field]; ok {
			return line
		}
	}
	return 0
}

// origin returns the name that a field of the configuration has in the file.
func (d *decoder) origin(field string) string {
	for at := field; at != ""; at = parent(at) {
		if origin, ok := d.origins[at]; ok {
			return origin + field[len(at):]
		}
	}
	return field
}

// parent returns a path without its last name or index.
func parent(field string) string {
	return field[:max(0, strings.LastIndexAny(field, ".["))]
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}
