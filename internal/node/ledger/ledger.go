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

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Holding is one holder's hold on one device, with the ledger's own data about it. A holding of any kind but a pod's
// blocks its device; each blocks devices of other sizes on the same hardware. Its JSON form is a line of the file.
type Holding struct {
	gpu.Holding
	// Pending is true from Allocate until the kubelet's checkpoint lists the device.
	Pending bool `json:"pending,omitempty"`
	// Uncounted is true for an orphan that the scheduler does not count: its pod has ended, or counts for other
	// devices. If it were reported healthy, pods would be scheduled that then have to be refused; so it must be
	// reported unhealthy.
	Uncounted bool `json:"uncounted,omitempty"`
	// Containers are the names of all containers of the pod that may use the device, sorted: an init container and
	// those after it share a device.
	Containers []string `json:"containers,omitempty"`
	// Grants are the IDs of the grants of this device to the pod, in the order in which they were made: a container has
	// one as a mount, which its author can neither choose nor override.
	Grants []string `json:"grants,omitempty"`
	// Live are the IDs of the containers in which processes lived at the last
	// look, sorted.
	Live []string `json:"live,omitempty"`
}

func (h Holding) blocksOwn() bool { return h.Holder.Kind != gpu.HolderPod }

// BlockedError means that a device is blocked.
type BlockedError struct {
	Key gpu.DeviceKey
	// Resource is the resource that the pod requested.
	Resource string
	// Holding is the holding that blocks it; its key differs when the device is held in another size, or one of its
	// replicas as another resource.
	Holding Holding
}

// Error names the device, the holder, and what ends the holding.
func (e *BlockedError) Error() string {
	device := fmt.Sprintf("device %s", e.Key)
	if e.Holding.Key != e.Key {
		device += fmt.Sprintf(" (through %s)", e.Holding.Key)
	}
	h := e.Holding.Holder
	if otherUse(h.Resource, e.Resource) {
		device += fmt.Sprintf(", wanted as %s and allocated as %s,", e.Resource, h.Resource)
	}
	since := e.Holding.Since.UTC().Format(time.RFC3339)
	switch h.Kind {
	case gpu.HolderOrphan:
		return fmt.Sprintf("%s is still in use since %s by %s, which the kubelet no longer lists; it is free when that container's last process has ended (on the node: crictl stop %s)",
			device, since, containerOf(h), first(e.Holding.Live))
	case gpu.HolderClaim:
		return fmt.Sprintf("%s is held since %s by %s; it is free when the claim is released", device, since, h)
	case gpu.HolderMaintenance:
		return fmt.Sprintf("%s is under maintenance since %s (%s); it is free when that is done", device, since, h.ID)
	}
	if h.PodUID == "" {
		return fmt.Sprintf("%s was allocated at %s to a pod that the kubelet has not named yet; it is free when that pod ends or fails",
			device, since)
	}
	return fmt.Sprintf("%s is held since %s by %s; it is free when that pod ends", device, since, containerOf(h))
}

