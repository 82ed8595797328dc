package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/gpu"
)

const (
	// checkEvery is how often a daemon that is Ready is asked whether it still is.
	checkEvery = 30 * time.Second
	// idleEvery is how often a daemon that has to be started anew is asked for its clients.
	idleEvery = 5 * time.Second
	// startPatience is how long a daemon may take to answer, startPoll how often it is asked meanwhile.
	startPatience = 30 * time.Second
	startPoll     = 50 * time.Millisecond
	// silence is how long a daemon may live without an answer before it is ended.
	silence = 2 * time.Minute
	// settled is how long a daemon has to be Ready for its earlier failures not to count any more.
	settled = time.Minute
	// farewell bounds the end of a supervisor; its pod has to have that long.
	farewell = 45 * time.Second
)

// keeper brings one GPU to what is wanted of it. All but wake belongs to the goroutine of run.
type keeper struct {
	*Supervisor
	gpu  gpu.UUID
	wake chan struct{}

	journal *record
	daemon  *daemon
	// remark is worth knowing of a daemon that is Ready.
	remark string
	// failures count since the daemon was last Ready for a while; the next attempt is not before
	// retryAt, unless something else than tried is wanted by then.
	failures int
	retryAt  time.Time
	tried    *Wanted
	readyAt  time.Time
	restarts int
	// silentSince is when a daemon first did not answer.
	silentSince time.Time
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run(ctx context.Context) {
	k.recover(ctx)
	for ctx.Err() == nil {
		pause, done := k.converge(ctx)
		if done {
			return
		}
		if pause <= 0 {
			continue
		}
		var exited chan struct{}
		if k.daemon != nil {
			exited = k.daemon.exited
		}
		timer := k.deps.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-timer.C():
		case <-exited:
			k.died()
		}
		timer.Stop()
	}
	k.leave(ctx)
}

// recover learns what an earlier supervisor left of this GPU.
func (k *keeper) recover(ctx context.Context) {
	journal, err := readRecord(k.deps.Root, k.gpu)
	if err != nil {
		journal = k.rebuild(ctx, err)
	}
	k.journal = journal
	d, err := k.adopt(k.gpu, journal)
	switch {
	case err != nil:
		k.deps.Log.Error("MPS daemon of an earlier supervisor not looked for", "gpu", k.gpu, "error", err)
	case d == nil:
	case k.answers(ctx, d):
		k.daemon = d
		k.deps.Log.Info("MPS daemon adopted", "gpu", k.gpu, "pid", d.handle.pid)
	default:
		k.deps.Log.Warn("MPS daemon of an earlier supervisor does not answer and is ended", "gpu", k.gpu, "pid", d.handle.pid)
		if err := k.kill(k.gpu, d, unix.SIGKILL); err != nil {
			k.deps.Log.Error("MPS daemon", "gpu", k.gpu, "error", err)
		}
		d.handle.close()
	}
}

// rebuild makes up for a journal that was lost: nobody but us sets exclusive process on a GPU that we have a
// folder for, so the mode before is taken to be the default.
func (k *keeper) rebuild(ctx context.Context, cause error) *record {
	k.deps.Log.Error("journal of MPS lost; the compute mode before MPS is taken to be the default", "gpu", k.gpu, "error", cause)
	if errors.Is(cause, errCorrupt) {
		_ = setAside(recordPath(k.deps.Root, k.gpu))
	}
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err != nil || mode == modeExclusiveProcess {
		mode = modeDefault
	}
	return &record{Version: fileVersion, Wanted: Wanted{GPU: k.gpu}, PreviousMode: mode}
}

// converge does what is to be done now, and says when to look again; done ends the keeper.
func (k *keeper) converge(ctx context.Context) (pause time.Duration, done bool) {
	want := k.wish(k.gpu)
	if rest := k.retryAt.Sub(k.deps.Clock.Now()); rest > 0 && same(want, k.tried) {
		return rest, false
	}
	k.retryAt = time.Time{}
	var err error
	pause = checkEvery
	switch {
	case want == nil:
		if err = k.stop(ctx); err == nil {
			return 0, k.retire(k.gpu)
		}
	case k.daemon == nil:
		err = k.start(ctx, *want)
	case k.needsRestart(*want):
		pause, err = k.renew(ctx, *want)
	default:
		err = k.apply(ctx, *want)
	}
	if ctx.Err() != nil {
		return 0, false
	}
	if err == nil {
		return pause, false
	}
	return k.fail(want, err), false
}

