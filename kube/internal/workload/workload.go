// Package workload is the program of the sandbox's containers. It needs no shell and no library; tests use it to
// inspect a container from the inside.
package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is the text that the program prints for a wrong usage.
const Usage = `usage: workload COMMAND
  pause                     sleep forever, reaping children
  sleep [DURATION]          sleep, forever without a duration; ends at SIGTERM
  env                       print the environment, sorted
  ls DIR                    print the names in a directory
  cat FILE                  print a file
  open PATH                 open for reading and writing and print OK or the name of the error
  mknod PATH MAJOR MINOR    make a character device
  stat PATH                 print type, mode and, for a device, major:minor
  devices [DIR]             print DIR/nvidia* (default /dev) with major and minor as JSON
  beat [DIR]                print a number and the result of opening each of these devices every 50 ms
  mounts                    print the mount points
  forward FD ADDRESS        forward connections to an inherited socket to an address
  flood ADDRESS...          attack these servers, print how often every second; https://ADDRESS also with tokens
  api PATH                  query the API server as the pod's service account, print the answer
  mps                       connect to the simulated MPS daemon in CUDA_MPS_PIPE_DIRECTORY, print what is
                            granted, and stay until the daemon ends; ends at SIGTERM
  dead-leader               end the first thread and continue in the others; ends at SIGKILL
  exit N                    end with this code
`

// errUsage is a wrong command line.
var errUsage = errors.New("wrong usage")

// exitError ends the program with a code.
type exitError int

func (e exitError) Error() string { return "exit " + strconv.Itoa(int(e)) }

// Run runs a command and returns the program's exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	err := run(args, stdout)
	var code exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, Usage)
		return 2
	}
	fmt.Fprintf(stderr, "workload: %v\n", err)
	return 1
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	command, args := args[0], args[1:]
	need := map[string]int{"api": 1, "ls": 1, "cat": 1, "open": 1, "mknod": 3, "stat": 1, "forward": 2, "flood": 1, "exit": 1}
	if len(args) < need[command] {
		return errUsage
	}
	switch command {
	case "pause":
		return pause()
	case "sleep":
		return sleep(args)
	case "dead-leader":
		return deadLeader()
	case "env":
		env := os.Environ()
		sort.Strings(env)
		_, err := fmt.Fprintln(stdout, strings.Join(env, "\n"))
		return err
	case "ls":
		return list(args[0], stdout)
	case "cat":
		return cat(args[0], stdout)
	case "open":
		_, err := fmt.Fprintln(stdout, open(args[0]))
		return err
	case "mknod":
		return mknod(args[0], args[1], args[2])
	case "stat":
		return stat(args[0], stdout)
	case "devices":
		dir := "/dev"
		if len(args) > 0 {
			dir = args[0]
		}
		devices, err := Devices(dir)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(devices)
	case "beat":
		dir := "/dev"
		if len(args) > 0 {
			dir = args[0]
		}
		return beat(dir, stdout)
	case "mounts":
		return cat("/proc/self/mountinfo", stdout)
	case "forward":
		return forward(args[0], args[1])
	case "flood":
		return flood(args, stdout)
	case "api":
		return askAPI(args[0], stdout)
	case "mps":
		return mpsClient(stdout)
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return errUsage
		}
		return exitError(code)
	}
	return errUsage
}

// pause is the first process of a pod: it reaps orphaned processes of the pod's containers when they share its process
// namespace.
func pause() error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

func sleep(args []string) error {
	var end <-chan time.Time
	if len(args) > 0 {
		d, err := time.ParseDuration(args[0])
		if err != nil {
			seconds, err := strconv.Atoi(args[0])
			if err != nil {
				return errUsage
			}
			d = time.Duration(seconds) * time.Second
		}
		end = time.After(d)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-end:
	case <-signals:
	}
	return nil
}

func list(dir string, stdout io.Writer) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := fmt.Fprintln(stdout, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

func cat(file string, stdout io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(stdout, f)
	return err
}

// open returns the name of the result: a device cgroup refuses with EPERM, a device without a driver with ENXIO.
func open(path string) string {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return "OK"
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return err.Error()
}

func mknod(path, major, minor string) error {
	maj, err1 := strconv.ParseUint(major, 10, 32)
	mnr, err2 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil {
		return errUsage
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(maj), uint32(mnr)))); err != nil {
		return fmt.Errorf("mknod %s: %w", path, err)
	}
	return nil
}

// Device is a device node.
type Device struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// Devices lists the NVIDIA device nodes below dir, including those in the folder nvidia-caps.
func Devices(dir string) ([]Device, error) {
	found := []Device{}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*", "dri/*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				return nil, fmt.Errorf("stat %s: %w", path, err)
			}
			if st.Mode&unix.S_IFMT == unix.S_IFCHR {
				found = append(found, Device{Path: path, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)})
			}
		}
	}
	return found, nil
}

func stat(path string, stdout io.Writer) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	kind, device := "other", ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind, device = "char", fmt.Sprintf(" %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	case unix.S_IFBLK:
		kind, device = "block", fmt.Sprintf(" %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	case unix.S_IFREG:
		kind = "file"
	case unix.S_IFDIR:
		kind = "dir"
	case unix.S_IFSOCK:
		kind = "socket"
	}
	_, err := fmt.Fprintf(stdout, "%s %04o%s\n", kind, st.Mode&0o7777, device)
	return err
}
