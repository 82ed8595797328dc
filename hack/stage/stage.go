// Package stage reads the output of `go test -json` for one stage of a script: it prints what failed, counts what ran, and makes it an
// error when a package ran no test that the pattern names. `go test` itself passes when a -run pattern matches nothing.
package stage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/safetext"
)

// Options define what a stage must have run.
type Options struct {
	// Pattern is the -run pattern; one of the form A/B asks for subtests of A. Without one a package may run no test.
	Pattern string
	// Verbose prints the output of the tests as it arrives.
	Verbose bool
}

// Summary is what ran in a stage.
type Summary struct {
	Packages int
	Tests    int // top-level tests of which something ran
	Subtests int // tests below them that have no further ones
	Skipped  int // top-level tests of which nothing ran
	Walks    int // random walks: rapid's checks, and what tests report as "[walks] N"
	// Failures name what failed, with the last lines of it: at most maxFailures tests.
	Failures []string
}

const (
	maxFailures  = 5
	maxLastLines = 2
	maxLineBytes = 300
)

func (s Summary) String() string {
	text := fmt.Sprintf("%d packages, %d tests", s.Packages, s.Tests)
	if s.Subtests > 0 {
		text += fmt.Sprintf(" with %d subtests", s.Subtests)
	}
	if s.Walks > 0 {
		text += fmt.Sprintf(", %d random walks", s.Walks)
	}
	if s.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", s.Skipped)
	}
	return text
}

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	Test       string
	Output     string
	ImportPath string
}

// result is the result of one test.
type result struct {
	action   string
	output   []string
	parent   bool // it has subtests
	failures bool // one of them failed
}

type reader struct {
	options  Options
	out      io.Writer
	packages map[string]map[string]*result // by package and test
	order    []string
	loose    map[string][]string // output of a package that belongs to no test
	failed   bool
	failures []failure
	walks    int
}

// failure is a test or a package that failed.
type failure struct {
	name string
	last []string // what it said last
}

// Read reads the events of a stage from in, prints to out, and returns what ran. The error
// says which packages ran no test, or that tests failed.
func Read(in io.Reader, out io.Writer, options Options) (Summary, error) {
	r := &reader{options: options, out: out, packages: map[string]map[string]*result{}, loose: map[string][]string{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Summary{}, fmt.Errorf("read output of go test: %w", err)
		}
	}
	return r.summary()
}

func (r *reader) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		r.out.Write(line) // what go itself says
		return
	}
	if e.Action == "build-output" {
		io.WriteString(r.out, e.Output)
		return
	}
	if e.Action == "build-fail" {
		r.failed = true
	}
	if e.Package == "" {
		return
	}
	tests, known := r.packages[e.Package]
	if !known {
		tests = map[string]*result{}
		r.packages[e.Package] = tests
		r.order = append(r.order, e.Package)
	}
	if e.Action == "output" && r.options.Verbose {
		io.WriteString(r.out, e.Output)
	}
	if e.Test == "" {
		r.endOfPackage(e)
		return
	}
	test := tests[e.Test]
	if test == nil {
		test = &result{}
		tests[e.Test] = test
		if i := strings.LastIndex(e.Test, "/"); i > 0 {
			if above := tests[e.Test[:i]]; above != nil {
				above.parent = true
			}
		}
	}
	switch e.Action {
	case "output":
		r.walks += walksIn(e.Output)
		test.output = append(test.output, e.Output)
	case "pass", "skip":
		test.action, test.output = e.Action, nil
	case "fail":
		test.action = e.Action
		r.failTest(e, test)
	}
}

// failTest reports a test that failed, by name unless one of its subtests did.
func (r *reader) failTest(e event, test *result) {
	r.fail(test.output)
	if i := strings.LastIndex(e.Test, "/"); i > 0 {
		if above := r.packages[e.Package][e.Test[:i]]; above != nil {
			above.failures = true
		}
	}
	if !test.failures {
		r.name(e.Package+" "+e.Test, test.output)
	}
}

