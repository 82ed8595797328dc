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
	"github.com/berth-gpu/berth/internal/node/statefile"
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
	// remark and lost are worth knowing of a daemon that is Ready; lost is what became of the journal of an earlier supervisor.
	remark, lost string
	// answered is what the daemon said when the limits were last set.
	answered Answer
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
func (k *keeper) rebuild(ctx context.Context, read statefile.Result) *record {
	k.lost = fmt.Sprintf("%s: %v; the compute mode before MPS is taken to be the default", read.Code(), read.Err)
	k.deps.Log.Error("journal of MPS lost; the compute mode before MPS is taken to be the default", "gpu", k.gpu, "code", read.Code(), "error", read.Err)
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err != nil || mode == modeExclusiveProcess {
		mode = modeDefault
	}
	return &record{Wanted: Wanted{GPU: k.gpu}, PreviousMode: mode}
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
	case want == nil && k.isUndecided(k.gpu):
		k.show(Starting, "what is wanted of it is lost: it is left as it is until the agent says what it wants")
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
	if _, wanted := k.wishes[k.gpu]; !wanted && !k.undecided[k.gpu] || k.closing {
		state = Stopping
	}
	k.note(k.gpu, func(st *Status) {
		st.State, st.Reason, st.PID, st.Restarts = state, reason, 0, k.restarts
		if k.daemon != nil {
			st.PID = k.daemon.handle.pid
		}
	})
}

func (k *keeper) showAnswer(answer Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(k.gpu, func(st *Status) { st.Answer = answer })
}

func (k *keeper) showLimits(limits Limits, answer Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(k.gpu, func(st *Status) { st.Limits, st.Answer = limits, answer })
}

// died takes note of a daemon that ended by itself.
func (k *keeper) died() {
	err := k.obituary("ended by itself")
	if !k.silentSince.IsZero() && k.failures > 0 {
		k.failures-- // It was asked while it died, and that it did not answer was the same trouble.
	}
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
	k.answered = Answer{}
	k.showLimits(Limits{}, Answer{})
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
	is, err := control.answer(ctx)
	if errors.Is(err, errUnanswered) {
		return k.silent(ctx, err)
	}
	if err != nil {
		return err
	}
	k.silentSince = time.Time{}
	k.showAnswer(is)
	mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
	if err == nil && mode != modeExclusiveProcess {
		err = k.deps.ComputeMode.SetComputeMode(ctx, k.gpu, modeExclusiveProcess)
	}
	if err != nil {
		return fmt.Errorf("set compute mode of %s to exclusive process: %w", k.gpu, err)
	}
	// The journal is behind after an adoption, and when the change before was cut off.
	fresh := k.journal.Wanted != want || k.journal.PID != k.daemon.handle.pid
	remark, wrong := is.judge(want.limits())
	if wrong != nil || fresh || is != k.answered {
		k.journal.Wanted, k.journal.PID, k.journal.StartTime = want, k.daemon.handle.pid, k.daemon.start
		if err := k.write(); err != nil {
			return err
		}
		if remark, err = k.limit(ctx, want.limits()); err != nil {
			return err
		}
	}
	k.settle()
	if k.readyAt.IsZero() {
		k.readyAt = k.deps.Clock.Now()
		k.deps.Log.Info("MPS daemon ready", "gpu", k.gpu, "index", want.Index, "replicas", want.Replicas, "pid", k.daemon.handle.pid,
			"pinnedMemoryMiB", want.PinnedMemoryMiB, "activeThreadPercentage", want.ActiveThreadPercentage, "answeredMemory", k.answered.PinnedMemory)
	}
	k.show(Ready, strings.Join(slices.DeleteFunc([]string{k.remark, remark, k.lost}, func(text string) bool { return text == "" }), "; "))
	return nil
}

// limit sets limits and asks for them again.
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
		// The failures so far were to be answered, and the wait was long enough.
		k.failures = 0
	}
	<-k.daemon.exited
	err = k.obituary(how)
	k.forget()
	return err
}
