package counterlist

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The codes of the problems.
const (
	codeInvalid = "DCGM_COUNTERS_INVALID"
	codeNoValue = "DCGM_FIELD_UNAVAILABLE"
)

// maxMistakes bounds a message, which is written to the node's object.
const maxMistakes = 10

// List is what is exported, and what cannot be.
type List struct {
	// Fields are in the order of the page.
	Fields []dcgm.Export
	// Optional are the measures that are read only for these fields.
	Optional []gpu.Measure
	Problems []gpu.Cause
}

// Read returns the fields that a configuration wants. An entry of dcgmCounters precedes that of the file for the same field.
func Read(config *v1alpha1.AgentConfig) List {
	var list List
	if config.DCGMNames {
		list.Fields = dcgm.Defaults()
	}
	var refused []dcgm.Refusal
	add := func(source, text string) {
		entries, mistakes := dcgm.Parse(text)
		list.invalid(source, mistakes)
		fields, without := dcgm.Select(list.Fields, entries)
		list.Fields, refused = fields, append(refused, without...)
	}
	if path := config.DCGMCountersFile; path != "" {
		text, err := readFile(path)
		if err != nil {
			list.Problems = append(list.Problems, gpu.Cause{Code: codeInvalid, Message: err.Error()})
		}
		add(path, text)
	}
	add("dcgmCounters", string(config.DCGMCounters))
	list.withoutValue(refused)
	list.Optional = dcgm.Optional(list.Fields)
	return list
}

// readFile returns the beginning of a file: Parse reports what is too long.
func readFile(path string) (string, error) {
	fix := "; the path is dcgmCountersFile (--dcgm-counters-file), as the agent sees it"
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read list of counters: %w%s", err, fix)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, dcgm.MaxBytes+1))
	if err != nil {
		return "", fmt.Errorf("read list of counters: %w%s", err, fix)
	}
	return string(text), nil
}

// invalid adds one problem with the lines of a list that cannot be read.
func (l *List) invalid(source string, mistakes []dcgm.Mistake) {
	if len(mistakes) == 0 {
		return
	}
	var lines []string
	for _, m := range mistakes[:min(len(mistakes), maxMistakes)] {
		lines = append(lines, m.String())
	}
	if more := len(mistakes) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	l.Problems = append(l.Problems, gpu.Cause{Code: codeInvalid, Message: source + ": " + strings.Join(lines, "; ")})
}

// Unanswered returns the problems of listed fields of which no GPU of the node has a value.
func Unanswered(fields []dcgm.Export) []gpu.Cause {
	var refused []dcgm.Refusal
	for i := range fields {
		refused = append(refused, dcgm.Refusal{Name: fields[i].Name, Reason: "no GPU of the node has it; it is read by " + fields[i].Source})
	}
	var list List
	list.withoutValue(refused)
	return list.Problems
}

// withoutValue adds one problem for each reason, with all its fields.
func (l *List) withoutValue(refused []dcgm.Refusal) {
	var reasons []string
	names := map[string][]string{}
	for _, r := range refused {
		if names[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		names[r.Reason] = append(names[r.Reason], r.Name)
	}
	for _, reason := range reasons {
		l.Problems = append(l.Problems, gpu.Cause{Code: codeNoValue, Message: strings.Join(names[reason], ", ") + ": " + reason})
	}
}
