package hostruntime

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

const (
	// dialWithin bounds a connection; only a kubelet whose queue of connections is full lets it wait.
	dialWithin = time.Second
	// ticksPerSecond is the unit of times in /proc/PID/stat (USER_HZ).
	ticksPerSecond = 100
	// inaccuracy of the time of a process' start: /proc/stat has whole seconds.
	inaccuracy = 2 * time.Second
)

// errNotServed means that no kubelet listens on the socket.
var errNotServed = errors.New("no kubelet listens")

// kubeletProcess is a running kubelet.
type kubeletProcess struct {
	// dir is its /proc/PID.
	dir string
	// args are its arguments without the program's name.
	args    []string
	started time.Time
}

// socketPeer connects to a socket and returns the PID of the process that listens on it. While the connection is open, the PID is that
// process': closing lets the caller do so. The error is errNotServed when there is none.
func socketPeer(socket string) (connection net.Conn, pid int, err error) {
	connection, err = net.DialTimeout("unix", socket, dialWithin)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errNotServed, err)
	}
	pid, err = listenerOf(connection)
	if err != nil {
		connection.Close()
		return nil, 0, fmt.Errorf("find the process that listens on %s: %w", socket, err)
	}
	return connection, pid, nil
}

// listenerOf returns the PID of the process that listens at the other end.
func listenerOf(connection net.Conn) (int, error) {
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *syscall.Ucred
	var failure error
	if err := raw.Control(func(fd uintptr) {
		credentials, failure = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failure != nil {
		return 0, failure
	}
	if credentials.Pid == 0 {
		return 0, errors.New("it is in another PID namespace; the agent needs that of the machine (hostPID)")
	}
	return int(credentials.Pid), nil
}

// inspectKubelet reads the arguments of a process, which has to be a kubelet, and when it started.
func inspectKubelet(procRoot string, pid int) (*kubeletProcess, error) {
	argv, err := kubelet.CommandLine(procRoot, pid)
	if err != nil {
		return nil, err
	}
	args, ok := kubeletArguments(argv)
	if !ok {
		return nil, fmt.Errorf("the kubelet is part of the program %q (process %d), whose configuration is not known", argv[0], pid)
	}
	ticks, err := kubelet.StartTime(procRoot, pid)
	if err != nil {
		return nil, err
	}
	booted, err := bootTime(procRoot)
	if err != nil {
		return nil, err
	}
	return &kubeletProcess{
		dir: filepath.Join(procRoot, strconv.Itoa(pid)), args: args,
		started: booted.Add(time.Duration(ticks/ticksPerSecond) * time.Second),
	}, nil
}

// kubeletArguments returns the flags of a kubelet. The program is the kubelet, or one whose first argument chooses it.
func kubeletArguments(argv []string) (flags []string, ok bool) {
	const name = "kubelet"
	switch {
	case len(argv) > 0 && filepath.Base(argv[0]) == name:
		return argv[1:], true
	case len(argv) > 1 && argv[1] == name:
		return argv[2:], true
	}
	return nil, false
}

// bootTime reads when the machine started, to the second, from procRoot/stat.
func bootTime(procRoot string) (time.Time, error) {
	blob, err := hostconfig.ReadFile(filepath.Join(procRoot, "stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of the boot: %w", err)
	}
	for line := range strings.Lines(string(blob)) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("read the time of the boot: %w", err)
			}
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, fmt.Errorf("read the time of the boot: %s has no line btime", filepath.Join(procRoot, "stat"))
}
