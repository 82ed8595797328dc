package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// needsRestart reports whether the change needs a new daemon, because no command makes it.
func (k *keeper) needsRestart(want Wanted) bool {
	limited := k.journal != nil && k.journal.Wanted.PinnedMemoryMiB != NoLimit
	return k.daemon.multiUser != want.MultiUser || limited && want.PinnedMemoryMiB == NoLimit
}

// restartWhenIdle restarts the daemon once it has no clients.
func (k *keeper) restartWhenIdle(ctx context.Context, want Wanted) (time.Duration, error) {
	clients, err := k.control(k.gpu).clients(ctx)
	if errors.Is(err, errUnanswered) {
		return 0, k.handleUnresponsive(ctx, err)
	}
	if err != nil {
		return 0, err
	}
	if clients > 0 {
		k.show(Starting, fmt.Sprintf("the change needs a new control daemon, which starts when %d client processes have ended", clients))
		return clientsEvery, nil
	}
	k.show(Starting, "the change needs a new control daemon")
	if err := k.end(ctx, k.gpu, k.daemon); err != nil {
		return 0, err
	}
	k.dropDaemon()
	return checkEvery, k.start(ctx, want)
}

// stop removes everything of this GPU, the journal last.
func (k *keeper) stop(ctx context.Context) error {
	k.show(Stopping, "it is being stopped")
	if k.daemon != nil {
		if err := k.end(ctx, k.gpu, k.daemon); err != nil {
			return err
		}
		k.dropDaemon()
		k.show(Stopping, "its compute mode is being restored")
	}
	if err := k.killLeftovers(ctx, k.gpu); err != nil {
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
	// Never removes through a mount, whose files belong to the clients.
	if err := unmountShm(ShmDir(k.deps.Root, k.gpu)); err != nil {
		return err
	}
	for _, dir := range []string{PipeDir(k.deps.Root, k.gpu), logDir(k.deps.Root, k.gpu), ShmDir(k.deps.Root, k.gpu),
		filepath.Join(k.deps.Root, string(k.gpu))} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove directory: %w", err)
		}
	}
	return nil
}

// shutDown stops the daemon at the end of the supervisor, as if it were not wanted, but keeps the wanted set on disk.
func (k *keeper) shutDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := k.stop(ctx); err != nil {
		k.deps.Log.Error("Failed to stop MPS daemon; the next supervisor stops it", "gpu", k.gpu, "error", err)
		if k.daemon != nil {
			k.daemon.handle.close()
		}
	}
	k.mu.Lock()
	delete(k.keepers, k.gpu)
	k.mu.Unlock()
}
