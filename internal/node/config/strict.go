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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// maxBytes bounds a config file; a full one of every field is under 10 KiB.
const maxBytes = 1 << 20

// decoder fills a struct from YAML by its json tags and records the line of each field, so that later checks can report
// it.
type decoder struct {
	file  string
	lines map[string]int
	// origins maps fields of the configuration to fields of NVIDIA's file, so that the same checks report the names
	// that the user wrote.
	origins map[string]string
	// hints are fixes for unknown keys, by path.
	hints map[string]string
	// root is the type of the whole file.
	root reflect.Type
	// nullKeys allows a key of a map without a value: in a values file of Helm it removes the key.
	nullKeys bool
	problems []Problem
	filed    map[Problem]bool
	notes    []string
}

// reader is a type that reads its own YAML.
type reader interface {
	read(d *decoder, node *yaml.Node, field string)
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, lines: map[string]int{}, origins: map[string]string{}, filed: map[Problem]bool{}}
}

// DecodeValues reads a values file of Helm into the struct that into points to, by its json tags. Unknown and double keys and wrong types
// are problems with their lines, and an unknown key has the nearest known one. A key without a value removes the default, and is no
// problem. The result has the line of each key, by its path.
func DecodeValues(file string, data []byte, into any) (map[string]int, error) {
	d := newDecoder(file)
	d.nullKeys = true
	d.decode(d.parse(data), into, nil)
	return d.lines, d.err()
}

// parse reads one YAML (or JSON) document. It returns nil for an empty file or one with a problem.
func (d *decoder) parse(data []byte) *yaml.Node {
	if len(data) > maxBytes {
		d.add(0, "", fmt.Sprintf("the file has %d bytes, at most %d are read", len(data), maxBytes), "")
		return nil
	}
	reader := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := reader.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		d.add(yamlErrorLine(err), "", "this is not YAML: "+yamlErrorText(err),
			"check the indentation and quotes above this line")
		return nil
	}
	if err := reader.Decode(&second); !errors.Is(err, io.EOF) {
		d.add(second.Line, "", "the file holds a second document", "keep one document per file")
		return nil
	}
	return d.expand(document.Content[0])
}

// decode reads the document into the struct that into points to. Unknown and double keys and
// wrong types are errors with their line.
func (d *decoder) decode(document *yaml.Node, into any, hints map[string]string) {
	if document == nil {
		return // An empty file means all defaults.
	}
	value := reflect.ValueOf(into).Elem()
	d.root, d.hints = value.Type(), hints
	d.fill(document, value, "")
}

func (d *decoder) fill(node *yaml.Node, into reflect.Value, field string) {
	if field != "" {
		d.lines[field] = node.Line
	}
	if node.Tag == "!!null" {
		return // "key:" without a value keeps the default.
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	if own, ok := reflect.TypeAssert[reader](into.Addr()); ok {
		own.read(d, node, field)
		return
	}
	switch {
	case into.Type() == reflect.TypeFor[v1alpha1.StringOrList]():
		d.fillTexts(node, into, field)
	case into.Type() == reflect.TypeFor[v1alpha1.Lines]():
		d.fillLines(node, into, field)
	case leaf(into):
		d.fillLeaf(node, into, field)
	case into.Kind() == reflect.Struct:
		d.fillStruct(node, into, field)
	case into.Kind() == reflect.Slice:
		d.fillList(node, into, field)
	case into.Kind() == reflect.Map:
		d.fillMap(node, into, field)
	default:
		d.fillLeaf(node, into, field)
	}
}

// fillLines reads a text of several lines. What is wrong with a line is reported where the text is used.
func (d *decoder) fillLines(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		d.add(node.Line, field, "want a text, got "+describe(node), "write "+field+": | and the lines below it, indented")
		return
	}
	into.SetString(node.Value)
}

// leaf reports whether a type decodes itself, whatever its kind (a duration, all-or-indices).
func leaf(value reflect.Value) bool {
	_, ok := reflect.TypeAssert[json.Unmarshaler](value.Addr())
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
	d.eachKey(node, func(key, value *yaml.Node) {
		path := join(field, key.Value)
		target, ok := fields[key.Value]
		if !ok {
			d.add(key.Line, path, "unknown key", d.unknown(path, key.Value, known))
			return
		}
		d.fill(value, target, path)
		d.lines[path] = key.Line
	}, func(key string) string { return join(field, key) })
}