func same(a, b *Wanted) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// fail shows why something could not be done and says when it is tried again.
func (k *keeper) fail(want *Wanted, err error) time.Duration {
	k.failures++
	pause := backoff(k.failures)
	k.retryAt, k.tried = k.deps.Clock.Now().Add(pause), want
	state := Failed
	if want == nil {
		state = Stopping
	}
	k.show(state, fmt.Sprintf("%v; tried again in %s", err, pause))
	k.deps.Log.Error("MPS daemon", "gpu", k.gpu, "state", state, "error", err, "retry", pause)
	return pause
}

// show publishes what is known of the daemon.
func (k *keeper) show(state State, reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, wanted := k.wishes[k.gpu]; !wanted || k.closing {
		state = Stopping
	}
	k.note(k.gpu, func(st *Status) {
		st.State, st.Reason, st.PID, st.Restarts = state, reason, 0, k.restarts
		if k.daemon != nil {
			st.PID = k.daemon.handle.pid
		}
	})
}

func (k *keeper) showLimits(limits Limits) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(k.gpu, func(st *Status) { st.Limits = limits })
}

// died takes note of a daemon that ended by itself.
func (k *keeper) died() {
	k.settle()
	err := k.obituary("ended by itself")
	k.forget()
	k.fail(k.wish(k.gpu), err)
}

// settle forgives the failures of a daemon that has been Ready for long enough.
func (k *keeper) settle() {
	if !k.readyAt.IsZero() && k.deps.Clock.Since(k.readyAt) >= settled {
		k.failures = 0
	}
}

// obituary says how a daemon ended, and its last words.
func (k *keeper) obituary(how string) error {
	return fmt.Errorf("the control daemon (process %d) %s: %s; %s", k.daemon.handle.pid, how, k.daemon.cause, lastWords(LogDir(k.deps.Root, k.gpu)))
}

// forget lets go of a daemon that has ended.
func (k *keeper) forget() {
	k.daemon.handle.close()
	k.daemon, k.readyAt, k.silentSince = nil, time.Time{}, time.Time{}
	k.showLimits(Limits{})
}

// start brings up the daemon of a GPU that has none:
//
//  1. the directory, and the journal with the compute mode of before;
//  2. nothing of an earlier daemon is left, neither process nor file;
//  3. the directories of daemon and clients, and the compute mode;
//  4. the daemon, and the journal again with its process;
//  5. as soon as it answers, the limits.
func (k *keeper) start(ctx context.Context, want Wanted) (err error) {
	if k.failures > 0 {
		k.restarts++
	}
	k.show(Starting, "the control daemon is being started")
	if err := k.begin(ctx, want); err != nil {
		return err
	}
	if err := k.sweep(ctx, k.gpu); err != nil {
		return err
	}
	shim, err := k.directories()
	if err != nil {
		return err
	}
	if err := k.deps.ComputeMode.SetComputeMode(ctx, k.gpu, modeExclusiveProcess); err != nil {
		return fmt.Errorf("set compute mode of %s to exclusive process: %w", k.gpu, err)
	}
	if err := k.deps.Fault(ModeSet); err != nil {
		return err
	}
	if k.daemon, err = k.launch(want, shim); err != nil {
		return err
	}
	k.show(Starting, "the control daemon has not answered yet")
	err = k.deps.Fault(DaemonStarted)
	if err == nil {
		err = k.awake(ctx)
	}
	if err == nil {
		err = k.apply(ctx, want)
	}
	if err != nil && want.MultiUser {
		err = fmt.Errorf("%w (if this driver's control program does not know %s, set singleUser)", err, multiUserFlag)
	}
	if err != nil && ctx.Err() == nil && k.daemon != nil {
		// It has never been Ready, so it has no clients that count.
		if ending := k.end(ctx, k.gpu, k.daemon); ending != nil {
			return errors.Join(err, ending)
		}
		k.forget()
	}
	return err
}

// begin writes the journal before anything is changed.
func (k *keeper) begin(ctx context.Context, want Wanted) error {
	dir := filepath.Join(k.deps.Root, string(k.gpu))
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if k.journal == nil {
		mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
		if err != nil {
			return fmt.Errorf("read compute mode of %s: %w", k.gpu, err)
		}
		k.journal = &record{Version: fileVersion, PreviousMode: mode}
	}
	k.journal.Wanted, k.journal.PID, k.journal.StartTime = want, 0, 0
	return k.write()
}

func (k *keeper) write() error {
	if err := writeJSON(recordPath(k.deps.Root, k.gpu), k.journal); err != nil {
		return err
	}
	return k.deps.Fault(StateWritten)
}

