package validate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/bound"
)

// Library is a loaded libcuda.so.1. Errors name the call and its result; one with a method Result() int has the CUresult.
type Library interface {
	// File is the file that was loaded.
	File() string
	// Calling names the call that has not returned yet; it may be called at any time.
	Calling() string
	Init() error
	// Count is the number of devices, Device the UUID and the name of one.
	Count() (int, error)
	Device(index int) (uuid, name string, err error)
	// Add adds two vectors on a device.
	Add(index int, a, b []uint32) ([]uint32, error)
}

// Files are the files of the container and of its kernel's driver. Names are absolute, such as /dev/nvidia0.
type Files interface {
	// Names lists a folder; a folder that does not exist is empty.
	Names(folder string) ([]string, error)
	Read(name string) (string, error)
	// Open opens a device node, and closes it again.
	Open(name string) error
	// OpenOther makes a device node with the major number of a device node and another minor number, opens it, and removes it. made
	// is false when it may not be made; then err says why.
	OpenOther(like string, minor int) (made bool, err error)
	// Target is the file that symbolic links lead to.
	Target(name string) (string, error)
}

// Deps are the dependencies of a validation.
type Deps struct {
	Files Files
	// Load loads the library.
	Load func() (Library, error)
}

// Options are what is validated.
type Options struct {
	// Expect is the number of GPUs or MIG devices that the container requested. Replicas of one GPU count once.
	Expect int
	// Resource is the name under which they were requested; it is only repeated in the result.
	Resource string
	// Timeout limits the validation as a whole.
	Timeout time.Duration
}

// The problems that the steps find.
const (
	codeNodes   = "VALIDATE_NODES"
	codeForeign = "VALIDATE_FOREIGN"
	codeLibrary = "VALIDATE_LIBRARY"
	codeVersion = "VALIDATE_VERSION"
	codeInit    = "VALIDATE_CUDA_INIT"
	codeCount   = "VALIDATE_COUNT"
	codeCompute = "VALIDATE_COMPUTE"
)

// How long the steps may take. Starting a driver without the persistence mode takes seconds per GPU.
const (
	fileLimit    = 5 * time.Second
	loadLimit    = 5 * time.Second
	initLimit    = 20 * time.Second
	computeLimit = 20 * time.Second
)

// found is what the steps have found so far.
type found struct {
	nodes   nodes
	library Library
	driver  string
	devices []device
}

type device struct {
	index int
	uuid  string
	name  string
}

func (d *device) String() string { return fmt.Sprintf("device %d (%s, %s)", d.index, d.uuid, d.name) }

// step is one step. run gets what was found before, and returns it with its own findings and its evidence.
type step struct {
	name  string
	code  string
	limit time.Duration
	run   func(*run, found) (found, string, error)
}

func steps() []step {
	return []step{
		{name: "device nodes", code: codeNodes, limit: fileLimit, run: (*run).findNodes},
		{name: "foreign devices", code: codeForeign, limit: fileLimit, run: (*run).findForeign},
		{name: "library", code: codeLibrary, limit: loadLimit, run: (*run).load},
		{name: "version", code: codeVersion, limit: fileLimit, run: (*run).compareVersions},
		{name: "cuInit", code: codeInit, limit: initLimit, run: (*run).initCUDA},
		{name: "device count", code: codeCount, limit: initLimit, run: (*run).count},
		{name: "compute", code: codeCompute, limit: computeLimit, run: (*run).compute},
	}
}

// run is a validation.
type run struct {
	Deps
	Options
	// device is the device that is in use, for the message about a call that hangs.
	device atomic.Pointer[string]
}

// coded is an error with a code other than that of its step.
type coded struct {
	code string
	error
}

// answer is what a step returns.
type answer struct {
	found    found
	evidence string
}

// Run takes the steps until one fails or ctx ends, in at most options.Timeout. A call that hangs keeps its goroutine.
func Run(ctx context.Context, deps Deps, options Options) *v1alpha1.ValidationResult {
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	result := &v1alpha1.ValidationResult{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.ValidationAPIVersion, Kind: v1alpha1.KindValidationResult},
		Resource: options.Resource, Expect: options.Expect, Passed: true,
	}
	r, known := &run{Deps: deps, Options: options}, found{}
	for _, s := range steps() {
		taken := v1alpha1.ValidationStep{Name: s.name, Outcome: v1alpha1.ValidationNotRun}
		if result.Passed {
			started := time.Now()
			got, err := r.take(ctx, &s, known)
			taken.Milliseconds = time.Since(started).Milliseconds()
			known = got.found
			taken.Outcome, taken.Evidence = v1alpha1.ValidationPassed, got.evidence
			if err != nil {
				taken.Outcome, taken.Evidence = v1alpha1.ValidationFailed, ""
				result.Passed, result.Code, result.Step, result.Evidence = false, codeOf(err, s.code), s.name, err.Error()
			}
		}
		result.Steps = append(result.Steps, taken)
	}
	result.DriverVersion = known.driver
	for _, d := range known.devices {
		result.Devices = append(result.Devices, d.uuid)
	}
	slices.Sort(result.Devices)
	return result
}

// take takes a step within its limit.
func (r *run) take(ctx context.Context, s *step, known found) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	started := time.Now()
	call := bound.Start(func() (answer, error) {
		got, evidence, err := s.run(r, known)
		return answer{got, evidence}, err
	})
	if call.Wait(ctx) {
		return call.Result()
	}
	what := s.name
	if known.library != nil {
		what = cmp.Or(known.library.Calling(), what)
	}
	if device := r.device.Load(); device != nil {
		what += " of " + *device
	}
	return answer{found: known}, fmt.Errorf("%s has not returned after %s", what, time.Since(started).Round(time.Millisecond))
}

// codeOf returns the code of an error, or that of its step.
func codeOf(err error, code string) string {
	if own, ok := errors.AsType[*coded](err); ok {
		return own.code
	}
	return code
}

// Error returns the result as an error, or nil when all steps passed.
func Error(result *v1alpha1.ValidationResult) error {
	if result.Passed {
		return nil
	}
	return fmt.Errorf("%s: %s: %s", result.Code, result.Step, result.Evidence)
}

// join joins errors in one line; nil when there is none.
func join(list []error) error {
	if len(list) == 0 {
		return nil
	}
	format, args := strings.Repeat("; %w", len(list))[2:], make([]any, len(list))
	for i, err := range list {
		args[i] = err
	}
	return fmt.Errorf(format, args...)
}

// mostNames is how many names a message lists.
const mostNames = 8
