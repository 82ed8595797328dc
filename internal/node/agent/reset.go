package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

const (
	// resetHolder is this command in the ledger.
	resetHolder = "berth reset"
	// resetLock is held while a GPU is reset, so that two agents of an upgrade do not do it at once.
	resetLock = "reset.lock"
	// resetStep is the time between two looks at who keeps a GPU from being reset.
	resetStep = time.Second
	// maxResetWait bounds how long a command may wait for holders.
	maxResetWait = 24 * time.Hour
	// resetWithin bounds the reset with everything around it, once nobody is in the way.
	resetWithin = 5 * time.Minute
)

// resetter resets a GPU at the command of root. Its parts are functions, as each of them is a part of the agent.
type resetter struct {
	current func() *gpu.Snapshot
	rescan  func(context.Context) error
	ledger  interface {
		Acquire(holder ledger.Holder, keys []gpu.DeviceKey) error
		Release(holder ledger.Holder, keys []gpu.DeviceKey) error
		Holdings() []ledger.Holding
	}
	openers func(context.Context, gpu.UUID) ([]migapply.Opener, error)
	// quiesce ends what Berth runs on the GPU, resume lets it start again.
	quiesce func(context.Context, gpu.UUID) error
	resume  func(gpu.UUID)
	// reset resets the GPU and tells the inventory so.
	reset func(context.Context, gpu.UUID) error
	// lock is the file that only one reset of the node holds.
	lock  string
	after func(time.Duration) <-chan time.Time
	now   func() time.Time
}

func (a *Agent) newResetter(hardware cards, actions *nvidia.Actions) *resetter {
	return &resetter{
		current: a.inventory.Current, rescan: a.inventory.Refresh, ledger: a.ledger,
		openers: func(ctx context.Context, id gpu.UUID) ([]migapply.Opener, error) { return a.openers(ctx, actions, id) },
		quiesce: func(ctx context.Context, id gpu.UUID) error {
			a.sharing.mu.Lock()
			a.sharing.resetting[id] = true
			a.sharing.mu.Unlock()
			return a.quiesce(ctx, id)
		},
		resume: func(id gpu.UUID) {
			a.sharing.mu.Lock()
			delete(a.sharing.resetting, id)
			delete(a.sharing.quiesced, id)
			a.sharing.mu.Unlock()
			a.sharing.poke()
		},
		reset: func(ctx context.Context, id gpu.UUID) error { return hardware.Reset(ctx, []gpu.UUID{id}) },
		lock:  filepath.Join(a.config.StateDir, resetLock), after: a.clock.After, now: a.clock.Now,
	}
}

// errResetting says that another reset runs.
var errResetting = errors.New("another GPU of this node is being reset; try again when that is done")