// containerOf names a pod's container with the pod's UID.
func containerOf(h gpu.Holder) string {
	pod := h.PodUID
	if h.Name != "" {
		pod = h.Namespace + "/" + h.Name + " (UID " + h.PodUID + ")"
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

// listedError means that a device was refused because the kubelet's checkpoint lists it for another pod that has not
// ended: the kubelet has lost its record of that and offered the device a second time.
type listedError struct {
	Key      gpu.DeviceKey
	Resource string
	// Pod is the UID of the other pod; Namespace and Name are empty when they are not known.
	Pod        string
	Namespace  string
	Name       string
	Containers []string
	Since      time.Time
}

// Error names the device, the pod that has it, the evidence and what follows.
func (e *listedError) Error() string {
	h := gpu.Holder{PodUID: e.Pod, Namespace: e.Namespace, Name: e.Name, Container: e.Containers[0]}
	return fmt.Sprintf("device %s is allocated to %s since %s: the kubelet's checkpoint lists it, and that pod has not ended. The kubelet has offered it a second time; "+
		"with this refusal it corrects its record, and the next pod gets a free device",
		e.Key, containerOf(h), e.Since.UTC().Format(time.RFC3339))
}

// ErrSuperseded means that a newer agent on this node writes the ledger.
var ErrSuperseded = errors.New("another agent on this node has taken over the ledger")

// ErrFollows means that this agent follows the ledger, which another agent on this node writes until TakeOver.
var ErrFollows = errors.New("this agent has not taken over the ledger yet, and only follows it")

// Defaults of Deps.
const (
	DefaultPendingLimit = 30 * time.Second
	DefaultUnknownLimit = 5 * time.Minute
)

// MaxLookAge is how long a look at the containers shows that a device without a holding is not in use, while the
// checkpoint is not known.
const MaxLookAge = time.Second

// Deps are the dependencies of a ledger.
type Deps struct {
	// Path is the file; its folder is made if need be. Path.lock and Path.tmp are used too.
	Path string
	// BootID is /proc/sys/kernel/random/boot_id. A file with another one is void.
	BootID string
	Clock  clock.PassiveClock // real time when nil
	Log    *slog.Logger       // slog.Default when nil
	// Look lists the containers in which a process runs at this moment, as for NodeView. It is called when a device is
	// wanted that has a holder, or any device while the ledger is blind (see the package comment), and before a holder
	// becomes an orphan, since the last Reconcile may be old. It is called without the ledger's mutex. If it is nil or
	// fails, the last Reconcile is used.
	Look func() ([]Container, error)
	// LookIn is Look for some pods. Nil, or an error, makes the ledger use Look.
	LookIn func(podUIDs []string) ([]Container, error)
	// Assigned returns the present entries of the kubelet's checkpoint. It is called in the same cases, after Look,
	// without the mutex. If it is nil or fails, the checkpoint is not known.
	Assigned func() ([]Assignment, error)
	// Stamp identifies the content of the kubelet's checkpoint at this moment, that of a missing one too: two equal
	// stamps mean that the kubelet has not written it in between. It is empty when that is not known. It is called
	// without the mutex.
	Stamp func() string
	// Pod returns what is known of a pod, from memory. It is called with the mutex held. If it is nil, nothing is
	// known.
	Pod func(uid string) PodFacts
	// Ask queries devices that would have to be refused because the checkpoint lists them, and returns those that the
	// kubelet no longer has for their pod. What it finds about the pods is in the results of Pod afterwards. It is
	// called without the mutex, at most once per Acquire, and bounds its own time.
	Ask func([]Question) []Question
	// Placement returns where a MIG device with a UUID is according to the last scan; zero when that is not known. It
	// answers from memory and may be called with the mutex held. If it is nil, only the placements that holders know
	// count.
	Placement func(gpu.DeviceKey) gpu.Placement
	// Follow opens the file as a follower, which reads what the writer writes, until TakeOver.
	Follow bool
	// PendingLimit is how long an Allocate waits for the checkpoint to show it; UnknownLimit, how long while the
	// checkpoint cannot be read. Zero means the defaults.
	PendingLimit time.Duration
	UnknownLimit time.Duration
	// Fault is called at each step of a write; an error stops the write there, as
	// death would. For tests.
	Fault func(Step) error
}

// Ledger is the node's ledger. All methods may be called by several goroutines. No method reads or writes a
// file, or calls Look, Assigned or Ask, while it holds the mutex.
type Ledger struct {
	deps   Deps
	blocks atomic.Pointer[blockTable]
	store  *store
	// durable lets one change at a time be made that is in the file when the call returns, or is reverted. It is taken
	// before saving.
	durable sync.Mutex
	// seen is the file's content as a follower last read it. durable protects it.
	seen []byte
	// saving lets one write to the file happen at a time. It is taken before mu.
	saving sync.Mutex

	mu      sync.Mutex
	records map[gpu.DeviceKey]*record
	order   []gpu.DeviceKey // the keys of records, sorted
	edits   uint64          // counts the changes of records
	written uint64          // edits at the last write of the file
	certain bool            // the last Reconcile had the checkpoint
	// looked is when the last successful reading of the containers began; zero when there was none since Open, TakeOver
	// or Distrust.
	looked time.Time
	// stamp is Deps.Stamp of the last view. As the stamp of a grant it may be too old, which is safe: it then differs
	// from any later one.
	stamp     string
	distrusts uint64 // counts the calls of Distrust
	// forgotten is since when the kubelet has not listed a claim that has devices, by the claim's UID.
	forgotten map[string]time.Time
	faults    map[string]gpu.Cause
	subs      signal.Broadcast
}

// record is a holding with its line of the file.
type record struct {
	Holding
	line []byte
	// offered and passed are as in evidence; they are not kept in the file.
	offered bool
	passed  []string
	// users are the pods that the last Reconcile found on the device, and stamp is a Deps.Stamp from before the grant.
	users []string
	stamp string
}

// Open reads the ledger's file and becomes its writer, or with Deps.Follow its follower. A file of another boot is
// ignored. One that is corrupt, or of a newer format, is kept as Path.bak by the writer; the ledger then starts empty and
// Faults says so. Errors are those of the file system, and a file of a newer format that cannot be kept.
func Open(deps Deps) (*Ledger, error) {
	deps.Clock = cmp.Or[clock.PassiveClock](deps.Clock, clock.RealClock{})
	deps.Log = cmp.Or(deps.Log, slog.Default())
	deps.PendingLimit = cmp.Or(deps.PendingLimit, DefaultPendingLimit)
	deps.UnknownLimit = cmp.Or(deps.UnknownLimit, DefaultUnknownLimit)
	store, err := openStore(deps.Path, deps.Fault)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	l := &Ledger{deps: deps, store: store, records: map[gpu.DeviceKey]*record{}, faults: map[string]gpu.Cause{}, forgotten: map[string]time.Time{}}
	l.publish()
	if deps.Follow {
		err = l.followFile()
	} else {
		err = l.takeOver()
	}
	if err != nil {
		store.close()
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

// Subscribe returns a subscription to changes of holdings; its first signal is pending.
func (l *Ledger) Subscribe() *signal.Subscription { return l.subs.Subscribe() }

// Close writes pending changes and closes the files; it removes nothing from disk.
func (l *Ledger) Close() error {
	if l.dirty() {
		_ = l.save()
	}
	return l.store.close()
}

// dirty reports whether the memory has changes that the file does not have.
func (l *Ledger) dirty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.edits != l.written
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

// Plain lists all holdings as Holdings does, without the ledger's own data.
func (l *Ledger) Plain() []gpu.Holding {
	var plain []gpu.Holding
	for _, h := range l.Holdings() {
		plain = append(plain, h.Holding)
	}
	return plain
}

// Granted returns the devices of a grant, sorted by key; none for an unknown grant.
func (l *Ledger) Granted(id string) []gpu.DeviceKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []gpu.DeviceKey
	for _, key := range l.order {
		if slices.Contains(l.records[key].Grants, id) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (h Holding) clone() Holding {
	h.Containers, h.Live, h.Grants = slices.Clone(h.Containers), slices.Clone(h.Live), slices.Clone(h.Grants)
	h.Requests, h.Pods = slices.Clone(h.Requests), slices.Clone(h.Pods)
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
	l.deps.Log.Error("Found a problem of the ledger", "code", code, "problem", message)
}

// put and remove change one record; the caller saves and publishes.
func (l *Ledger) put(h Holding) {
	i, found := slices.BinarySearchFunc(l.order, h.Key, gpu.CompareKeys)
	r := &record{Holding: h}
	if found {
		old := l.records[h.Key]
		r.offered, r.passed, r.users, r.stamp = old.offered, old.passed, old.users, old.stamp
	} else {
		l.order = slices.Insert(l.order, i, h.Key)
	}
	l.records[h.Key] = r
	l.edits++
}

func (l *Ledger) remove(key gpu.DeviceKey) {
	if i, found := slices.BinarySearchFunc(l.order, key, gpu.CompareKeys); found {
		l.order = slices.Delete(l.order, i, i+1)
		delete(l.records, key)
		l.edits++
	}
}
