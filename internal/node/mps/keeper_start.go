package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// start starts the daemon of a GPU that has none:
//
//  1. the directory, and the journal with the previous compute mode;
//  2. processes and files of an earlier daemon are removed;
//  3. the directories of the daemon and its clients, and the compute mode;
//  4. the daemon, and the journal with its process;
//  5. the limits, as soon as the daemon responds.
func (k *keeper) start(ctx context.Context, want Wanted) (err error) {
	if k.failures > 0 {
		k.restarts++
	}
	k.show(Starting, "the control daemon is being started")
	if err := k.begin(ctx, want); err != nil {
		return err
	}
	if err := k.killLeftovers(ctx, k.gpu); err != nil {
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
	k.show(Starting, "the control daemon has not responded yet")
	err = k.deps.Fault(DaemonStarted)
	if err == nil {
		err = k.awaitFirstAnswer(ctx)
	}
	if err == nil {
		err = k.apply(ctx, want)
	}
	if err != nil && want.MultiUser {
		err = fmt.Errorf("%w (if this driver's control program does not support %s, set singleUser)", err, multiUserFlag)
	}
	if err != nil && ctx.Err() == nil && k.daemon != nil {
		// It has never been Ready, so it has no clients to wait for.
		if ending := k.end(ctx, k.gpu, k.daemon); ending != nil {
			return errors.Join(err, ending)
		}
		k.dropDaemon()
	}
	return err
}

// begin writes the journal before anything is changed.
func (k *keeper) begin(ctx context.Context, want Wanted) error {
	dir := filepath.Join(k.deps.Root, string(k.gpu))
	if err := makeDirectory(dir, 0o711); err != nil {
		return err
	}
	if k.journal == nil {
		mode, err := k.deps.ComputeMode.ComputeMode(ctx, k.gpu)
		if err != nil {
			return fmt.Errorf("read compute mode of %s: %w", k.gpu, err)
		}
		k.journal = &record{PreviousMode: mode}
	}
	k.journal.Wanted, k.journal.PID, k.journal.StartTime = want, 0, 0
	return k.write()
}

// makeDirectory creates a directory with this mode, regardless of the umask.
func makeDirectory(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("open directory to clients: %w", err)
	}
	return nil
}

func (k *keeper) write() error {
	if err := recordOf(k.deps.Root, k.gpu).Save(*k.journal); err != nil {
		return err
	}
	return k.deps.Fault(StateWritten)
}

// directories creates the directories of the daemon and its clients, and returns the program that mounts the daemon's
// /dev/shm. The directories are kept from one daemon to the next, because containers have them mounted.
func (k *keeper) directories() (shim []string, err error) {
	pipe, shm := PipeDir(k.deps.Root, k.gpu), ShmDir(k.deps.Root, k.gpu)
	for _, dir := range []string{pipe, logDir(k.deps.Root, k.gpu), shm} {
		if dir == shm && mounted(shm) {
			continue // a mount has the mode that it was created with
		}
		if err := makeDirectory(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// Sockets of an ended daemon would mislead its clients and the next daemon.
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
		k.remark = "its /dev/shm is not private, and " + shm + " is a plain directory, because this supervisor may not mount; that is sufficient only for simulated hardware"
		if err := os.Chmod(shm, 0o777|os.ModeSticky); err != nil {
			return nil, fmt.Errorf("open %s to clients: %w", shm, err)
		}
	}
	return shim, errors.Join(label(pipe), label(shm))
}

// awaitFirstAnswer writes the process to the journal and waits for its first response.
func (k *keeper) awaitFirstAnswer(ctx context.Context) error {
	k.journal.PID, k.journal.StartTime = k.daemon.handle.pid, k.daemon.start
	if err := k.write(); err != nil {
		return err
	}
	deadline := k.deps.Clock.Now().Add(startTimeout)
	for {
		_, err := k.control(k.gpu).ask(ctx, commandTimeout, "get_default_active_thread_percentage")
		if err == nil {
			return nil
		}
		if !k.deps.Clock.Now().Before(deadline) {
			return fmt.Errorf("the control daemon did not respond within %s: %w; %s", startTimeout, err,
				logTails(logDir(k.deps.Root, k.gpu)))
		}
		timer := k.deps.Clock.NewTimer(startPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-k.daemon.exited:
			timer.Stop()
			err := k.exitError("ended before it responded")
			k.dropDaemon()
			return err
		case <-timer.C():
		}
	}
}
