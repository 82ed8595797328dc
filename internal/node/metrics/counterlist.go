package metrics

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// The codes of the problems.
const (
	codeCountersInvalid  = "DCGM_COUNTERS_INVALID"
	codeFieldUnavailable = "DCGM_FIELD_UNAVAILABLE"
)

// maxMistakes bounds a message, which is written to the node's object.
const maxMistakes = 10

// CounterList is what is exported, and what cannot be.
type CounterList struct {
	// Fields are in the order of the page.
	Fields []dcgm.Export
	// Optional are the measures that are read only for these fields.
	Optional []gpu.Measure
	Problems []gpu.Cause
}

// ReadCounterList returns the fields that a configuration wants. An entry of dcgmCounters precedes that of the file for the same field.
func ReadCounterList(config *v1alpha1.AgentConfig) CounterList {
	var list CounterList
	if config.DCGMNames {
		list.Fields = dcgm.Defaults()
	}
	var refused []dcgm.Refusal
	add := func(source, text string) (lines int) {
		entries, mistakes := dcgm.Parse(text)
		list.invalid(source, mistakes)
		fields, without := dcgm.Select(list.Fields, entries)
		list.Fields, refused = fields, append(refused, without...)
		return len(entries) + len(mistakes)
	}
	if path := config.DCGMCountersFile; path != "" {
		text, err := hostconfig.ReadFile(path)
		if lines := add(path, string(text)); err == nil && lines == 0 {
			err = fmt.Errorf("%s lists no field", path)
		}
		if err != nil {
			list.Problems = append(list.Problems, gpu.Cause{Code: codeCountersInvalid, Message: fmt.Sprintf("read list of counters: %v; the path is dcgmCountersFile (--dcgm-counters-file), as the agent sees it", err)})
		}
	}
	add("dcgmCounters", string(config.DCGMCounters))
	list.withoutValue(refused)
	list.Optional = dcgm.Optional(list.Fields)
	return list
}

// invalid adds one problem with the lines of a list that cannot be read.
func (l *CounterList) invalid(source string, mistakes []dcgm.Mistake) {
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
	l.Problems = append(l.Problems, gpu.Cause{Code: codeCountersInvalid, Message: source + ": " + strings.Join(lines, "; ")})
}

// UnansweredProblems returns the problems of listed fields of which no GPU of the node has a value.
func UnansweredProblems(fields []dcgm.Export) []gpu.Cause {
	var refused []dcgm.Refusal
	for i := range fields {
		refused = append(refused, dcgm.Refusal{Name: fields[i].Name, Reason: "no GPU of the node has it; it is read by " + fields[i].Source})
	}
	var list CounterList
	list.withoutValue(refused)
	return list.Problems
}

// withoutValue adds one problem for each reason, with all its fields.
func (l *CounterList) withoutValue(refused []dcgm.Refusal) {
	var reasons []string
	names := map[string][]string{}
	for _, r := range refused {
		if names[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		names[r.Reason] = append(names[r.Reason], r.Name)
	}
	for _, reason := range reasons {
		l.Problems = append(l.Problems, gpu.Cause{Code: codeFieldUnavailable, Message: strings.Join(names[reason], ", ") + ": " + reason})
	}
}
