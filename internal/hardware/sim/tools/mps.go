package tools

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// The files and messages of the real daemon.
const (
	mpsSocket     = "control"
	mpsPIDFile    = "nvidia-cuda-mps-control.pid"
	mpsControlLog = "control.log"
	mpsServerLog  = "server.log"
)

// mpsMaxLine bounds a line of the protocol between the simulated programs.
const mpsMaxLine = 4096

func mpsPipeDir() string {
	return cmp.Or(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "/tmp/nvidia-mps")
}

// MPSControl is nvidia-cuda-mps-control on the simulated machine whose file tree has that root. With -f it runs the daemon for the GPUs in
// CUDA_VISIBLE_DEVICES; without arguments it is the front end, which reads commands from stdin. A daemon that a signal
// ends leaves its files behind, as the real one does.
func MPSControl(root string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	foreground, multiUser := false, false
	for _, arg := range args {
		switch arg {
		case "-f":
			foreground = true
		case "-multiuser-server":
			multiUser = true
		case "-d":
			fmt.Fprintln(stderr, "this simulated nvidia-cuda-mps-control does not run in the background; use -f")
			return 1
		default:
			fmt.Fprintf(stderr, "unknown option %q; usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n", arg)
			return 1
		}
	}
	if !foreground {
		return mpsFrontEnd(stdin, stdout, stderr)
	}
	devices, err := mpsDevices(root, os.Getenv("CUDA_VISIBLE_DEVICES"))
	if err == nil {
		err = runMPSDaemon(devices, multiUser, answersOf(root), stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// mpsDevices returns the UUIDs of the GPUs that a daemon sees.
func mpsDevices(root, visible string) ([]string, error) {
	machine, err := sim.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	show, err := machine.Show()
	if err != nil {
		return nil, err
	}
	if !show.DriverLoaded {
		return nil, errors.New("no NVIDIA driver is loaded")
	}
	var devices []string
	take := func(gpu sim.GPUDescription) error {
		if gpu.MIG == "on" {
			return fmt.Errorf("GPU %s is partitioned (MIG); MPS takes whole GPUs", gpu.UUID)
		}
		devices = append(devices, gpu.UUID)
		return nil
	}
	if visible == "" {
		for _, gpu := range show.GPUs {
			if gpu.Index < 0 {
				continue // removed from the machine
			}
			if err := take(gpu); err != nil {
				return nil, err
			}
		}
		return devices, nil
	}
	for name := range strings.SplitSeq(visible, ",") {
		found := false
		for _, gpu := range show.GPUs {
			if gpu.Index >= 0 && (gpu.UUID == name || fmt.Sprint(gpu.Index) == name) {
				found = true
				if err := take(gpu); err != nil {
					return nil, err
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("no GPU %q in this machine (CUDA_VISIBLE_DEVICES=%s)", name, visible)
		}
	}
	return devices, nil
}

// answersOf returns a function that reads how the machine's daemons answer now.
func answersOf(root string) func() string {
	return func() string {
		machine, err := sim.OpenRoot(root)
		if err != nil {
			return ""
		}
		show, err := machine.Show()
		if err != nil {
			return ""
		}
		return show.MPSAnswers
	}
}

// mpsFrontEnd sends lines to the daemon and prints its answers.
func mpsFrontEnd(stdin io.Reader, stdout, stderr io.Writer) int {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		conn, err := net.Dial("unix", filepath.Join(mpsPipeDir(), mpsSocket))
		if err != nil {
			fmt.Fprintln(stdout, "Cannot find MPS control daemon process")
			return 1
		}
		_, err = fmt.Fprintln(conn, "command", line)
		if err == nil {
			_, err = io.Copy(stdout, conn)
		}
		conn.Close()
		if err != nil {
			fmt.Fprintf(stderr, "connection to the MPS control daemon is broken: %v\n", err)
			return 1
		}
	}
	return 0
}

// runMPSDaemon runs a daemon from its start to the quit command.
func runMPSDaemon(devices []string, multiUser bool, answers func() string, stdout io.Writer) error {
	pipe := mpsPipeDir()
	logDir := cmp.Or(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "/var/log/nvidia-mps")
	for _, folder := range []string{pipe, logDir} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	pid, err := os.OpenFile(filepath.Join(pipe, mpsPIDFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer pid.Close()
	if unix.Flock(int(pid.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errors.New("an instance of this daemon is already running")
	}
	if err := errors.Join(pid.Truncate(0), writeAll(pid, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		return err
	}
	control, err := openLog(logDir, mpsControlLog)
	if err != nil {
		return err
	}
	defer control.Close()
	server, err := openLog(logDir, mpsServerLog)
	if err != nil {
		return err
	}
	defer server.Close()
	socket := filepath.Join(pipe, mpsSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// Clients of every user may connect.
	if err := os.Chmod(socket, 0o777); err != nil {
		return err
	}
	d := newMPSDaemon(devices, multiUser, answers, io.MultiWriter(control, stdout), server, listener)
	d.logf(d.control, "start: process %d, GPUs %s, multi-user server %v", os.Getpid(), strings.Join(devices, ","), multiUser)
	d.serve()
	d.logf(d.control, "exit")
	return os.Remove(filepath.Join(pipe, mpsPIDFile))
}

func openLog(folder, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

func writeAll(file *os.File, text string) error {
	_, err := file.WriteString(text)
	return err
}
