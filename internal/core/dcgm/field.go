package dcgm

import (
	"math"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// Field is a field of DCGM, or one that dcgm-exporter makes itself.
type Field struct {
	Name string
	// Type is the usual type; a list can name another.
	Type Type
	// Help is what the value is, with the unit in brackets at its end.
	Help string
	// Default is true for the fields that are exported without a list: those that are active in dcgm-exporter's own lists.
	Default bool
	// Source is where the value comes from: calls of NVML, with a condition where not every GPU answers them.
	Source string
	// Of computes the value from readings. It is nil for a field with a Reason, and for those that count XIDs.
	Of func(*gpu.Readings) (float64, bool)
	// Measures are those that Of reads.
	Measures []gpu.Measure
	// MIG is true when a GPU instance has its own value.
	MIG bool
	// Adds is true for a field of memory in whole MiB, of one measure: the values of the instances, or of the holders, of a GPU add up
	// to the GPU's.
	Adds bool
	// Reason says why there is no value; empty for a field that has one.
	Reason string
}

// Export is a field as it is exported.
type Export struct {
	Field
	// Listed is true for a field that a list names, by which its type and its help are replaced.
	Listed bool
}

// Refusal is a field of a list that has no value.
type Refusal struct {
	Name   string
	Reason string
}

// Defaults returns the fields that are exported without a list.
func Defaults() []Export {
	var exports []Export
	for _, f := range Fields() {
		if f.Default {
			exports = append(exports, Export{Field: f})
		}
	}
	return exports
}

// Select adds the fields of a list to others, with the type and the help of the list, and returns those that have no value with the
// reason. The others keep their places.
func Select(exports []Export, list []Entry) ([]Export, []Refusal) {
	exports = slices.Clone(exports)
	var refused []Refusal
	known := map[string]Field{}
	for _, f := range Fields() {
		known[f.Name] = f
	}
	for _, entry := range list {
		field, reason := match(known, entry)
		switch {
		case reason != "":
			refused = append(refused, Refusal{entry.Name, reason})
			continue
		case field.Type == Label:
			continue // All series have the labels that there are.
		}
		field.Type, field.Help = entry.Type, entry.Help
		if at := slices.IndexFunc(exports, func(e Export) bool { return e.Name == entry.Name }); at >= 0 {
			exports[at] = Export{Field: field, Listed: true}
		} else {
			exports = append(exports, Export{Field: field, Listed: true})
		}
	}
	return exports, refused
}

// match returns the field of an entry, or why it has no value.
func match(known map[string]Field, entry Entry) (Field, string) {
	field, ok := known[entry.Name]
	switch {
	case !ok:
		return Field{}, unknown(entry.Name)
	case field.Reason != "":
		return Field{}, field.Reason
	case entry.Type == Label && field.Type != Label:
		return Field{}, "a label whose value changes makes new series at each change; list it as gauge or counter"
	case entry.Type != Label && field.Type == Label:
		return Field{}, "it is a text; list it as label"
	}
	return field, ""
}

// unknown is the reason for a name that is no field of the table: a misspelled one, or one that is not measured here.
func unknown(name string) string {
	var names []string
	for _, f := range Fields() {
		names = append(names, f.Name)
	}
	const digits = "0123456789" // another number is another link or engine
	near := spelling.Nearest(name, names)
	if near != "" && spelling.Distance(name, near) <= 2 && strings.TrimRight(name, digits) != strings.TrimRight(near, digits) {
		return "there is no field of this name; did you mean " + near + "?"
	}
	for _, family := range Families() {
		if strings.HasPrefix(name, family.Prefix) {
			return family.Reason
		}
	}
	return "Berth does not measure it; docs/metrics.md lists the fields that it has"
}

// Optional returns the measures of exported fields that are read only where they are asked for, in ascending order.
func Optional(exports []Export) []gpu.Measure {
	var list []gpu.Measure
	for _, e := range exports {
		for _, m := range e.Measures {
			if m.Optional() {
				list = append(list, m)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// scaled is a field that is a measure in another unit.
func (f Field) scaled(m gpu.Measure, scale float64) Field {
	f.Measures = []gpu.Measure{m}
	f.Of = func(r *gpu.Readings) (float64, bool) {
		value, ok := r.Get(m)
		return value * scale, ok
	}
	return f
}

// whole is scaled to a whole number, as NVML reported it.
func (f Field) whole(m gpu.Measure, scale float64) Field {
	f.Measures = []gpu.Measure{m}
	f.Of = func(r *gpu.Readings) (float64, bool) {
		value, ok := r.Get(m)
		return math.Round(value * scale), ok
	}
	return f
}

// as is a field that is a measure as it is.
func (f Field) as(m gpu.Measure) Field { return f.scaled(m, 1) }

// sum is the sum of two measures in another unit, as a whole number.
func (f Field) sum(a, b gpu.Measure, scale float64) Field {
	f.Measures = []gpu.Measure{a, b}
	f.Of = func(r *gpu.Readings) (float64, bool) {
		one, ok1 := r.Get(a)
		other, ok2 := r.Get(b)
		return math.Round((one + other) * scale), ok1 && ok2
	}
	return f
}

// ofInstances is a field of which a GPU instance has its own value.
func (f Field) ofInstances() Field { f.MIG = true; return f }

// divided is a field whose values for parts of a GPU add up.
func (f Field) divided() Field { f.MIG, f.Adds = true, true; return f }
