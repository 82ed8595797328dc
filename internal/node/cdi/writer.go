package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/hardware/hostpath"
	"k8s.io/utils/clock"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Why there is nothing to write. An existing spec stays in place.
var (
	errNoDriver  = errors.New("no NVIDIA driver answers on this node")
	errNoDevices = errors.New("no GPU of this node has a device node")
)

// Roots are paths as this process sees them.
type Roots struct {
	// Driver is where the driver is installed: "/" on a plain host,
	// "/run/nvidia/driver" for a driver container, DIR/root for simulated hardware.
	// Paths in a container are relative to it.
	Driver string
	// Dev is the root of /dev/nvidia* for nodes whose HostPath the inventory does not
	// give; Driver when empty.
	Dev string
	// Host is where this process sees the host's "/", such as "/host" in a
	// DaemonSet; "/" when empty. Paths below it are written to the spec without it.
	Host string
}

// Deps is what a Writer needs.
type Deps struct {
	// Dir is the CDI directory, such as /var/run/cdi.
	Dir   string
	Roots Roots
	// Vendor finds what containers need besides device nodes; nil for nothing.
	Vendor VendorEdits
	// Clock determines the age of temporary files; the real one when nil.
	Clock clock.PassiveClock
	Log   *slog.Logger
}

// Writer renders the spec and keeps the file up to date. It may be used concurrently.
type Writer struct {
	deps Deps
	host hostpath.View
	// step is called at each step of a write, so that a test can stop the program there.
	step func(name string)

	rendering chan struct{} // holds a token while a rendering runs, even one whose caller has given up
	syncing   chan struct{} // holds a token while Sync or Remove runs

	mu       sync.Mutex
	problems []gpu.Cause
}

// New makes a Writer. It touches nothing on the machine.
func New(deps Deps) *Writer {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Roots.Dev == "" {
		deps.Roots.Dev = deps.Roots.Driver
	}
	if deps.Vendor == nil {
		deps.Vendor = nothing{}
	}
	return &Writer{
		deps:      deps,
		host:      hostpath.New(deps.Roots.Host),
		step:      func(string) {},
		rendering: make(chan struct{}, 1),
		syncing:   make(chan struct{}, 1),
	}
}

// Problems returns what the last Sync left out of the spec, and why, or why the last spec was kept. Since is not set.
func (w *Writer) Problems() []gpu.Cause {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.problems)
}

// Render returns the bytes of the spec for a snapshot with the extras and writes nothing. The first
// call per driver version searches the driver's files, a few ms; later
// ones only check that they are still there. It returns when ctx ends even if the
// file system hangs. Errors: errNoDriver, errNoDevices, or that of [VendorEdits].
func (w *Writer) Render(ctx context.Context, snapshot *gpu.Snapshot, extras Extras) ([]byte, error) {
	r := w.render(ctx, snapshot, extras)
	return r.data, r.err
}

// Sync brings the file in line with the snapshot and the extras and reports whether it was written. Call it at start,
// when the inventory or the configuration changes, and from time to time: driver files and sockets come and go without
// a change of the inventory. Nothing to write (no driver, no GPU) is not an error: the last spec stays and Problems
// says so. After an error the last spec is in force too.
func (w *Writer) Sync(ctx context.Context, snapshot *gpu.Snapshot, extras Extras) (changed bool, err error) {
	if err := acquire(ctx, w.syncing, "another sync"); err != nil {
		return false, fmt.Errorf("sync CDI spec: %w", err)
	}
	defer func() { <-w.syncing }()

	r := w.render(ctx, snapshot, extras)
	switch {
	case errors.Is(r.err, errNoDriver), errors.Is(r.err, errNoDevices):
		w.report(append(r.problems, kept(r.err)))
		return false, nil
	case r.err != nil:
		w.report(append(r.problems, kept(r.err)))
		return false, fmt.Errorf("sync CDI spec: %w", r.err)
	}
	w.report(r.problems)
	w.removeLeftovers()
	if current, err := readFile(w.deps.Dir); err == nil && bytes.Equal(current, r.data) {
		return false, nil
	}
	if err := w.write(r.data); err != nil {
		w.report(append(r.problems, kept(err)))
		return false, fmt.Errorf("sync CDI spec: %w", err)
	}
	w.deps.Log.Info("Wrote CDI spec", "path", w.Path(), "bytes", len(r.data))
	return true, nil
}

func kept(err error) gpu.Cause {
	return gpu.Cause{Code: "CDI_SPEC_KEPT", Message: "the CDI spec was not rewritten; the last one stays in force: " + err.Error()}
}

// report stores the problems. The caller of Problems logs them.
func (w *Writer) report(problems []gpu.Cause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = problems
}

type rendered struct {
	data     []byte
	problems []gpu.Cause
	err      error
}

// render waits no longer than ctx allows, since nothing can interrupt a stat on a file system that hangs. A search that hangs
// holds its token.
func (w *Writer) render(ctx context.Context, snapshot *gpu.Snapshot, extras Extras) rendered {
	if err := acquire(ctx, w.rendering, "an earlier search of the driver's files"); err != nil {
		return rendered{err: err}
	}
	call := bound.Start(func() (rendered, error) {
		defer func() { <-w.rendering }()
		return w.renderNow(snapshot, extras), nil
	})
	if !call.Wait(ctx) {
		return rendered{err: fmt.Errorf("search driver files in %s: %w", w.deps.Roots.Driver, ctx.Err())}
	}
	result, _ := call.Result()
	return result
}

func acquire(ctx context.Context, token chan struct{}, holder string) error {
	select {
	case token <- struct{}{}:
		return nil
	default:
	}
	select {
	case token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", holder, ctx.Err())
	}
}

func (w *Writer) renderNow(snapshot *gpu.Snapshot, extras Extras) rendered {
	snapshot = snapshot.Of(gpu.NVIDIA)
	if !snapshot.Vendor(gpu.NVIDIA).Driver.Present() {
		return rendered{err: errNoDriver}
	}
	// 1. One device per GPU and MIG device that has its nodes.
	check := &checker{host: w.host, dev: w.deps.Roots.Dev, edits: w.deps.Vendor}
	devices := check.devices(snapshot)
	if len(devices) == 0 {
		return rendered{problems: check.problems, err: errNoDevices}
	}
	// 2. What all of them share: the driver's files and hooks, and device nodes.
	found, missing, err := w.deps.Vendor.Common(snapshot.Vendor(gpu.NVIDIA).Driver)
	check.problems = append(check.problems, missing...)
	if err != nil {
		return rendered{problems: check.problems, err: err}
	}
	common := check.common(&found, snapshot.Vendor(gpu.NVIDIA).Shared)
	// 3. What the configuration adds.
	check.addFeatures(&common, &extras, w.deps.Roots.Driver)
	devices = append(devices, check.mps(extras.MPS)...)
	// 4. The oldest version that has all that is used: older runtimes refuse newer specs.
	spec := &specs.Spec{Kind: Kind, Devices: devices, ContainerEdits: common}
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return rendered{problems: check.problems, err: fmt.Errorf("find CDI version: %w", err)}
	}
	data, err := json.MarshalIndent(spec, "", "  ")
	return rendered{data: append(data, '\n'), problems: check.problems, err: err}
}
