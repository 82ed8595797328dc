// Package reset resets a GPU on the command of the node's administrator (`berth reset GPU`).
//
// It guarantees that a GPU is reset only while no pod holds it, no program has it open and no other agent of the node
// resets one; that the ledger allocates the GPU to no pod during that time; and that maintenance of the GPU ends with
// the command, also after the agent was killed during it.
//
// What wakes it: Run releases once the holdings that a reset of an earlier agent left in the ledger; after that only
// the command, over the agent's socket ([Resetter.ServeHTTP]).
//
// What it writes: holdings of kind maintenance in the ledger, and the file [LockFile]. The reset itself is
// [Deps].Reset.
//
// What it never waits for: the API server and the kubelet. A command waits for holders and programs as long as it
// requests; no other part of the agent waits for this package.
//
// It must not import the agent, a package below it, a vendor's adapter or the device plugin.
package reset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// LockFile is locked while a GPU is reset, so that two agents of an upgrade do not reset at the same time.
	LockFile = "reset.lock"
	// holderID identifies this command in the ledger.
	holderID = "berth reset"
	// checkInterval is the time between two checks for users of the GPU.
	checkInterval = time.Second
	// maxWait bounds how long a command may wait for holders.
	maxWait = 24 * time.Hour
	// deadline bounds the reset with its preparation and check, once the GPU is not in use.
	deadline = 5 * time.Minute
)

// Hardware is the inventory.
type Hardware interface {
	Current() *gpu.Snapshot
	// Refresh returns when a scan that began after the call is in Current.
	Refresh(ctx context.Context) error
}

// Ledger has the holders of devices.
type Ledger interface {
	Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error
	Release(holder gpu.Holder, keys []gpu.DeviceKey) error
	Holdings() []ledger.Holding
}

// Deps are the dependencies of a Resetter.
type Deps struct {
	// Dir is the folder of LockFile.
	Dir      string
	Hardware Hardware
	Ledger   Ledger
	// Openers returns the programs that have a GPU open, without what Quiesce ends.
	Openers func(ctx context.Context, id gpu.UUID) ([]openers.Opener, error)
	// Quiesce ends what Berth itself runs on a GPU, until Resume is called. Resume follows each Quiesce, also one that
	// failed.
	Quiesce func(ctx context.Context, id gpu.UUID) error
	Resume  func(id gpu.UUID)
	// Reset resets a GPU and reports that to the inventory.
	Reset func(ctx context.Context, id gpu.UUID) error
	Clock clock.Clock
	Log   *slog.Logger
}

// Resetter is the actor. Create it with New, start it with Run.
type Resetter struct {
	deps  Deps
	ready *signal.Ready
}

// New returns a Resetter. It refuses commands until Run has begun.
func New(deps Deps) *Resetter { return &Resetter{deps: deps, ready: signal.NewReady()} }

// Run releases the holdings that an interrupted reset of an earlier agent left in the ledger, and enables the command.
// It needs the ledger to have been compared with the node, and returns nil at once after that.
func (r *Resetter) Run(context.Context) error {
	if err := r.releaseStale(); err != nil {
		r.deps.Log.Warn("Could not end the maintenance that an earlier reset left; its GPU stays blocked", "error", err)
	}
	r.ready.Set()
	return nil
}

// errResetting means that another reset runs.
var errResetting = errors.New("another GPU of this node is being reset; try again when that is done")

// lock acquires the lock of the node. Calling unlock or the end of the process releases it.
func (r *Resetter) lock() (unlock func(), err error) {
	folder, err := os.OpenRoot(r.deps.Dir)
	if err != nil {
		return nil, fmt.Errorf("lock resets: %w", err)
	}
	defer folder.Close()
	file, err := statefile.OpenRegular(folder, LockFile)
	if err != nil {
		return nil, fmt.Errorf("lock resets: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errResetting
		}
		return nil, fmt.Errorf("lock resets: %w", err)
	}
	return func() { file.Close() }, nil
}

