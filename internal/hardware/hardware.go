package hardware

import (
	"context"
	"log/slog"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/smi"
)

// Vendor is the GPUs of one vendor. Actions, such as a change of the MIG layout or a reset, are further interfaces, which are
// declared where they are used; [Find] finds the vendor that has one. Any call may hang.
type Vendor interface {
	// Traits returns the names of the vendor. It touches no hardware.
	Traits() gpu.Traits
	// Scan reads all GPUs of the vendor. In the snapshot, a GPU's health holds the level causes that this scan found,
	// without Since, and State Gone for a GPU that did not answer. A node without a driver is a snapshot with a fault.
	Scan(ctx context.Context) (gpu.Snapshot, error)
	// Watch calls emit for each event until ctx ends or the hardware is lost. It is called after the first scan.
	Watch(ctx context.Context, emit func(gpu.Event)) error
	// Sample measures the GPUs of the last scan repeatedly until ctx ends, and calls emit with each measurement.
	Sample(ctx context.Context, emit func(gpu.Sample)) error
}

// Roots are where this process finds the host's trees; see [nvidia.Roots].
type Roots = nvidia.Roots

// Deps are what Open needs.
type Deps struct {
	Roots Roots
	// Library is the management library of NVIDIA's driver; nil is the one below Roots.Driver.
	Library nvml.Interface
	// SMI is the command line of nvidia-smi where it is not the driver's own.
	SMI []string
	// MakeNodes are the roots below whose folder dev missing device nodes are created; none by default.
	MakeNodes []string
	// LibraryReplaced, unless nil, is called with the library file that a new process would open in place of the one that
	// this process has. It must not block.
	LibraryReplaced func(file string)
	// SampleInterval is the time between two measurements; zero is the vendor's default.
	SampleInterval time.Duration
	// OptionalMeasures are those to measure of the ones that are [gpu.Measure.Optional].
	OptionalMeasures []gpu.Measure
	Log              *slog.Logger
}

// Open returns all vendors that this program supports, whether or not the machine has GPUs of them. It makes no driver
// call.
func Open(deps Deps) []Vendor {
	if deps.Library == nil {
		deps.Library = nvidia.OpenLibrary(deps.Roots.Driver)
	}
	from := nvidia.Deps{
		Library: deps.Library, Roots: deps.Roots, MakeNodes: deps.MakeNodes, LibraryReplaced: deps.LibraryReplaced, Log: deps.Log,
	}
	adapter := nvidia.New(from)
	return []Vendor{&nvidiaVendor{
		Adapter: adapter, Actions: nvidia.NewActions(from),
		SMI:     smi.New(smi.Deps{Program: deps.SMI, DriverRoot: deps.Roots.Driver, Log: deps.Log}),
		sampler: adapter.Sampler(nvidia.SamplerDeps{Interval: deps.SampleInterval, Optional: deps.OptionalMeasures, Log: deps.Log}),
	}}
}

// Traits returns the names of the vendors of Open, in the same order, and opens nothing.
func Traits() []gpu.Traits { return []gpu.Traits{nvidia.Traits()} }

// nvidiaVendor is NVIDIA's GPUs with all their actions.
type nvidiaVendor struct {
	*nvidia.Adapter
	*nvidia.Actions
	*smi.SMI
	sampler *nvidia.Sampler
}

// Sample implements Vendor.
func (v *nvidiaVendor) Sample(ctx context.Context, emit func(gpu.Sample)) error {
	return v.sampler.Run(ctx, emit)
}

// NameOf returns the name of the vendor that Find returns; "" when none does.
func NameOf[T any](vendors []Vendor) string {
	for _, vendor := range vendors {
		if _, ok := vendor.(T); ok {
			return vendor.Traits().Name
		}
	}
	return ""
}

// Find returns the first vendor that implements an interface; false when none does.
func Find[T any](vendors []Vendor) (found T, ok bool) {
	for _, vendor := range vendors {
		if found, ok = vendor.(T); ok {
			return found, true
		}
	}
	return found, false
}