func (r *reader) endOfPackage(e event) {
	switch e.Action {
	case "output":
		r.loose[e.Package] = append(r.loose[e.Package], e.Output)
	case "fail":
		// Tests that have not ended when their program ended have the reason in their output.
		for _, name := range sorted(r.packages[e.Package]) {
			if test := r.packages[e.Package][name]; test.action == "" {
				r.fail(test.output)
				r.name(e.Package+" "+name+" did not end", test.output)
			}
		}
		if !r.failedIn(e.Package) {
			r.name(e.Package, r.loose[e.Package])
		}
		r.fail(r.loose[e.Package])
	}
}

func (r *reader) fail(output []string) {
	r.failed = true
	if !r.options.Verbose {
		io.WriteString(r.out, strings.Join(output, ""))
	}
}

// saidLine is a line that a test prints by its own, but for the logs of programs that it prints when it has failed.
var saidLine = regexp.MustCompile(`^\s+(\w+_test\.go:\d+: .*)`)

// name adds what failed, with its last lines.
func (r *reader) name(name string, output []string) {
	var last []string
	for _, line := range output {
		if match := saidLine.FindStringSubmatch(line); match != nil && !strings.Contains(match[1], ": the end of ") {
			last = append(last, match[1])
		}
	}
	if len(last) == 0 {
		last = output
	}
	r.failures = append(r.failures, failure{name: name, last: last[max(0, len(last)-maxLastLines):]})
}

func (r *reader) failedIn(name string) bool {
	return slices.ContainsFunc(r.failures, func(f failure) bool { return strings.HasPrefix(f.name, name+" ") })
}

// failureLines are the lines of the first failures.
func (r *reader) failureLines() []string {
	var lines []string
	for _, f := range r.failures[:min(maxFailures, len(r.failures))] {
		lines = append(lines, f.name)
		for _, line := range f.last {
			lines = append(lines, "    "+safetext.First(strings.TrimSpace(line), maxLineBytes))
		}
	}
	if more := len(r.failures) - maxFailures; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// walkLines are the lines in which tests report the number of random walks.
var walkLines = regexp.MustCompile(`\[rapid\] OK, passed (\d+) tests|\[walks\] (\d+)`)

func walksIn(output string) int {
	match := walkLines.FindStringSubmatch(output)
	if match == nil {
		return 0
	}
	n, _ := strconv.Atoi(match[1] + match[2])
	return n
}

func (r *reader) summary() (Summary, error) {
	s := Summary{Packages: len(r.order), Walks: r.walks, Failures: r.failureLines()}
	var empty []string
	for _, name := range r.order {
		before := s.Tests
		s.count(r.packages[name], depth(r.options.Pattern))
		if s.Tests == before {
			empty = append(empty, name)
		}
	}
	switch {
	case r.failed:
		return s, errors.New("tests failed")
	case len(r.order) == 0:
		return s, errors.New("no package was tested: go test wrote no event")
	case len(empty) > 0 && r.options.Pattern != "":
		slices.Sort(empty)
		return s, fmt.Errorf("no test ran in %s: the pattern %q matches none there, or all were skipped; correct the pattern or leave the package out", strings.Join(empty, ", "), r.options.Pattern)
	}
	return s, nil
}

// count adds the tests of one package. A test counts as run when one of its leaves, as deep
// as the pattern asks for, was not skipped.
func (s *Summary) count(tests map[string]*result, depth int) {
	ran := map[string]bool{}
	for name, test := range tests {
		top, _, below := strings.Cut(name, "/")
		if _, ok := ran[top]; !ok {
			ran[top] = false
		}
		if test.parent || test.action == "skip" || test.action == "" || strings.Count(name, "/")+1 < depth {
			continue
		}
		ran[top] = true
		if below {
			s.Subtests++
		}
	}
	for _, did := range ran {
		if did {
			s.Tests++
		} else {
			s.Skipped++
		}
	}
}

// depth is how many levels of tests the least demanding alternative of a pattern names.
func depth(pattern string) int {
	least := 0
	for alternative := range strings.SplitSeq(pattern, "|") {
		if n := strings.Count(alternative, "/") + 1; least == 0 || n < least {
			least = n
		}
	}
	return least
}

func sorted(tests map[string]*result) []string {
	names := make([]string, 0, len(tests))
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
