package dra

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Ledger records which claim has which device.
type Ledger interface {
	// AcquireClaim takes the devices of a claim, all or none. They are on disk when it returns without an error. It may be called again
	// for a claim that has its devices; those that it has from an earlier allocation, and that no container uses, are released. Its error
	// names the holder of the first device that another holder has. While a MIG device is removed that has slices of one of them, it waits
	// for that, at most until ctx ends.
	AcquireClaim(ctx context.Context, claim ledger.Claim) error
	// ResolveClaim changes the hold of a claim on a placement into one on the MIG device that is there now. It may be called again. The
	// change is on disk when it returns without an error.
	ResolveClaim(uid string, placed gpu.DeviceKey, device gpu.UUID) error
	// ReleaseClaim ends all holdings of a claim; it is no error when there is none. The release is on disk when it returns without an
	// error.
	ReleaseClaim(uid string) error
	// AdoptClaims records that claims have their devices, because the kubelet lists them as prepared. Those that
	// another claim's devices prevent are left out and reported by the ledger. After an error it is called again.
	AdoptClaims(claims []ledger.Claim) error
}

// Device is what the name of a published device stands for at this moment.
type Device struct {
	// Name is its name in the pool.
	Name string
	// Key names a MIG device of a dynamic GPU by its placement.
	Key gpu.DeviceKey
	// Profile is that of a MIG device.
	Profile string
	// Dynamic is true for a GPU, and for a MIG device, that Ensure has to make.
	Dynamic bool
	// UUID is that of a dynamic device that exists now, else empty.
	UUID gpu.UUID
	// Health is the class of its health: gpu.Healthy, Degraded, Draining or Unhealthy; empty while the verdict is not known.
	Health gpu.State
	// Reason says why Health is not Healthy.
	Reason string
	// NotReady is the reason why containers cannot use the device now; empty when they can.
	NotReady string
}

// Operation is a call of the kubelet for one claim.
type Operation string

// The operations.
const (
	Prepare   Operation = "prepare"
	Unprepare Operation = "unprepare"
)

// Call is a call of the kubelet for one claim that has ended.
type Call struct {
	Operation Operation
	Namespace string
	Name      string
	UID       string
	Took      time.Duration
	// Err is nil when the call succeeded.
	Err error
}

// Step is a moment at which a test can stop a call.
type Step string

// The steps of a prepare and an unprepare.
const (
	// StepLocked: no other call works on the claim; nothing was done.
	StepLocked Step = "locked claim"
	// StepChecked: the devices were found and can be injected.
	StepChecked Step = "checked devices"
	// StepAcquired: the ledger has the claim's devices, and the kubelet has no response.
	StepAcquired Step = "acquired devices"
	// StepCreated: a device of a dynamic GPU exists, and the ledger has its placement.
	StepCreated Step = "created device"
	// StepResolved: the ledger has the MIG device by its UUID.
	StepResolved Step = "resolved device"
	// StepSliced: a GPU has the time slice of the claim's configuration.
	StepSliced Step = "set time slice of device"
	// StepServed: a GPU has the MPS daemon of the claim's configuration.
	StepServed Step = "started MPS daemon of device"
	// StepInjectable: the CDI spec on disk has the devices, and the kubelet has no response.
	StepInjectable Step = "injectable devices"
	// StepReleased: the ledger does not have the claim any more, and the kubelet has no response.
	StepReleased Step = "released devices"
)

// Deps are the dependencies of a Driver.
type Deps struct {
	// DriverName is the name of the DRA driver, such as gpu.berth.dev; Pool that of the node's pool.
	DriverName string
	Pool       string
	Ledger     Ledger
	// Ensure returns the UUID of a device of a dynamic GPU once it exists: the MIG device of that profile at the placement of the key, or
	// the GPU itself, with MIG off. The claim has the device in the ledger. The error says why the GPU does not have it now. It may be
	// called again, and is called without a lock that other claims wait for.
	Ensure func(ctx context.Context, key gpu.DeviceKey, profile string) (gpu.UUID, error)
	// Sliced returns when a GPU, which a claim has in the ledger, has the claim's time slice, or with the reason why it does not. It may
	// wait for a moment, and is called without a lock that other claims wait for.
	Sliced func(ctx context.Context, id gpu.UUID, slice string) error
	// Served returns the CDI names of the MPS daemon of a GPU, which a claim has in the ledger, once it runs with the limits and the CDI
	// spec on disk has them; without limits it returns when no daemon runs on the GPU. The error is the reason why that is not so. It may
	// wait for a moment, and is called without a lock that other claims wait for.
	Served func(ctx context.Context, id gpu.UUID, limits gpu.MPSLimits) (names []string, err error)
	// Devices returns the published devices, and those that are still held, in a stable order. It must answer from memory.
	Devices func() []Device
	// Changed subscribes to changes of Devices.
	Changed func() *signal.Subscription
	// Ready returns when the CDI spec on disk has the device, or with the reason why it does not; it may wait for a moment. It is called
	// without a lock that other claims wait for.
	Ready func(ctx context.Context, id gpu.UUID) error
	// CDIName returns the qualified CDI name of a device from its UUID.
	CDIName func(id string) string
	// Prepared returns the claims that the kubelet lists as prepared, with the names of their devices. It is called once, by Adopt.
	Prepared func() ([]Listed, error)
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	// Observe is called after each prepare and unprepare of a claim; nil for none. It must not block.
	Observe func(Call)
	// Fault is called at each step; an error ends the call there, as death would. For tests; nil for nothing.
	Fault func(Step) error
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Listed is a claim in the kubelet's record.
type Listed struct {
	UID       string
	Namespace string
	Name      string
	PodUIDs   []string
	// Devices are the devices of this driver.
	Devices []ListedDevice
}

// ListedDevice is a device in the kubelet's record.
type ListedDevice struct {
	Pool     string
	Name     string
	Requests []string
	// CDINames are the qualified names that the kubelet gives to the container runtime.
	CDINames []string
}

// ServerDeps are the dependencies of a Server.
type ServerDeps struct {
	Driver *Driver
	// Client writes ResourceSlices and reads ResourceClaims; NodeName is the name of this Node.
	Client   kubernetes.Interface
	NodeName string
	// KubeletDir is the kubelet's root. The driver's sockets are in its folder plugins/<driver>, which the Server makes, and the
	// registration socket is in plugins_registry, which is the kubelet's: the Server waits until it exists.
	KubeletDir string
	// Serving is called each time the sockets are served, and Registered each time a kubelet has registered the driver, before the kubelet
	// gets the response. They must not block.
	Serving    func()
	Registered func()
	// Failed is called with each error of the library's background work, which is that of publishing. It must not block.
	Failed func(error)
}
