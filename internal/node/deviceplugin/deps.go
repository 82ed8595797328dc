package deviceplugin

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Deps are what a Manager needs.
type Deps struct {
	// KubeletDir is the kubelet's root, usually /var/lib/kubelet; the sockets are in its
	// device-plugins folder.
	KubeletDir string
	// Instance orders this agent among others on the node, by comparison of strings of [0-9a-z]; each start needs another one. Empty, as
	// usual, comes after every instance whose socket exists now.
	Instance string
	// State returns what to advertise, held or not. It is called by one goroutine, after each signal of Hardware or Changed; after one
	// of Holdings only the Ledger is asked again. It must answer from memory and take no lock that is held over a file, API or hardware
	// call: health reaches the kubelet through it.
	State func() State
	// Hardware and Holdings subscribe to what State shows of the hardware, and to the Ledger; nil for one that never changes. The Manager
	// subscribes itself, so that no other subscriber delays it.
	Hardware func() *signal.Subscription
	Holdings func() *signal.Subscription
	// Changed has a token when anything else in State has changed. A buffer of one is enough.
	Changed <-chan struct{}
	// Ledger is asked before a device is allocated; nil blocks nothing.
	Ledger Ledger
	// Grants identify containers; nil for none.
	Grants Grants
	// KubeletRestarted is called before each attempt to register with a kubelet that has restarted, and may have lost its record of
	// allocations. It must not block; nil for none.
	KubeletRestarted func()
	// Vendors are the names of the vendors whose devices are advertised.
	Vendors []gpu.Traits
	// Strategy is how devices are injected into the container.
	Strategy Strategy
	// CDIName returns the qualified CDI name of a device from its UUID or index; needed with
	// the CDI strategies.
	CDIName func(id string) string
	// Plain are the vendors whose GPUs are injected as device nodes alone: no CDI spec has them.
	Plain map[string]bool
	// Mark returns an environment variable that names the devices of an answer, for users to read; nil for none. A pod can override it.
	Mark func(resource string, keys []gpu.DeviceKey) (name, value string)
	// Warn is called when a container got several replicas of one device, which give it no more than one. It must not block; nil for none.
	Warn  func(resource, message string)
	Clock clock.WithTicker
	Log   *slog.Logger
}

// State is what a node advertises at one time. It is only read.
type State struct {
	// Snapshot has the GPUs' links and device nodes.
	Snapshot *gpu.Snapshot
	Offers   []offer.Offer
	// Policy is how replicas and MIG devices are chosen from several GPUs; empty means distributed.
	Policy   placement.Policy
	Features Features
}

// chooser picks GPUs by their position in a snapshot; [placement.Node] is one.
type chooser interface {
	Choose(available, must placement.Set, size int) (placement.Set, error)
}

// timing are the durations that tests shorten.
type timing struct {
	register      time.Duration // limit of one Register call
	retryFirst    time.Duration // wait after the first failed attempt, then doubled
	retryMax      time.Duration
	stable        time.Duration // an endpoint that was open this long ended for a new reason
	deferNewer    time.Duration // how long a newer instance that is alive may take to register first
	retire        time.Duration // how long a replaced endpoint still answers
	drain         time.Duration // limit for running calls at the end of an endpoint
	resend        time.Duration // the second sending after another stream has ended; longer than retire
	linger        time.Duration // how long a vanished device is listed as unhealthy
	poll          time.Duration // time between two readings of the directory without an event
	pollUnwatched time.Duration // the same when the directory cannot be watched
	staleSocket   time.Duration // age from which a socket that does not listen is abandoned
}

func defaultTiming() timing {
	return timing{
		register: 10 * time.Second, retryFirst: 10 * time.Millisecond, retryMax: 10 * time.Second,
		stable: 10 * time.Second, deferNewer: time.Second, retire: time.Second, drain: time.Second,
		resend: 2 * time.Second, linger: 15 * time.Second, poll: 5 * time.Second,
		pollUnwatched: 50 * time.Millisecond, staleSocket: time.Minute,
	}
}

func (d *Deps) complete() error {
	var errs []error
	if d.KubeletDir == "" {
		errs = append(errs, errors.New("no kubelet directory is given (usually /var/lib/kubelet)"))
	}
	if d.State == nil {
		errs = append(errs, errors.New("no source of offers is given"))
	}
	if d.Instance != "" && !isInstance(d.Instance) {
		errs = append(errs, fmt.Errorf("instance %q must be made of 0-9 and a-z", d.Instance))
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Ledger == nil {
		d.Ledger = noLedger{}
	}
	if len(d.Strategy.List) == 0 {
		d.Strategy.List = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
	}
	if d.Strategy.ID == "" {
		d.Strategy.ID = v1alpha1.IDStrategyUUID
	}
	if d.Strategy.AnnotationPrefix == "" {
		d.Strategy.AnnotationPrefix = DefaultAnnotationPrefix
	}
	errs = append(errs, d.Strategy.validate())
	if d.Strategy.usesCDI() && d.CDIName == nil {
		errs = append(errs, errors.New("the CDI strategies need the CDI names"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set up device plugin: %w", err)
	}
	return nil
}
