// Package process runs the programs of a benchmark on cores of their own and reads what they have used. It guarantees that a program ends
// with the benchmark, even when that is killed. It must not import anything of Kubernetes or of Berth.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that was started.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// Start starts a program on the given cores (all of its parent's when empty). It writes its output to DIR/NAME.log. Its environment is
// that of its parent.
func Start(dir, name string, cores []int, argv ...string) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	output, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer output.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, output, output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := startOn(cores, p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // ended says how it ended.
		close(p.done)
	}()
	return p, nil
}

// startOn starts a command from a thread that is on these cores, which the command inherits.
func startOn(cores []int, cmd *exec.Cmd) error {
	if len(cores) == 0 {
		return cmd.Start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the cores: %w", err)
	}
	if err := setCores(0, cores); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &before))
}

func setCores(thread int, cores []int) error {
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("use the cores %v only: %w", cores, err)
	}
	return nil
}

// PinSelf moves all threads of this process to the given cores. Threads that start later inherit them.
func PinSelf(cores []int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("list the threads: %w", err)
		}
		if err := setCores(id, cores); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// Cores returns the cores that this process may use.
func Cores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the cores: %w", err)
	}
	var cores []int
	for core := range len(set) * 64 {
		if set.IsSet(core) {
			cores = append(cores, core)
		}
	}
	return cores, nil
}

// Stop kills the program and waits for its end.
func (p *Process) Stop() {
	_ = p.cmd.Process.Kill() // It may have ended.
	<-p.done
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait calls ready several times a second until it returns nil. It fails when the program ends or ctx does, with the last lines of the
// program's output.
func (p *Process) Wait(ctx context.Context, what string, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: %w", what, p.Ended())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w; the last output of %s:\n%s", what, context.Cause(ctx), err, p.name, p.Tail())
		case <-tick.C:
		}
	}
}

// Ended returns the error of a program that has ended although nothing stopped it.
func (p *Process) Ended() error {
	return fmt.Errorf("%s ended: %s; its last output:\n%s", p.name, p.cmd.ProcessState, p.Tail())
}

// Tail returns the last lines of the program's output.
func (p *Process) Tail() string {
	const most = 4 << 10
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err.Error()
	}
	text := make([]byte, min(most, info.Size()))
	n, _ := file.ReadAt(text, info.Size()-int64(len(text))) // The file can be growing, never shrinking.
	if _, whole, cut := bytes.Cut(text[:n], []byte("\n")); cut && n == most {
		return string(whole)
	}
	return string(text[:n])
}

// Used is what a program has used since its start.
type Used struct {
	// CPU is the time of all its threads, in the kernel too, to 10 ms.
	CPU time.Duration
	// PeakBytes is the largest resident set (VmHWM).
	PeakBytes int64
}

// Used reads what the program has used so far.
func (p *Process) Used() (Used, error) {
	dir := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Used{}, fmt.Errorf("read the use of %s: %w", p.name, err)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Used{}, fmt.Errorf("read the use of %s: %w", p.name, err)
	}
	cpu, err := parseCPU(string(stat))
	if err != nil {
		return Used{}, fmt.Errorf("read the use of %s: %w", p.name, err)
	}
	peak, err := parsePeak(string(status))
	if err != nil {
		return Used{}, fmt.Errorf("read the use of %s: %w", p.name, err)
	}
	return Used{CPU: cpu, PeakBytes: peak}, nil
}

// parseCPU reads utime and stime, the fields 14 and 15 of /proc/PID/stat, which are in hundredths of a second on every Linux (USER_HZ).
func parseCPU(stat string) (time.Duration, error) {
	// The name of the program is in parentheses, and may have spaces and parentheses itself.
	end := strings.LastIndex(stat, ") ")
	if end < 0 {
		return 0, fmt.Errorf("stat %q names no program", stat)
	}
	fields := strings.Fields(stat[end+2:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat %q has too few fields", stat)
	}
	var sum int64
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat %q: %w", stat, err)
		}
		sum += ticks
	}
	return time.Duration(sum) * (time.Second / 100), nil
}

// parsePeak reads VmHWM of /proc/PID/status, which is in KiB.
func parsePeak(status string) (int64, error) {
	for line := range strings.Lines(status) {
		value, found := strings.CutPrefix(line, "VmHWM:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("status: VmHWM %q: %w", value, err)
		}
		return kib << 10, nil
	}
	return 0, errors.New("status has no VmHWM")
}