// eachKey visits the keys of a mapping, except duplicates, which are problems.
func (d *decoder) eachKey(node *yaml.Node, visit func(key, value *yaml.Node), path func(string) string) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || !printable(key.Value):
			d.add(key.Line, path("?"), "a key must be printable text, got "+describe(key), "")
		case seen[key.Value]:
			d.add(key.Line, path(key.Value), "this key is given twice", "keep one")
		default:
			visit(key, node.Content[i+1])
		}
		seen[key.Value] = true
	}
}

// unknown returns what to write instead of an unknown key: a hint, the place where a key of this name belongs, or the
// most similar name.
func (d *decoder) unknown(path, key string, known []string) string {
	if hint, ok := d.hints[path]; ok {
		return hint
	}
	if places := d.places(key); len(places) == 1 && spelling.Nearest(key, known) == "" {
		return "it belongs to " + places[0]
	}
	return suggestion(key, known)
}

// places returns the paths of the file's type that end with key.
func (d *decoder) places(key string) []string {
	var found []string
	walkKeys(d.root, "", func(parent, name string) {
		if name == key && !slices.Contains(found, parent) {
			found = append(found, parent)
		}
	})
	return found
}

func walkKeys(t reflect.Type, path string, visit func(parent, name string)) {
	switch t.Kind() {
	case reflect.Pointer:
		walkKeys(t.Elem(), path, visit)
	case reflect.Slice:
		walkKeys(t.Elem(), path+"[]", visit)
	case reflect.Map:
		walkKeys(t.Elem(), path+"[NAME]", visit)
	case reflect.Struct:
		if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return
		}
		fields := map[string]reflect.Value{}
		var names []string
		collectFields(reflect.New(t).Elem(), fields, &names)
		for _, name := range names {
			visit(path, name)
			walkKeys(fields[name].Type(), join(path, name), visit)
		}
	}
}

func collectFields(value reflect.Value, fields map[string]reflect.Value, known *[]string) {
	for i := range value.NumField() {
		tag, options, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if tag == "" && (value.Type().Field(i).Anonymous || strings.Contains(options, "inline")) {
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
		path := field + "[" + strconv.Itoa(i) + "]"
		if item.Tag == "!!null" {
			// An empty rule, such as from a template, would select everything.
			d.add(item.Line, path, "this entry is empty", "fill it in, or remove it")
			continue
		}
		d.fill(item, list.Index(i), path)
	}
	into.Set(list)
}

// fillTexts reads a text or a list of texts.
func (d *decoder) fillTexts(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.ScalarNode {
		d.fillList(node, into, field)
		return
	}
	one := reflect.MakeSlice(into.Type(), 1, 1)
	d.fill(node, one.Index(0), field)
	into.Set(one)
}

func (d *decoder) fillMap(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.add(node.Line, field, "want keys and values, got "+describe(node), "")
		return
	}
	at := func(key string) string { return field + "[" + key + "]" }
	entries := reflect.MakeMap(into.Type())
	d.eachKey(node, func(key, value *yaml.Node) {
		path := at(key.Value)
		switch {
		case value.Tag == "!!null" && d.nullKeys:
			return
		case value.Tag == "!!null":
			d.add(key.Line, path, "this key has no value", "fill it in, or remove it")
			return
		}
		entry := reflect.New(into.Type().Elem()).Elem()
		d.fill(value, entry, path)
		d.lines[path] = key.Line
		entries.SetMapIndex(reflect.ValueOf(key.Value).Convert(into.Type().Key()), entry)
	}, at)
	into.Set(entries)
}

// fillLeaf goes through JSON, so that a type has one set of rules for both formats.
func (d *decoder) fillLeaf(node *yaml.Node, into reflect.Value, field string) {
	value, err := plain(node)
	if err != nil {
		d.add(node.Line, field, err.Error(), "")
		return
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, into.Addr().Interface())
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case err != nil && into.Type() == reflect.TypeFor[metav1.Duration]():
		d.add(node.Line, field, "want a duration, got "+describe(node), "write a number with its unit, such as 5s or 2m")
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
	case reflect.Uint64:
		return "a whole number from 0"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	}
	return "a value of type " + t.Name()
}