// take takes the lock; release gives it back, as does the death of the process.
func (r *resetter) take() (release func(), err error) {
	file, err := os.OpenFile(r.lock, os.O_CREATE|os.O_RDWR, 0o600)
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

// forget releases what a reset that died with its process left in the ledger.
func (r *resetter) forget() error {
	release, err := r.take()
	if errors.Is(err, errResetting) {
		return nil // its own agent releases it
	}
	if err != nil {
		return err
	}
	defer release()
	var keys []gpu.DeviceKey
	for _, h := range r.ledger.Holdings() {
		if h.Holder == r.holder() {
			keys = append(keys, h.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return r.ledger.Release(r.holder(), keys)
}

func (r *resetter) holder() ledger.Holder {
	return ledger.Holder{Kind: ledger.Maintenance, ID: resetHolder}
}

// run resets a GPU: it waits for those who hold it or have it open, up to wait, and tells each step as it comes.
// Until the reset itself begins, the end of ctx ends it.
func (r *resetter) run(ctx context.Context, reference string, wait time.Duration, tell func(string)) (v1alpha1.GPUReset, error) {
	result := v1alpha1.GPUReset{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.KindGPUReset},
	}
	card, err := findCard(r.current(), reference)
	if err != nil {
		return result, err
	}
	id := card.UUID
	result.UUID, result.Index = string(id), card.Index
	release, err := r.take()
	if err != nil {
		return result, err
	}
	defer release()
	name := fmt.Sprintf("GPU %d (%s)", card.Index, id)
	if n := len(card.MIG.Devices); n > 0 {
		tell(fmt.Sprintf("%s has %d MIG devices; the reset destroys them, and the agent makes them again where a layout asks for them", name, n))
	}
	keys := []gpu.DeviceKey{{GPU: id}}
	deadline := r.now().Add(wait)
	told := ""
	for { // until nobody is in the way
		inWay, how, err := r.inTheWay(ctx, id, keys)
		if err != nil {
			return result, err
		}
		if inWay == "" {
			break
		}
		text := name + " is in use: " + inWay
		if !r.now().Before(deadline) {
			return result, fmt.Errorf("%s (fix: %s, or wait for the end with --wait)", text, how)
		}
		if text != told {
			tell(text + "; waiting")
			told = text
		}
		select {
		case <-ctx.Done():
			return result, ctx.Err()
		case <-r.after(resetStep):
		}
	}
	defer func() {
		if err := r.ledger.Release(r.holder(), keys); err != nil {
			tell("give " + name + " back to the ledger: " + err.Error())
		}
	}()
	// From here on whoever asked may go away: half a reset is worse than a whole one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resetWithin)
	defer cancel()
	defer r.resume(id)
	tell("nobody uses " + name + "; the agent closes the driver and resets it")
	if err := r.quiesce(ctx, id); err != nil {
		return result, err
	}
	if err := r.reset(ctx, id); err != nil {
		return result, err
	}
	tell(name + " was reset; looking at it again")
	if err := r.rescan(ctx); err != nil {
		return result, err
	}
	now := r.current().GPU(id)
	if now == nil {
		return result, fmt.Errorf("%s: it was reset, and the scan after that does not find it (fix: reboot the node)", name)
	}
	result.State = string(now.Health.State)
	for _, cause := range now.Health.Causes {
		result.Causes = append(result.Causes, v1alpha1.Cause{Code: cause.Code, Message: cause.Message, Since: since(cause.Since), Recover: cause.Recover})
	}
	if !now.Health.OK() {
		return result, fmt.Errorf("%s: it was reset and is still %s: %s", name, result.State, causesOf(now.Health))
	}
	tell(name + " is " + result.State + " and offered again")
	return result, nil
}

// inTheWay takes the GPU in the ledger and looks who has it open; when somebody is in the way it says who, and what to
// do about it, and the GPU is not taken.
func (r *resetter) inTheWay(ctx context.Context, id gpu.UUID, keys []gpu.DeviceKey) (who, how string, err error) {
	if err := r.ledger.Acquire(r.holder(), keys); err != nil {
		var names []string
		for _, h := range r.ledger.Holdings() {
			if h.Key.GPU == id && h.Holder != r.holder() {
				names = append(names, "held by "+resetHolderName(h.Holder))
			}
		}
		slices.Sort(names)
		if len(names) == 0 {
			return "", "", fmt.Errorf("take the GPU out of service: %w", err)
		}
		return strings.Join(slices.Compact(names), "; "), "delete the pods that hold it", nil
	}
	openers, err := r.openers(ctx, id)
	if err == nil && len(openers) == 0 {
		return "", "", nil
	}
	if release := r.ledger.Release(r.holder(), keys); release != nil {
		return "", "", errors.Join(err, release)
	}
	if err != nil {
		return "", "", err
	}
	var names, hows []string
	for _, o := range openers {
		names = append(names, fmt.Sprintf("process %d (%s) has it open", o.PID, o.Program))
		hows = append(hows, o.Stop)
	}
	return strings.Join(names, "; "), strings.Join(slices.Compact(hows), "; "), nil
}

// resetHolderName names who holds a device.
func resetHolderName(h ledger.Holder) string {
	switch {
	case h.Kind == ledger.Claim:
		return "ResourceClaim " + h.ID
	case h.Kind == ledger.Maintenance:
		return "maintenance (" + h.ID + ")"
	case h.Pod != "":
		return "pod " + h.Namespace + "/" + h.Pod
	case h.PodUID != "":
		return "the pod with UID " + h.PodUID
	}
	return "a pod that is being admitted"
}

func since(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t)
	return &at
}

// findCard finds a GPU by its index, its UUID or the beginning of it, or its PCI bus ID.
func findCard(snapshot *gpu.Snapshot, reference string) (*gpu.GPU, error) {
	var found []*gpu.GPU
	address, notPCI := gpu.ParsePCIAddress(reference)
	for i := range snapshot.GPUs {
		card := &snapshot.GPUs[i]
		if strconv.Itoa(card.Index) == reference || notPCI == nil && card.PCI == address ||
			len(reference) >= len("GPU-0") && strings.HasPrefix(string(card.UUID), reference) {
			found = append(found, card)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("this node has no GPU %q; it has %d GPUs (berth gpus --node-local lists them)", reference, len(snapshot.GPUs))
	}
	return nil, fmt.Errorf("%d GPUs of this node begin with %q; write more of the UUID", len(found), reference)
}

// causesOf are the codes of a verdict with their messages.
func causesOf(health gpu.Health) string {
	var parts []string
	for _, cause := range health.Causes {
		parts = append(parts, cause.Code+": "+cause.Message)
	}
	return strings.Join(parts, "; ")
}

// serveReset refuses the command until it is known who holds what.
func (a *Agent) serveReset(w http.ResponseWriter, request *http.Request) {
	select {
	case <-a.compared:
		a.resetter.ServeHTTP(w, request)
	default:
		http.Error(w, "the agent has not yet compared the ledger with the node; try again in a moment", http.StatusServiceUnavailable)
	}
}

// forgetResets gives back what a reset that died with its agent left in the ledger.
func (a *Agent) forgetResets(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.compared:
	}
	if err := a.resetter.forget(); err != nil {
		a.log.Warn("a GPU may stay under maintenance for a reset that has ended", "error", err)
	}
	return nil
}

// ServeHTTP takes the command: POST with the parameters gpu and wait. The answer is a line of JSON for each step, and a last one
// with the result.
func (r *resetter) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	wait := time.Duration(0)
	if text := request.FormValue("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > maxResetWait {
			http.Error(w, fmt.Sprintf("wait %q: want a duration up to %s, as in 5m", text, maxResetWait), http.StatusBadRequest)
			return
		}
	}
	reference := request.FormValue("gpu")
	if reference == "" {
		http.Error(w, "which GPU? give its index, UUID or PCI bus ID", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder := json.NewEncoder(w)
	send := func(line v1alpha1.GPUResetLine) {
		_ = encoder.Encode(line) // The client may be gone; the reset goes on once it has begun.
		_ = http.NewResponseController(w).Flush()
	}
	var steps []v1alpha1.GPUResetStep
	result, err := r.run(request.Context(), reference, wait, func(message string) {
		step := v1alpha1.GPUResetStep{Time: metav1.NewTime(r.now()), Message: message}
		steps = append(steps, step)
		send(v1alpha1.GPUResetLine{Step: &step})
	})
	result.Steps, result.Done = steps, err == nil
	if err != nil {
		result.Error = err.Error()
	}
	send(v1alpha1.GPUResetLine{Result: &result})
}
