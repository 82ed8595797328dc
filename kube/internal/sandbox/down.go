package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Down removes the sandbox in dir: its processes, mounts, cgroups, network and files, whatever state they are in. A
// missing sandbox is not an error.
func Down(ctx context.Context, dir string, w io.Writer) error {
	if w == nil {
		w = io.Discard
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("take sandbox down: %w", err)
	}
	p := newProgress(w)
	s, err := readState(dir)
	switch {
	case errors.Is(err, ErrNotRunning):
		// Only resources named after the directory; its files do not belong to a sandbox.
		left, err := FindLeftovers(dir)
		if err != nil {
			return err
		}
		left.Files = ""
		if left.Empty() {
			p.step("no sandbox in %s", dir)
			return nil
		}
		p.step("removing %s", left)
		return left.clear(ctx)
	case err != nil:
		return err
	}
	if _, err := updateState(dir, func(s *State) { s.Phase = phaseStopping }); err != nil {
		return err
	}
	if err := s.stopProcesses(ctx); err != nil {
		return err
	}
	p.step("stopped %d process(es)", len(s.Processes))
	left, err := FindLeftovers(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(left.clear(ctx), restoreSysctls(s.Sysctls)); err != nil {
		return err
	}
	if left, err = FindLeftovers(dir); err != nil {
		return err
	}
	if !left.Empty() {
		return fmt.Errorf("take sandbox down: still exists: %s", left)
	}
	p.step("nothing is left of the sandbox in %s", dir)
	return nil
}

// stopProcesses ends the recorded processes, those with state last. Nothing is drained, because all of it is discarded.
func (s *State) stopProcesses(ctx context.Context) error {
	if s.BootID != bootID() {
		return nil // the PIDs are from before a restart of the machine
	}
	var errs []error
	for _, v := range slices.Backward(s.Processes) {
		errs = append(errs, v.Stop(ctx, syscall.SIGKILL, 10*time.Second))
	}
	return errors.Join(errs...)
}

// clear removes what was found.
func (l Leftovers) clear(ctx context.Context) error {
	cgroups, err := detectCgroups("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, pid := range l.Processes {
		// The PIDs were just read from the sandbox's cgroup or namespace. The start time protects against the reuse of
		// a PID.
		if t, err := startTime(pid); err == nil {
			Process{PID: pid, StartTime: t}.Signal(syscall.SIGKILL)
		}
	}
	for _, root := range cgroups.all() {
		for _, dir := range l.Cgroups {
			path, err := filepath.Rel(root, dir)
			if err != nil || !filepath.IsLocal(path) {
				continue
			}
			if left := cgroups.kill(path, 20*time.Second); len(left) > 0 {
				return fmt.Errorf("kill processes %v in cgroup %s: they do not end", left, dir)
			}
		}
	}
	if err := unmountAll(l.Mounts); err != nil {
		return err
	}
	var errs []error
	for _, dir := range l.Cgroups {
		errs = append(errs, (&cgroupFS{roots: []string{filepath.Dir(dir)}}).remove(filepath.Base(dir)))
	}
	errs = append(errs, returnDirs(borrowed()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if l.Files == "" {
		return nil
	}
	// It never deletes through a mount, because the mounted files may be the user's.
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if below := mountsBelow(mounts, l.Files); len(below) > 0 {
		return fmt.Errorf("remove %s: %v is mounted there", l.Files, below)
	}
	// The state file is removed last, so that an interrupted removal can be continued.
	entries, err := os.ReadDir(l.Files)
	if err != nil {
		return fmt.Errorf("remove sandbox directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(statePath(l.Files)) {
			errs = append(errs, os.RemoveAll(filepath.Join(l.Files, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove sandbox directory: %w", err)
	}
	return os.RemoveAll(l.Files)
}

func restoreSysctls(before map[string]string) error {
	var errs []error
	for name, value := range before {
		path := "/proc/sys/" + name
		if now, err := os.ReadFile(path); err != nil || string(now) == value+"\n" {
			continue
		}
		errs = append(errs, os.WriteFile(path, []byte(value), 0))
	}
	return errors.Join(errs...)
}
