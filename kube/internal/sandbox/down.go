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

// Down takes the sandbox of a Cluster away.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.dir, nil) }

// Down takes the sandbox in dir away: its processes, mounts, cgroups, network
// and files, whatever state they are in. It is no error if there is none.
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
		// Only what is named after the directory; its files are not ours.
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
		return fmt.Errorf("take sandbox down: still there: %s", left)
	}
	p.step("nothing is left of the sandbox in %s", dir)
	return nil
}

// stopProcesses ends the processes that were written down, those that hold
// state last. Nothing is asked to drain: all of it is thrown away.
func (s *State) stopProcesses(ctx context.Context) error {
	if s.BootID != bootID() {
		return nil // the PIDs are of another life of the machine
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
		// Found a moment ago in our cgroup or namespace. The start time guards
		// the few that ended since.
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
	// Never through a mount: what is mounted there may be the user's.
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if below := mountsBelow(mounts, l.Files); len(below) > 0 {
		return fmt.Errorf("remove %s: %v is mounted there", l.Files, below)
	}
	// The state file goes last, so that a removal that is cut off can be
	// taken up again.
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