// directories makes what daemon and clients need and returns the program that gives the daemon its
// /dev/shm. The folders stay from one daemon to the next, since containers have them mounted.
func (k *keeper) directories() (shim []string, err error) {
	pipe, shm := PipeDir(k.deps.Root, k.gpu), ShmDir(k.deps.Root, k.gpu)
	for _, dir := range []string{pipe, LogDir(k.deps.Root, k.gpu), shm} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	// Sockets of a dead daemon would make its clients, and the next daemon, believe in it.
	stale, err := os.ReadDir(pipe)
	if err != nil {
		return nil, fmt.Errorf("clean %s: %w", pipe, err)
	}
	for _, entry := range stale {
		if err := os.RemoveAll(filepath.Join(pipe, entry.Name())); err != nil {
			return nil, fmt.Errorf("clean %s: %w", pipe, err)
		}
	}
	k.remark = ""
	private := false
	if len(k.deps.Shim) > 0 {
		if private, err = mountShm(shm); err != nil {
			return nil, err
		}
	}
	if private {
		shim = append(append([]string(nil), k.deps.Shim...), shm, "--")
	} else {
		k.remark = "its /dev/shm is not private and " + shm + " is a plain directory: this supervisor may not mount, which is enough for simulated hardware only"
		if err := os.Chmod(shm, 0o777|os.ModeSticky); err != nil {
			return nil, fmt.Errorf("open %s to clients: %w", shm, err)
		}
	}
	return shim, errors.Join(label(pipe), label(shm))
}

// awake journals the process and waits for its first answer.
func (k *keeper) awake(ctx context.Context) error {
	k.journal.PID, k.journal.StartTime = k.daemon.handle.pid, k.daemon.start
	if err := k.write(); err != nil {
		return err
	}
	deadline := k.deps.Clock.Now().Add(startPatience)
	for {
		_, err := k.control(k.gpu).ask(ctx, answerTime, "get_default_active_thread_percentage")
		if err == nil {
			return nil
		}
		if !k.deps.Clock.Now().Before(deadline) {
			return fmt.Errorf("the control daemon has not answered within %s: %w; %s", startPatience, err, lastWords(LogDir(k.deps.Root, k.gpu)))
		}
		timer := k.deps.Clock.NewTimer(startPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-k.daemon.exited:
			timer.Stop()
			err := k.obituary("ended before it answered")
			k.forget()
			return err
		case <-timer.C():
		}
	}
}

// answers tells whether a daemon that was found takes commands.
func (k *keeper) answers(ctx context.Context, d *daemon) bool {
	_, err := k.control(k.gpu).ask(ctx, answerTime, "get_default_active_thread_percentage")
	return err == nil && d.handle.alive()
}

// apply makes sure of what may change while a daemon runs: that it lives, the compute mode and the limits.
func (k *keeper) apply(ctx context.Context, want Wanted) error {
	boundLogs(LogDir(k.deps.Root, k.gpu))
	control := k.control(k.gpu)
	is, err := control.limits(ctx, k.daemon.multiUser)
	if errors.Is(err, errUnanswered) {
		return k.silent(ctx, err)
	}
	if err != nil {
		return err
	}
	k.silentSince = time.Time{}
	k.showLimits(is)
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err == nil && mode != modeExclusiveProcess {
		err = k.deps.ComputeMode.SetComputeMode(ctx, k.gpu, modeExclusiveProcess)
	}
	if err != nil {
		return fmt.Errorf("set compute mode of %s to exclusive process: %w", k.gpu, err)
	}
	// The journal is behind after an adoption, and when the change before was cut off.
	fresh := k.journal.Wanted != want || k.journal.PID != k.daemon.handle.pid
	if is != want.limits() || fresh {
		k.journal.Wanted, k.journal.PID, k.journal.StartTime = want, k.daemon.handle.pid, k.daemon.start
		if err := k.write(); err != nil {
			return err
		}
		if is, err = k.limit(ctx, want.limits()); err != nil {
			return err
		}
		k.showLimits(is)
	}
	k.settle()
	if k.readyAt.IsZero() {
		k.readyAt = k.deps.Clock.Now()
		k.deps.Log.Info("MPS daemon ready", "gpu", k.gpu, "index", want.Index, "replicas", want.Replicas, "pid", k.daemon.handle.pid,
			"pinnedMemoryMiB", is.PinnedMemoryMiB, "activeThreadPercentage", is.ActiveThreadPercentage)
	}
	k.show(Ready, k.remark)
	return nil
}

