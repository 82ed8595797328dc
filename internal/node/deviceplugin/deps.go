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
)

// Deps are what a Manager needs.
type Deps struct {
	// KubeletDir is the kubelet's root, usually /var/lib/kubelet; the sockets are in its
	// device-plugins folder.
	KubeletDir string
	// Instance orders this agent among others on the node, by comparison of strings of
	// [0-9a-z]; no two starts may share one. Empty, as usual, means: after every instance whose socket is there now.
	Instance string
	// State says what to advertise. It is called by one goroutine, after each signal of Hardware,
	// Holdings or Changed. It must answer from memory and take no lock that is held over
	// a file, API or hardware call: health reaches the kubelet through it.
	State func() State
	// Hardware and Holdings subscribe to what State shows of the hardware, and to the Ledger; nil for
	// one that never changes. The Manager subscribes itself, so that no other reader's work delays it.
	Hardware, Holdings func() Subscription
	// Changed has a token whenever anything else in State has changed; a buffer of one
	// is enough, since a token only means "look again".
	Changed <-chan struct{}
	// Ledger is asked before a device is given out; nil bars nothing.
	Ledger Ledger
	// KubeletRestarted is called before each attempt to register with a kubelet that has
	// started anew, and may have forgotten what it gave out. It must not block; nil for none.
	KubeletRestarted func()
	// Strategy is how the chosen devices reach the container.
	Strategy Strategy
	// CDIName makes the qualified CDI name of a device from its UUID or index; needed with
	// the CDI strategies.
	CDIName func(id string) string
	// Mark makes an environment variable that names the devices of an answer, for people; nil makes none. A pod can
	// override it.
	Mark func(resource string, keys []gpu.DeviceKey) (name, value string)
	// Told is called when a container got less than it may have hoped for: several shares of one
	// device. It must not block; nil for nobody.
	Told  func(resource, message string)
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Subscription carries a signal when something has changed since the last one was taken.
type Subscription interface {
	C() <-chan struct{}
	Close()
}

// State is what a node advertises at a moment. It is only read.
type State struct {
	// Snapshot gives the links between the cards and their device nodes.
	Snapshot *gpu.Snapshot
	Offers   []offer.Offer
	// Policy is how shares and MIG devices are taken from several cards; empty means distributed.
	Policy   placement.Policy
	Features Features
}

// Chooser picks GPUs by their position in a snapshot; [placement.Node] is one.
type Chooser interface {
	Choose(available, must placement.Set, size int) (placement.Set, error)
}

// timing are the durations that tests shorten.
type timing struct {
	register    time.Duration // limit of one Register call
	retryFirst  time.Duration // wait after the first failed attempt, then doubled
	retryMax    time.Duration
	stable      time.Duration // an endpoint that lived this long ended for a new reason
	deferNewer  time.Duration // how long a living newer instance is given to register first
	retire      time.Duration // how long a replaced endpoint still answers
	drain       time.Duration // limit for running calls at the end of an endpoint
	resend      time.Duration // the second sending after another stream has ended; longer than retire
	linger      time.Duration // how long a vanished device is listed as unhealthy
	poll        time.Duration // a look at the directory without an event
	pollBlind   time.Duration // the same when the directory cannot be watched
	staleSocket time.Duration // age at which a half-made socket is nobody's
}

func defaultTiming() timing {
	return timing{
		register: 10 * time.Second, retryFirst: 10 * time.Millisecond, retryMax: 10 * time.Second,
		stable: 10 * time.Second, deferNewer: time.Second, retire: time.Second, drain: time.Second,
		resend: 2 * time.Second, linger: 15 * time.Second, poll: 5 * time.Second,
		pollBlind: 50 * time.Millisecond, staleSocket: time.Minute,
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
		d.Ledger = openLedger{}
	}
	if len(d.Strategy.List) == 0 {
		d.Strategy.List = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
	}
	if d.Strategy.ID == "" {
		d.Strategy.ID = ByUUID
	}
	if d.Strategy.AnnotationPrefix == "" {
		d.Strategy.AnnotationPrefix = DefaultAnnotationPrefix
	}
	errs = append(errs, d.Strategy.Validate())
	if d.Strategy.usesCDI() && d.CDIName == nil {
		errs = append(errs, errors.New("the CDI strategies need the CDI names"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set up device plugin: %w", err)
	}
	return nil
}
