package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

const (
	// checkEvery is how often a Ready daemon is checked.
	checkEvery = 30 * time.Second
	// clientsEvery is how often the clients of a daemon that has to be restarted are counted.
	clientsEvery = 5 * time.Second
	// startTimeout is how long a new daemon may take to respond, startPoll how often it is queried until then.
	startTimeout = 30 * time.Second
	startPoll    = 50 * time.Millisecond
	// unresponsiveTimeout is how long a running daemon may not respond before it is killed.
	unresponsiveTimeout = 2 * time.Minute
	// settled is how long a daemon has to be Ready before its failure count is reset.
	settled = time.Minute
	// shutdownTimeout bounds the shutdown of a supervisor; its pod's grace period must be longer.
	shutdownTimeout = 45 * time.Second
)

// keeper reconciles the daemon of one GPU. All fields but wake belong to the goroutine of run.
type keeper struct {
	*Supervisor
	gpu  gpu.UUID
	wake *signal.Signal

	journal *record
	daemon  *daemon
	// remark and lost are shown in the status of a Ready daemon; lost says what happened to the journal of an earlier
	// supervisor.
	remark string
	lost   string
	// answered is what the daemon reported when the limits were last set.
	answered Answer
	// failures counts the failures since the daemon was last Ready for the settled time. The next attempt is at
	// retryAt, or earlier if the wanted state differs from tried.
	failures int
	retryAt  time.Time
	tried    *Wanted
	readyAt  time.Time
	restarts int
	// unresponsiveSince is when the daemon first did not respond.
	unresponsiveSince time.Time
}

func (k *keeper) run(ctx context.Context) {
	<-k.wake.C() // The first step below is for the first signal.
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
		case <-k.wake.C():
		case <-timer.C():
		case <-exited:
			k.recordExit()
		}
		timer.Stop()
	}
	k.shutDown(ctx)
}

// recover restores the journal and the daemon that an earlier supervisor left on this GPU.
func (k *keeper) recover(ctx context.Context) {
	journal, read := recordOf(k.deps.Root, k.gpu).Load()
	switch {
	case read.Lost():
		k.journal = k.rebuild(ctx, read)
	case read.State == statefile.Present:
		k.journal = &journal
	}
	d, err := k.adopt(k.gpu, k.journal)
	switch {
	case err != nil:
		k.deps.Log.Error("Failed to look for an MPS daemon of an earlier supervisor", "gpu", k.gpu, "error", err)
	case d == nil:
	case k.answers(ctx, d):
		k.daemon = d
		k.deps.Log.Info("Adopted MPS daemon", "gpu", k.gpu, "pid", d.handle.pid)
	default:
		k.deps.Log.Warn("MPS daemon of an earlier supervisor did not respond and will be ended", "gpu", k.gpu, "pid", d.handle.pid)
		if err := k.kill(k.gpu, d, unix.SIGKILL); err != nil {
			k.deps.Log.Error("MPS daemon", "gpu", k.gpu, "error", err)
		}
		d.handle.close()
	}
}

// rebuild replaces a lost journal. Only this supervisor sets exclusive process on a GPU that has a directory below the
// root, so the previous mode is assumed to be the default.
func (k *keeper) rebuild(ctx context.Context, read statefile.Result) *record {
	k.lost = fmt.Sprintf("%s: %v; the compute mode before MPS is assumed to be the default", read.Code(), read.Err)
	k.deps.Log.Error("MPS journal is lost; the compute mode before MPS is assumed to be the default", "gpu", k.gpu,
		"code", read.Code(), "error", read.Err)
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err != nil || mode == modeExclusiveProcess {
		mode = modeDefault
	}
	return &record{Wanted: Wanted{GPU: k.gpu}, PreviousMode: mode}
}