// releaseStale releases the holdings of an interrupted reset in the ledger.
func (r *Resetter) releaseStale() error {
	unlock, err := r.lock()
	if errors.Is(err, errResetting) {
		return nil // The agent of that reset releases its holding.
	}
	if err != nil {
		return err
	}
	defer unlock()
	var keys []gpu.DeviceKey
	for _, h := range r.deps.Ledger.Holdings() {
		if h.Holder == holder() {
			keys = append(keys, h.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return r.deps.Ledger.Release(holder(), keys)
}

// holder is the command as a holder in the ledger.
func holder() gpu.Holder { return gpu.Holder{Kind: gpu.HolderMaintenance, ID: holderID} }

// reset resets a GPU. It waits up to wait for holders of the GPU and for programs that have it open, and reports each
// step when it begins. The end of ctx ends the command until the reset itself begins.
func (r *Resetter) reset(ctx context.Context, reference string, wait time.Duration, report func(string)) (v1alpha1.GPUReset, error) {
	result := v1alpha1.GPUReset{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.KindGPUReset},
	}
	device, err := find(r.deps.Hardware.Current(), reference)
	if err != nil {
		return result, err
	}
	id := device.UUID
	result.UUID, result.Index = string(id), device.Index
	unlock, err := r.lock()
	if err != nil {
		return result, err
	}
	defer unlock()
	name := fmt.Sprintf("GPU %d (%s)", device.Index, id)
	if n := len(device.MIG.Devices); n > 0 {
		report(fmt.Sprintf("%s has %d MIG devices; the reset destroys them, and the agent creates them again where a layout wants them",
			name, n))
	}
	keys := []gpu.DeviceKey{{GPU: id}}
	if err := r.acquire(ctx, id, name, wait, report); err != nil {
		return result, err
	}
	defer func() {
		if err := r.deps.Ledger.Release(holder(), keys); err != nil {
			report("could not end the maintenance of " + name + ": " + err.Error())
		}
	}()
	// From here on the client may disconnect: an interrupted reset is worse than a complete one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
	defer cancel()
	defer r.deps.Resume(id)
	report(name + " is not in use; the agent closes the driver and resets the GPU")
	if err := r.deps.Quiesce(ctx, id); err != nil {
		return result, err
	}
	if err := r.deps.Reset(ctx, id); err != nil {
		return result, err
	}
	report(name + " was reset; scanning it")
	if err := r.deps.Hardware.Refresh(ctx); err != nil {
		return result, err
	}
	err = r.verify(&result, name, report)
	return result, err
}

// acquire acquires the GPU in the ledger once it is not in use, waiting up to wait.
func (r *Resetter) acquire(ctx context.Context, id gpu.UUID, name string, wait time.Duration, report func(string)) error {
	until := r.deps.Clock.Now().Add(wait)
	reported := ""
	for {
		who, fix, err := r.tryAcquire(ctx, id)
		if err != nil || who == "" {
			return err
		}
		text := name + " is in use: " + who
		if !r.deps.Clock.Now().Before(until) {
			return fmt.Errorf("%s (fix: %s, or wait until they end with --wait)", text, fix)
		}
		if text != reported {
			report(text + "; waiting")
			reported = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.deps.Clock.After(checkInterval):
		}
	}
}

// tryAcquire acquires the GPU in the ledger unless it is held or open. In that case it returns the users of the GPU and
// how to end them.
func (r *Resetter) tryAcquire(ctx context.Context, id gpu.UUID) (who, fix string, err error) {
	keys := []gpu.DeviceKey{{GPU: id}}
	if err := r.deps.Ledger.Acquire(holder(), keys); err != nil {
		var names []string
		for _, h := range r.deps.Ledger.Holdings() {
			if h.Key.GPU == id && h.Holder != holder() {
				names = append(names, "held by "+h.Holder.String())
			}
		}
		slices.Sort(names)
		if len(names) == 0 {
			return "", "", fmt.Errorf("take the GPU out of service: %w", err)
		}
		return strings.Join(slices.Compact(names), "; "), "delete the pods that hold it", nil
	}
	open, err := r.deps.Openers(ctx, id)
	if err == nil && len(open) == 0 {
		return "", "", nil
	}
	if release := r.deps.Ledger.Release(holder(), keys); release != nil {
		return "", "", errors.Join(err, release)
	}
	if err != nil {
		return "", "", err
	}
	var names, fixes []string
	for _, o := range open {
		names = append(names, fmt.Sprintf("process %d (%s) has it open", o.PID, o.Program))
		fixes = append(fixes, o.Stop)
	}
	return strings.Join(names, "; "), strings.Join(slices.Compact(fixes), "; "), nil
}

// verify sets the health of the GPU after its reset. The error has the reason why the reset did not help.
func (r *Resetter) verify(result *v1alpha1.GPUReset, name string, report func(string)) error {
	device := r.deps.Hardware.Current().GPU(gpu.UUID(result.UUID))
	if device == nil {
		return fmt.Errorf("%s: it was reset, and the scan after that does not find it (fix: reboot the node)", name)
	}
	result.State = string(device.Health.State)
	var causes []string
	for _, cause := range device.Health.Causes {
		result.Causes = append(result.Causes, v1alpha1.Cause{Code: cause.Code, Message: cause.Message,
			Since: since(cause.Since), Recover: cause.Recover})
		causes = append(causes, cause.Code+": "+cause.Message)
	}
	if !device.Health.OK() {
		return fmt.Errorf("%s: it was reset and is still %s: %s", name, result.State, strings.Join(causes, "; "))
	}
	report(name + " is " + result.State + " and advertised again")
	return nil
}
