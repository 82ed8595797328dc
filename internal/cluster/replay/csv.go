package replay

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// inputError is what is wrong in a file.
type inputError struct {
	File string
	// Line begins with 1. Column is the name of the column; empty when the whole line is meant.
	Line   int
	Column string
	Value  string
	// Want is what is allowed.
	Want string
}

func (e *inputError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("%s:%d: %s; want %s", e.File, e.Line, e.Value, e.Want)
	}
	return fmt.Sprintf("%s:%d: column %s: %s; want %s", e.File, e.Line, e.Column, e.Value, e.Want)
}

var (
	nodeColumns = [...]string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}
	podColumns  = [...]string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}
)

// ReadNodes reads a node list: sn, cpu_milli, memory_mib, gpu, model. Other columns are ignored. The file is named in errors.
func ReadNodes(file string, in io.Reader) ([]fleet.Node, error) {
	t, err := newTable(file, in, nodeColumns[:])
	if err != nil {
		return nil, err
	}
	var nodes []fleet.Node
	lines := map[string]int{}
	gpus := 0
	for t.next() {
		name := t.text("sn")
		if first, double := lines[name]; double || name == "" {
			want := "a name"
			if double {
				want = fmt.Sprintf("each name once, and line %d has it", first)
			}
			return nil, t.wrong("sn", want)
		}
		lines[name] = t.line
		n := fleet.Empty(name, t.text("model"), t.number("cpu_milli", fleet.MaxAmount), t.number("memory_mib", fleet.MaxAmount), int(t.number("gpu", fleet.MaxGPUs)))
		gpus += len(n.GPUs)
		nodes = append(nodes, n)
	}
	switch {
	case t.err != nil:
		return nil, t.err
	case gpus == 0:
		return nil, &inputError{file, t.line, "gpu", fmt.Sprintf("%d nodes without a GPU", len(nodes)), "at least one GPU"}
	}
	return nodes, nil
}

// ReadPods reads a pod list: name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU, in thousandths), and gpu_spec (the
// models that the pod accepts, separated by |), which may be missing. Other columns are ignored.
func ReadPods(file string, in io.Reader) ([]fleet.Shape, error) {
	t, err := newTable(file, in, podColumns[:])
	if err != nil {
		return nil, err
	}
	var pods []fleet.Shape
	for t.next() {
		s := fleet.Shape{
			CPU: t.number("cpu_milli", fleet.MaxAmount), Memory: t.number("memory_mib", fleet.MaxAmount),
			GPUs: int32(t.number("num_gpu", fleet.MaxGPUs)), Share: int32(t.number("gpu_milli", fleet.Whole)), Models: fleet.ParseModels(t.text("gpu_spec")),
		}
		switch {
		case t.err != nil:
		case s.GPUs == 0 && s.Share > 0:
			return nil, t.wrong("gpu_milli", "0, since num_gpu is 0")
		case s.GPUs > 0 && s.Share == 0:
			return nil, t.wrong("gpu_milli", fmt.Sprintf("1 to %d, since num_gpu is %d", fleet.Whole, s.GPUs))
		}
		pods = append(pods, s)
	}
	switch {
	case t.err != nil:
		return nil, t.err
	case len(pods) == 0:
		return nil, &inputError{file, t.line, "", "no pods", "at least one line below the header"}
	}
	return pods, nil
}

// table reads a file with a header. The first error is kept and ends it.
type table struct {
	file    string
	reader  *csv.Reader
	columns map[string]int
	record  []string
	line    int
	err     error
}

