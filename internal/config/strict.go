package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds a config file; a full one of every field is under 10 KiB.
const maxBytes = 1 << 20

// Problem is one thing that is wrong with a config file: where, what, and the fix.
type Problem struct {
	File string
	// Line counts from 1; 0 when the trouble is with the file as a whole.
	Line int
	// Field is the path from the top, such as sharing.resources[0].name.
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

// Error is all that is wrong with a file, in the order of its lines.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// decoder fills a struct from YAML by its json tags and remembers where each
// field stood, so that later checks can name the line too.
type decoder struct {
	file     string
	lines    map[string]int
	problems []Problem
}

// strict reads one YAML (or JSON) document into the struct that into points to. Unknown and
// double keys, wrong types and a second document are errors with their line.
func strict(file string, data []byte, into any) *decoder {
	d := &decoder{file: file, lines: map[string]int{}}
	if len(data) > maxBytes {
		d.add(0, "", fmt.Sprintf("the file has %d bytes, at most %d are read", len(data), maxBytes), "")
		return d
	}
	reader := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	err := reader.Decode(&document)
	switch {
	case errors.Is(err, io.EOF):
		return d // An empty file means all defaults.
	case err != nil:
		d.add(yamlErrorLine(err), "", "this is not YAML: "+strings.TrimPrefix(err.Error(), "yaml: "), "check the indentation and quotes above this line")
		return d
	}
	var second yaml.Node
	if err := reader.Decode(&second); !errors.Is(err, io.EOF) {
		d.add(second.Line, "", "the file holds a second document", "keep one document per file")
		return d
	}
	d.fill(document.Content[0], reflect.ValueOf(into).Elem(), "")
	return d
}

// err gives the problems as one error, or nil.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
	return &Error{Problems: d.problems}
}

func (d *decoder) add(line int, field, what, fix string) {
	d.problems = append(d.problems, Problem{File: d.file, Line: line, Field: field, What: what, Fix: fix})
}

// reject files a problem with a field that was read, at its line.
func (d *decoder) reject(field, what, fix string) { d.add(d.lines[field], field, what, fix) }

func (d *decoder) fill(node *yaml.Node, into reflect.Value, field string) {
	if field != "" {
		d.lines[field] = node.Line
	}
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		d.add(node.Line, field, "anchors and aliases are not read", "write the value out")
		return
	}
	if node.Tag == "!!null" {
		return // "key:" with nothing behind it keeps the default.
	}
	if into.Kind() == reflect.Pointer && !leaf(into) {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch {
	case leaf(into):
		d.fillLeaf(node, into, field)
	case into.Kind() == reflect.Struct:
		d.fillStruct(node, into, field)
	case into.Kind() == reflect.Slice:
		d.fillList(node, into, field)
	default:
		d.fillLeaf(node, into, field)
	}
}

// leaf tells whether a type reads itself, whatever its kind (a duration, a string-or-list).
func leaf(value reflect.Value) bool {
	_, ok := value.Addr().Interface().(json.Unmarshaler)
	return ok
}

func (d *decoder) fillStruct(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.add(node.Line, field, "want keys and values, got "+describe(node), "")
		return
	}
	fields := map[string]reflect.Value{}
	var known []string
	collectFields(into, fields, &known)
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := join(field, key.Value)
		target, ok := fields[key.Value]
		switch {
		case seen[key.Value]:
			d.add(key.Line, path, "this key is given twice", "keep one")
		case !ok:
			d.add(key.Line, path, "unknown key", suggestion(key.Value, known))
		default:
			d.fill(value, target, path)
			d.lines[path] = key.Line
		}
		seen[key.Value] = true
	}
}

func collectFields(value reflect.Value, fields map[string]reflect.Value, known *[]string) {
	for i := range value.NumField() {
		tag, options, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if tag == "" && strings.Contains(options, "inline") {
			collectFields(value.Field(i), fields, known)
			continue
		}
		if tag != "" && tag != "-" {
			fields[tag] = value.Field(i)
			*known = append(*known, tag)
		}
	}
}

func (d *decoder) fillList(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.SequenceNode {
		d.add(node.Line, field, "want a list, got "+describe(node), "write it as [a, b] or as lines that begin with \"- \"")
		return
	}
	list := reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		d.fill(item, list.Index(i), field+"["+strconv.Itoa(i)+"]")
	}
	into.Set(list)
}

// fillLeaf goes through JSON, so that a type has one set of rules for both formats.
func (d *decoder) fillLeaf(node *yaml.Node, into reflect.Value, field string) {
	var plain any
	if err := node.Decode(&plain); err != nil {
		d.add(node.Line, field, "cannot be read: "+err.Error(), "")
		return
	}
	text, err := json.Marshal(plain)
	if err == nil {
		err = json.Unmarshal(text, into.Addr().Interface())
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		fix := ""
		if into.Kind() == reflect.String {
			fix = "put it in quotes: \"" + node.Value + "\""
		}
		d.add(node.Line, field, fmt.Sprintf("want %s, got %s", kindName(into.Type()), describe(node)), fix)
	case err != nil:
		d.add(node.Line, field, err.Error(), "")
	}
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return "a value of type " + t.Name()
}

func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(node.Value)
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// yamlErrorLine takes the line out of "yaml: line 3: …"; the library has no field
// for it, and leaves it out when it is the first.
func yamlErrorLine(err error) int {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	if !ok {
		return 1
	}
	digits, _, _ := strings.Cut(rest, ":")
	line, _ := strconv.Atoi(digits)
	return line
}