// limit sets limits and reads them back.
func (k *keeper) limit(ctx context.Context, limits Limits) (Limits, error) {
	control := k.control(k.gpu)
	if err := control.setLimits(ctx, limits); err != nil {
		return Limits{}, err
	}
	is, err := control.limits(ctx, k.daemon.multiUser)
	if err != nil {
		return Limits{}, err
	}
	if is != limits {
		return Limits{}, fmt.Errorf("the control daemon answers limits of %d MiB and %d %% after %d MiB and %d %% were set",
			is.PinnedMemoryMiB, is.ActiveThreadPercentage, limits.PinnedMemoryMiB, limits.ActiveThreadPercentage)
	}
	return is, k.deps.Fault(LimitsSet)
}

// silent deals with a daemon that lives and does not answer. It may be busy, and its clients end with it, so
// it has a while.
func (k *keeper) silent(ctx context.Context, err error) error {
	now := k.deps.Clock.Now()
	if k.silentSince.IsZero() {
		k.silentSince = now
	}
	how := "ended by itself"
	if k.daemon.handle.alive() {
		if ctx.Err() != nil || now.Sub(k.silentSince) < silence {
			return err
		}
		how = fmt.Sprintf("was ended after %s without an answer", silence)
		if err := k.kill(k.gpu, k.daemon, unix.SIGKILL); err != nil {
			return err
		}
	}
	<-k.daemon.exited
	k.settle()
	err = k.obituary(how)
	k.forget()
	return err
}

// needsRestart tells whether no command brings the daemon to what is wanted.
func (k *keeper) needsRestart(want Wanted) bool {
	limited := k.journal != nil && k.journal.Wanted.PinnedMemoryMiB != NoLimit
	return k.daemon.multiUser != want.MultiUser || limited && want.PinnedMemoryMiB == NoLimit
}

// renew starts the daemon anew once it has no clients.
func (k *keeper) renew(ctx context.Context, want Wanted) (time.Duration, error) {
	clients, err := k.control(k.gpu).clients(ctx)
	if errors.Is(err, errUnanswered) {
		return 0, k.silent(ctx, err)
	}
	if err != nil {
		return 0, err
	}
	if clients > 0 {
		k.show(Starting, fmt.Sprintf("the change needs a new control daemon, which waits for %d client processes to end", clients))
		return idleEvery, nil
	}
	k.show(Starting, "the change needs a new control daemon")
	if err := k.end(ctx, k.gpu, k.daemon); err != nil {
		return 0, err
	}
	k.forget()
	return checkEvery, k.start(ctx, want)
}

// stop takes everything of this GPU away, the journal last.
func (k *keeper) stop(ctx context.Context) error {
	k.show(Stopping, "it is being stopped")
	if k.daemon != nil {
		if err := k.end(ctx, k.gpu, k.daemon); err != nil {
			return err
		}
		k.forget()
		k.show(Stopping, "its compute mode is being restored")
	}
	if err := k.sweep(ctx, k.gpu); err != nil {
		return err
	}
	if err := k.deps.Fault(Quit); err != nil {
		return err
	}
	if k.journal != nil {
		if err := k.deps.ComputeMode.SetComputeMode(ctx, k.gpu, k.journal.PreviousMode); err != nil {
			return fmt.Errorf("restore compute mode of %s: %w", k.gpu, err)
		}
	}
	if err := k.deps.Fault(ModeRestored); err != nil {
		return err
	}
	if err := k.remove(); err != nil {
		return err
	}
	k.journal = nil
	return k.deps.Fault(Removed)
}

func (k *keeper) remove() error {
	// Never through a mount: what is in it is the clients'.
	if err := unmountShm(ShmDir(k.deps.Root, k.gpu)); err != nil {
		return err
	}
	for _, dir := range []string{PipeDir(k.deps.Root, k.gpu), LogDir(k.deps.Root, k.gpu), ShmDir(k.deps.Root, k.gpu), filepath.Join(k.deps.Root, string(k.gpu))} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove directory: %w", err)
		}
	}
	return nil
}

// leave is the end of the supervisor: the same as not wanted, but for what is on disk.
func (k *keeper) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := k.stop(ctx); err != nil {
		k.deps.Log.Error("MPS daemon not taken down; the next supervisor does it", "gpu", k.gpu, "error", err)
		if k.daemon != nil {
			k.daemon.handle.close()
		}
	}
	k.mu.Lock()
	delete(k.keepers, k.gpu)
	k.mu.Unlock()
}