func newTable(file string, in io.Reader, want []string) (*table, error) {
	t := &table{file: file, reader: csv.NewReader(in), columns: map[string]int{}}
	t.reader.FieldsPerRecord, t.reader.ReuseRecord, t.line = -1, true, 1
	header, err := t.reader.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, &inputError{file, 1, "", "an empty file", "the columns " + strings.Join(want, ",")}
	case err != nil:
		return nil, t.broken(err)
	}
	for i, name := range header {
		if i == 0 {
			name = strings.TrimPrefix(name, "\ufeff")
		}
		name = strings.TrimSpace(name)
		if _, double := t.columns[name]; double {
			return nil, &inputError{file, 1, name, "given twice", "each column once"}
		}
		t.columns[name] = i
	}
	for _, name := range want {
		if _, ok := t.columns[name]; !ok {
			return nil, &inputError{file, 1, name, fmt.Sprintf("missing in the header %q", strings.Join(header, ",")), "the columns " + strings.Join(want, ",")}
		}
	}
	return t, nil
}

// broken describes an error of the CSV format, or of the file.
func (t *table) broken(err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return &inputError{t.file, parse.Line, "", parse.Err.Error(), "comma-separated values"}
	}
	return fmt.Errorf("read %s: %w", t.file, err)
}

// next goes to the next line. It returns false at the end and after an error.
func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	record, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		t.err = t.broken(err)
		return false
	}
	t.record = record
	t.line, _ = t.reader.FieldPos(0)
	if len(record) != len(t.columns) {
		t.err = &inputError{t.file, t.line, "", fmt.Sprintf("%d fields", len(record)), fmt.Sprintf("%d, as in the header", len(t.columns))}
		return false
	}
	return true
}

// text returns a field; that of a column that is missing is empty.
func (t *table) text(column string) string {
	i, ok := t.columns[column]
	if !ok {
		return ""
	}
	return strings.Clone(strings.TrimSpace(t.record[i]))
}

// number returns a field as a number from 0 to most.
func (t *table) number(column string, most int64) int64 {
	n, err := strconv.ParseInt(t.text(column), 10, 64)
	if (err != nil || n < 0 || n > most) && t.err == nil {
		t.err = t.wrong(column, fmt.Sprintf("a whole number from 0 to %d", most))
	}
	return n
}

// decimal returns a field as a number with a fraction, from 0 to most.
func (t *table) decimal(column string, most float64) float64 {
	n, err := strconv.ParseFloat(t.text(column), 64)
	if (err != nil || !(n >= 0 && n <= most)) && t.err == nil {
		t.err = t.wrong(column, fmt.Sprintf("a number from 0 to %v", most))
	}
	return n
}

func (t *table) wrong(column, want string) error {
	return &inputError{t.file, t.line, column, strconv.Quote(t.text(column)), want}
}

// Published are the published results of a policy on a trace: allocated GPUs in per cent of the capacity, over ten seeds.
type Published struct {
	Trace  string
	Policy string
	At100  Spread
	At130  Spread
}

// Spread are the mean and the smallest and largest value.
type Spread struct {
	Mean float64
	Min  float64
	Max  float64
}

// ReadPublished reads a list of published results: trace, policy, and mean, min and max of at100 and at130.
func ReadPublished(file string, in io.Reader) ([]Published, error) {
	columns := []string{"trace", "policy", "at100_mean", "at100_min", "at100_max", "at130_mean", "at130_min", "at130_max"}
	t, err := newTable(file, in, columns)
	if err != nil {
		return nil, err
	}
	var list []Published
	spread := func(of string) Spread {
		return Spread{t.decimal(of+"_mean", 100), t.decimal(of+"_min", 100), t.decimal(of+"_max", 100)}
	}
	for t.next() {
		list = append(list, Published{t.text("trace"), t.text("policy"), spread("at100"), spread("at130")})
	}
	return list, t.err
}

// OfTrace returns the published results about the trace that a pod list is named after: openb_pod_list_default.csv is the
// trace "default".
func OfTrace(list []Published, podFile string) []Published {
	name := strings.TrimSuffix(podFile[strings.LastIndexAny(podFile, `/\`)+1:], ".csv")
	trace, ok := strings.CutPrefix(name, "openb_pod_list_")
	if !ok {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(p Published) bool { return p.Trace != trace })
}