// converge takes the next step and returns how long to wait for the one after it; done ends the keeper.
func (k *keeper) converge(ctx context.Context) (pause time.Duration, done bool) {
	want := k.wantedFor(k.gpu)
	if rest := k.retryAt.Sub(k.deps.Clock.Now()); rest > 0 && same(want, k.tried) {
		return rest, false
	}
	k.retryAt = time.Time{}
	var err error
	pause = checkEvery
	switch {
	case want == nil && k.isUndecided(k.gpu):
		k.show(Starting, "its wanted state is lost; it is left unchanged until the agent sends a wanted set")
	case want == nil:
		if err = k.stop(ctx); err == nil {
			return 0, k.retire(k.gpu)
		}
	case k.daemon == nil:
		err = k.start(ctx, *want)
	case k.needsRestart(*want):
		pause, err = k.restartWhenIdle(ctx, *want)
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

// fail publishes an error and returns the pause before the next attempt.
func (k *keeper) fail(want *Wanted, err error) time.Duration {
	k.failures++
	pause := backoff(k.failures)
	k.retryAt, k.tried = k.deps.Clock.Now().Add(pause), want
	state := Failed
	if want == nil {
		state = Stopping
	}
	k.show(state, fmt.Sprintf("%v; next attempt in %s", err, pause))
	k.deps.Log.Error("MPS daemon", "gpu", k.gpu, "state", state, "error", err, "retry", pause)
	return pause
}

// show publishes the status of the daemon.
func (k *keeper) show(state State, reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, wanted := k.wishes[k.gpu]; !wanted && !k.undecided[k.gpu] || k.closing {
		state = Stopping
	}
	k.updateStatus(k.gpu, func(st *Status) {
		st.State, st.Reason, st.PID, st.Restarts = state, reason, 0, k.restarts
		if k.daemon != nil {
			st.PID = k.daemon.handle.pid
		}
	})
}

func (k *keeper) showAnswer(answer Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.updateStatus(k.gpu, func(st *Status) { st.Answer = answer })
}

func (k *keeper) showLimits(limits Limits, answer Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.updateStatus(k.gpu, func(st *Status) { st.Limits, st.Answer = limits, answer })
}

// recordExit publishes that the daemon ended by itself.
func (k *keeper) recordExit() {
	err := k.exitError("ended by itself")
	if !k.unresponsiveSince.IsZero() && k.failures > 0 {
		k.failures-- // The unanswered command that was counted before has the same cause.
	}
	k.dropDaemon()
	k.fail(k.wantedFor(k.gpu), err)
}

// settle resets the failure count of a daemon that has been Ready for the settled time.
func (k *keeper) settle() {
	if !k.readyAt.IsZero() && k.deps.Clock.Since(k.readyAt) >= settled {
		k.failures = 0
	}
}

// exitError describes how a daemon ended, with the last lines of its logs.
func (k *keeper) exitError(how string) error {
	return fmt.Errorf("the control daemon (process %d) %s: %s; %s", k.daemon.handle.pid, how, k.daemon.cause,
		logTails(logDir(k.deps.Root, k.gpu)))
}

// dropDaemon clears the state of a daemon that has ended.
func (k *keeper) dropDaemon() {
	k.daemon.handle.close()
	k.daemon, k.readyAt, k.unresponsiveSince = nil, time.Time{}, time.Time{}
	k.answered = Answer{}
	k.showLimits(Limits{}, Answer{})
}

// answers reports whether a daemon accepts commands.
func (k *keeper) answers(ctx context.Context, d *daemon) bool {
	_, err := k.control(k.gpu).ask(ctx, commandTimeout, "get_default_active_thread_percentage")
	return err == nil && d.handle.alive()
}

// apply checks a running daemon and sets what can be changed without a restart: the compute mode and the limits.
func (k *keeper) apply(ctx context.Context, want Wanted) error {
	boundLogs(logDir(k.deps.Root, k.gpu))
	control := k.control(k.gpu)
	is, err := control.answer(ctx)
	if errors.Is(err, errUnanswered) {
		return k.handleUnresponsive(ctx, err)
	}
	if err != nil {
		return err
	}
	k.unresponsiveSince = time.Time{}
	k.showAnswer(is)
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err == nil && mode != modeExclusiveProcess {
		err = k.deps.ComputeMode.SetComputeMode(ctx, k.gpu, modeExclusiveProcess)
	}
	if err != nil {
		return fmt.Errorf("set compute mode of %s to exclusive process: %w", k.gpu, err)
	}
	// The journal is stale after an adoption, and when the previous change was interrupted.
	fresh := k.journal.Wanted != want || k.journal.PID != k.daemon.handle.pid
	remark, wrong := is.judge(want.Limits)
	if wrong != nil || fresh || is != k.answered {
		k.journal.Wanted, k.journal.PID, k.journal.StartTime = want, k.daemon.handle.pid, k.daemon.start
		if err := k.write(); err != nil {
			return err
		}
		if remark, err = k.limit(ctx, want.Limits); err != nil {
			return err
		}
	}
	k.settle()
	if k.readyAt.IsZero() {
		k.readyAt = k.deps.Clock.Now()
		k.deps.Log.Info("MPS daemon is ready", "gpu", k.gpu, "index", want.Index, "replicas", want.Replicas, "pid", k.daemon.handle.pid,
			"pinnedMemoryMiB", want.PinnedMemoryMiB, "activeThreadPercentage", want.ActiveThreadPercentage, "answeredMemory", k.answered.PinnedMemory)
	}
	k.show(Ready, strings.Join(slices.DeleteFunc([]string{k.remark, remark, k.lost}, func(text string) bool { return text == "" }), "; "))
	return nil
}

// limit sets limits and reads them back.
func (k *keeper) limit(ctx context.Context, limits Limits) (remark string, err error) {
	control := k.control(k.gpu)
	if err := control.setLimits(ctx, limits); err != nil {
		return "", err
	}
	answer, err := control.answer(ctx)
	if err != nil {
		return "", err
	}
	k.answered = answer
	k.showLimits(limits, answer)
	if remark, err = answer.judge(limits); err != nil {
		return "", err
	}
	return remark, k.deps.Fault(LimitsSet)
}

// handleUnresponsive handles a daemon that runs and does not respond. It may be busy, and its clients end with it, so
// it is killed only after unresponsiveTimeout.
func (k *keeper) handleUnresponsive(ctx context.Context, err error) error {
	now := k.deps.Clock.Now()
	if k.unresponsiveSince.IsZero() {
		k.unresponsiveSince = now
	}
	how := "ended by itself"
	if k.daemon.handle.alive() {
		if ctx.Err() != nil || now.Sub(k.unresponsiveSince) < unresponsiveTimeout {
			return err
		}
		how = fmt.Sprintf("was killed after %s without a response", unresponsiveTimeout)
		if err := k.kill(k.gpu, k.daemon, unix.SIGKILL); err != nil {
			return err
		}
		// The failures were due to this daemon, so the next one starts without a pause.
		k.failures = 0
	}
	<-k.daemon.exited
	err = k.exitError(how)
	k.dropDaemon()
	return err
}
