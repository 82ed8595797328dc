package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/gpu"
)

// Kind says on whose behalf a device is held.
type Kind string

// The kinds. All but Pod bar their device; all bar other sizes of it.
const (
	// Pod: the kubelet's device manager gave the device to a container.
	Pod Kind = "Pod"
	// Claim: a ResourceClaim that the DRA driver prepared.
	Claim Kind = "Claim"
	// Maintenance: Berth itself changes the device.
	Maintenance Kind = "Maintenance"
	// Orphan: a container lives on the device, and the kubelet does not list it.
	Orphan Kind = "Orphan"
)

// Holder is who holds a device.
type Holder struct {
	Kind Kind `json:"kind"`
	// ID tells holders of kind Claim (the claim's UID) and Maintenance (what it is) apart.
	ID string `json:"id,omitempty"`
	// PodUID is empty for a pending holding, whose pod is not known yet.
	PodUID    string `json:"podUID,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Container is the one that uses the device now, or the first of those that may.
	Container string `json:"container,omitempty"`
	// Resource is the name under which the kubelet gave the device out.
	Resource string `json:"resource,omitempty"`
}

// same tells whether two holders are one and the same.
func (h Holder) same(other Holder) bool {
	if h.Kind != other.Kind || h.ID != other.ID {
		return false
	}
	return h.Kind != Pod && h.Kind != Orphan || h.PodUID == other.PodUID
}

// Holding is one holder's hold on one device.
type Holding struct {
	Key    gpu.DeviceKey `json:"key"`
	Holder Holder        `json:"holder"`
	Since  time.Time     `json:"since"`
	// Pending is true from Allocate until the kubelet's checkpoint lists the device.
	Pending bool `json:"pending,omitempty"`
	// Uncounted is true for an orphan that the scheduler does not count: its pod has
	// ended, or counts for other devices. Reported healthy, such a device attracts
	// pods that then have to be refused; so it is to be reported unhealthy.
	Uncounted bool `json:"uncounted,omitempty"`
	// Containers are the names of all containers of the pod that may use the
	// device, sorted: an init container and those after it share theirs.
	Containers []string `json:"containers,omitempty"`
	// Live are the IDs of the containers in which processes lived at the last
	// look, sorted.
	Live []string `json:"live,omitempty"`
}

func (h Holding) bars() bool { return h.Holder.Kind != Pod }

// BarredError says that a device cannot be had.
type BarredError struct {
	Key gpu.DeviceKey
	// Resource is as what a pod was to have it.
	Resource string
	// Holding is what bars it; its key is another one when the device is held in another
	// size, or one of its shares as another resource.
	Holding Holding
}

// Error names the device, the holder, and what ends the holding.
func (e *BarredError) Error() string {
	device := fmt.Sprintf("device %s", e.Key)
	if e.Holding.Key != e.Key {
		device += fmt.Sprintf(" (through %s)", e.Holding.Key)
	}
	h := e.Holding.Holder
	if otherUse(h.Resource, e.Resource) {
		device += fmt.Sprintf(", wanted as %s and given out as %s,", e.Resource, h.Resource)
	}
	since := e.Holding.Since.UTC().Format(time.RFC3339)
	switch h.Kind {
	case Orphan:
		return fmt.Sprintf("%s is still in use since %s by %s, which the kubelet no longer lists; it is free when that container's last process has ended (on the node: crictl stop %s)",
			device, since, h.container(), first(e.Holding.Live))
	case Claim:
		return fmt.Sprintf("%s is held since %s by ResourceClaim %s; it is free when the claim is released", device, since, h.ID)
	case Maintenance:
		return fmt.Sprintf("%s is under maintenance since %s (%s); it is free when that is done", device, since, h.ID)
	}
	if h.PodUID == "" {
		return fmt.Sprintf("%s was allocated at %s to a pod that the kubelet has not named yet; it is free when that pod ends or fails", device, since)
	}
	return fmt.Sprintf("%s is held since %s by %s; it is free when that pod ends", device, since, h.container())
}

func (h Holder) container() string {
	pod := h.PodUID
	if h.Pod != "" {
		pod = h.Namespace + "/" + h.Pod + " (UID " + h.PodUID + ")"
	}
	if h.Container == "" {
		return "a container of pod " + pod
	}
	return "container " + h.Container + " of pod " + pod
}

func first(ids []string) string {
	if len(ids) == 0 {
		return "<id>"
	}
	return ids[0]
}

// ErrSuperseded says that a newer agent on this node writes the ledger.
var ErrSuperseded = errors.New("another agent on this node has taken over the ledger")

// Defaults of Deps.
const (
	DefaultPendingLimit = 30 * time.Second
	DefaultUnknownLimit = 5 * time.Minute
	// DefaultLookAge is less than a container needs to start, be deleted by force
	// and be followed by another pod.
	DefaultLookAge = 50 * time.Millisecond
)

// Deps are what a ledger needs.
type Deps struct {
	// Path is the file; its folder is made if need be. Path.lock and Path.tmp are used too.
	Path string
	// BootID is /proc/sys/kernel/random/boot_id. A file with another one is void.
	BootID string
	Clock  clock.PassiveClock // real time when nil
	Log    *slog.Logger       // slog.Default when nil
	// Look lists the containers in which a process lives at this moment, as for
	// NodeView. It is asked only when a device is wanted that somebody holds, or any while the checkpoint is not
	// known, and before one is called orphaned, since the last Reconcile may be old; and not
	// again within LookAge. Nil, or an error, trusts the last Reconcile.
	Look func() ([]Container, error)
	// LookAge is zero for the default, negative to look every time.
	LookAge time.Duration
	// Follow opens the file without taking over.
	Follow bool
	// PendingLimit is how long an Allocate waits for the checkpoint to show it; UnknownLimit, how
	// long while the checkpoint cannot be read. Zero takes the defaults.
	PendingLimit, UnknownLimit time.Duration
	// Fault is called at each step of a write; an error stops the write there, as
	// death would. For tests.
	Fault func(Step) error
}

// Ledger is the node's ledger. All methods may be called by several goroutines.
type Ledger struct {
	deps  Deps
	bars  atomic.Pointer[barTable]
	store *store

	mu      sync.Mutex
	records map[gpu.DeviceKey]*record
	order   []gpu.DeviceKey // the keys of records, sorted
	dirty   bool            // memory has what the file has not
	certain bool            // the last Reconcile had the checkpoint
	seen    []Container     // by Deps.Look
	seenAt  time.Time
	faults  map[string]gpu.Cause
	subs    subscribers
}

// record is a holding with its line of the file.
type record struct {
	Holding
	line []byte
}

// Open reads the ledger's file and takes over the writing. A file of another boot
// counts as none. One that is corrupt, or of a newer format, is kept as Path.bak; the
// ledger then starts empty and Faults says so. Errors are those of the file
// system, and a file of a newer format that cannot be kept.
func Open(deps Deps) (*Ledger, error) {
	deps.Clock = cmp.Or[clock.PassiveClock](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	deps.PendingLimit = cmp.Or(deps.PendingLimit, DefaultPendingLimit)
	deps.UnknownLimit = cmp.Or(deps.UnknownLimit, DefaultUnknownLimit)
	deps.LookAge = cmp.Or(deps.LookAge, DefaultLookAge)
	store, err := openStore(deps.Path, deps.Fault)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	l := &Ledger{deps: deps, store: store, records: map[gpu.DeviceKey]*record{}, faults: map[string]gpu.Cause{}}
	l.publish()
	l.mu.Lock()
	defer l.mu.Unlock()
	if deps.Follow {
		err = l.store.locked(l.load)
	} else {
		err = l.takeOver()
	}
	if err != nil {
		store.close()
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

// TakeOver makes this ledger the one that writes, and reads what the one before
// it wrote. To be called when the agent's device plugin is about to register.
func (l *Ledger) TakeOver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeOver(); err != nil {
		return fmt.Errorf("take over ledger: %w", err)
	}
	l.subs.notify()
	return nil
}

func (l *Ledger) takeOver() error {
	if err := l.store.takeOver(l.load); err != nil {
		return err
	}
	// An empty ledger writes its file too, so that trouble with the disk shows now.
	l.save()
	return nil
}

// Close writes what is not written yet and gives up the files; nothing on disk is
// removed.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dirty {
		l.save()
	}
	return l.store.close()
}

// Writes tells whether this ledger is the one that writes the file.
func (l *Ledger) Writes() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store.leads()
}

// Holdings lists all holdings in the order of their keys.
func (l *Ledger) Holdings() []Holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	holdings := make([]Holding, 0, len(l.order))
	for _, key := range l.order {
		holdings = append(holdings, l.records[key].clone())
	}
	return holdings
}

func (h Holding) clone() Holding {
	h.Containers, h.Live = slices.Clone(h.Containers), slices.Clone(h.Live)
	return h
}

// Faults are standing troubles with the file, by code: LEDGER_CORRUPT,
// LEDGER_VERSION, LEDGER_UNWRITABLE.
func (l *Ledger) Faults() []gpu.Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	faults := make([]gpu.Cause, 0, len(l.faults))
	for _, fault := range l.faults {
		faults = append(faults, fault)
	}
	slices.SortFunc(faults, func(a, b gpu.Cause) int { return cmp.Compare(a.Code, b.Code) })
	return faults
}

func (l *Ledger) fault(code, message string) {
	if old, ok := l.faults[code]; ok && old.Message == message {
		return
	}
	l.faults[code] = gpu.Cause{Code: code, Message: message, Since: l.deps.Clock.Now()}
	l.deps.Log.Error("ledger", "code", code, "problem", message)
}

// put and remove change one record; the caller saves and publishes.
func (l *Ledger) put(h Holding) {
	i, found := slices.BinarySearchFunc(l.order, h.Key, gpu.CompareKeys)
	if !found {
		l.order = slices.Insert(l.order, i, h.Key)
	}
	l.records[h.Key] = &record{Holding: h}
	l.dirty = true
}

func (l *Ledger) remove(key gpu.DeviceKey) {
	if i, found := slices.BinarySearchFunc(l.order, key, gpu.CompareKeys); found {
		l.order = slices.Delete(l.order, i, i+1)
		delete(l.records, key)
		l.dirty = true
	}
}
