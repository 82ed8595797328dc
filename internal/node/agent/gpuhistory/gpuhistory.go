// Package gpuhistory remembers whether the node has ever had a GPU: a missing driver is a problem where one has been, and none on a node
// without GPUs.
//
// It guarantees that a GPU which the driver, the file or the GPUNode has named once counts also after a restart and a reboot, when it is on
// no bus any more; and that the file is written again until it is on disk.
//
// What wakes it: the hardware. What it writes: had-gpu.json, and the problems of the source "had gpu". What it waits for: the API server,
// which it asks once for the GPUNode of an earlier agent where there is no file. Only the first publication of the GPUNode waits for that.
//
// It must not import the agent, another package below it, an adapter or a front end.
package gpuhistory

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// FileName is the name of the file, in the directory that outlives a reboot.
	FileName = "had-gpu.json"
	// codeMissing is the problem that a node without GPUs does not have.
	codeMissing = "DRIVER_MISSING"
	source      = "had gpu"
)

// Deps are the dependencies of a History.
type Deps struct {
	// Dir is the folder of the file; content of another Node than that with this UID is void, unless it is empty.
	Dir     string
	NodeUID func() string
	// OnBus returns the number of GPUs on the PCI bus, with or without a driver.
	OnBus    func() int
	Hardware inventory.Hardware
	// Published reports whether the GPUNode that an earlier agent has published names a GPU; nil without an API server.
	Published func(context.Context) (bool, error)
	Retry     nodeapi.Retry
	// FileLost reports a file that could not be used, with the consequences; Report replaces the problems of a source. They must not block.
	FileLost func(source string, result statefile.Result, without string)
	Report   func(source string, problems ...gpu.Cause)
}

// History is the actor. Create it with Open, start it with Run.
type History struct {
	deps Deps
	// had is true when the node has had a GPU, or when that is not known; kept is true when the file says so.
	had   atomic.Bool
	kept  bool
	asked *signal.Ready
}

// Open reads the file.
func Open(deps Deps) *History {
	h := &History{deps: deps, asked: signal.NewReady()}
	had, result := h.file().Load()
	if result.Lost() {
		deps.FileLost(source, result, "a missing driver is a problem also where the node never had a GPU")
	}
	h.kept = had && !result.Lost()
	h.had.Store(had || result.Lost())
	return h
}

func (h *History) file() statefile.File[bool] {
	return statefile.File[bool]{
		Path: filepath.Join(h.deps.Dir, FileName), What: "whether the node has had a GPU", Format: "berth-had-gpu", Version: 1, NodeUID: h.deps.NodeUID(),
	}
}

// Remove removes the file. It is no error when there is none.
func Remove(dir string) error { return statefile.Remove(filepath.Join(dir, FileName)) }

// Asked is closed when the GPUNode of an earlier agent was read, or need not be.
func (h *History) Asked() <-chan struct{} { return h.asked.Done() }

// Faults returns the faults of the present snapshot, without that of the missing driver on a node that never had a GPU.
func (h *History) Faults() []gpu.Cause {
	faults := h.deps.Hardware.Current().Faults
	missing := func(c gpu.Cause) bool { return c.Code == codeMissing }
	if !slices.ContainsFunc(faults, missing) || h.had.Load() || h.deps.OnBus() > 0 {
		return faults
	}
	return slices.DeleteFunc(slices.Clone(faults), missing)
}

// Run follows the hardware until the node has had a GPU, or ctx ends.
func (h *History) Run(ctx context.Context) error {
	changed := h.deps.Hardware.Subscribe()
	defer changed.Close()
	had := h.kept || h.published(ctx)
	h.asked.Set()
	for !had && len(h.deps.Hardware.Current().GPUs) == 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
		}
	}
	h.had.Store(true)
	if !h.kept && ctx.Err() == nil {
		h.save(ctx)
	}
	return nil
}

// published reports whether an earlier agent has published a GPU, of which it may have left no file. It asks until there is an answer.
func (h *History) published(ctx context.Context) (had bool) {
	if h.deps.Published == nil {
		return false
	}
	_ = h.deps.Retry.Do(ctx, func(ctx context.Context) (done bool) {
		var err error
		had, err = h.deps.Published(ctx)
		return err == nil
	})
	return had
}

// save writes the file. It tries until that succeeds.
func (h *History) save(ctx context.Context) {
	_ = h.deps.Retry.Do(ctx, func(context.Context) (done bool) {
		if err := h.file().Save(true); err != nil {
			h.deps.Report(source, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
			return false
		}
		h.deps.Report(source)
		return true
	})
}
