package metrics

import (
	"math"
	"strconv"
	"strings"
)

// text builds a page in Prometheus' text format. All series of one name are together, below its head.
type text struct {
	out []byte
	// head is written before the first series of a name, so that a name without series is not on the page.
	head []byte
	// catalogue gets each metric, with series or without, unless it is nil.
	catalogue []Metric
}

type kind string

const (
	gauge   kind = "gauge"
	counter kind = "counter"
)

// name begins a metric, whose series are written next. The labels are the names of all that a series can have.
func (t *text) name(name string, k kind, help string, labels ...string) {
	if t.catalogue != nil {
		t.catalogue = append(t.catalogue, Metric{Name: name, Kind: string(k), Help: help, Labels: labels})
	}
	t.head = append(t.head[:0], "# HELP "...)
	t.head = append(t.head, name...)
	t.head = append(t.head, ' ')
	t.head = append(t.head, help...)
	t.head = append(t.head, "\n# TYPE "...)
	t.head = append(t.head, name...)
	t.head = append(t.head, ' ')
	t.head = append(t.head, k...)
	t.head = append(t.head, '\n')
}

// series writes one value; each of the label texts is made by labels, and empty ones are left out.
func (t *text) series(name string, value float64, labels ...string) {
	t.out = append(t.out, t.head...)
	t.head = t.head[:0]
	t.out = append(t.out, name...)
	open := byte('{')
	for _, some := range labels {
		if some != "" {
			t.out = append(t.out, open)
			t.out = append(t.out, some...)
			open = ','
		}
	}
	if open == ',' {
		t.out = append(t.out, '}')
	}
	t.out = append(t.out, ' ')
	t.out = appendNumber(t.out, value)
	t.out = append(t.out, '\n')
}

// appendNumber writes whole numbers in full, since people read counters too.
func appendNumber(out []byte, value float64) []byte {
	if value == math.Trunc(value) && math.Abs(value) < 1<<53 {
		return strconv.AppendInt(out, int64(value), 10)
	}
	return strconv.AppendFloat(out, value, 'g', -1, 64)
}

// labels returns the text of labels from alternating names and values.
func labels(pairs ...string) string {
	size := 0
	for _, one := range pairs {
		size += len(one) + 3
	}
	var out strings.Builder
	out.Grow(size)
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(pairs[i])
		out.WriteString(`="`)
		escape(&out, pairs[i+1])
		out.WriteByte('"')
	}
	return out.String()
}

func escape(out *strings.Builder, value string) {
	if !strings.ContainsAny(value, "\\\"\n") {
		out.WriteString(strings.ToValidUTF8(value, "\uFFFD"))
		return
	}
	for _, c := range value {
		switch c {
		case '\\':
			out.WriteString(`\\`)
		case '"':
			out.WriteString(`\"`)
		case '\n':
			out.WriteString(`\n`)
		default:
			out.WriteRune(c)
		}
	}
}
