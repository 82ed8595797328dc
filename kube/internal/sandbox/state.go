package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	stateVersion = 1
	maxNodes     = 200
)

// Phases of a sandbox. Only a Ready sandbox can be used; any can be removed.
const (
	phaseStarting = "starting"
	phaseReady    = "ready"
	phaseStopping = "stopping"
)

// State is DIR/state.json: everything that `down` needs. Each item is recorded before it is created.
type State struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	BootID  string `json:"bootID"`
	Phase   string `json:"phase"`
	Bin     string `json:"bin"`
	Profile string `json:"profile,omitempty"`
	Cgroup  string `json:"cgroup"`
	// APIServer is its URL from outside the sandbox's network.
	APIServer string            `json:"apiServer,omitempty"`
	Sysctls   map[string]string `json:"sysctlsBefore,omitempty"`
	Processes []Process         `json:"processes"`
	Nodes     []NodeState       `json:"nodes"`
	// APINodes is the number of nodes without a machine.
	APINodes int `json:"apiNodes,omitempty"`
	// APINodeProfiles are the simulated machines of those that have one, by their names.
	APINodeProfiles map[string]string `json:"apiNodeProfiles,omitempty"`
}

// Process is one process of the sandbox. PID is 0 from the time it is recorded until it runs.
type Process struct {
	Name      string   `json:"name"`
	Node      string   `json:"node,omitempty"`
	PID       int      `json:"pid,omitempty"`
	StartTime uint64   `json:"startTime,omitempty"`
	Argv      []string `json:"argv"`
	Log       string   `json:"log"`
}

// NodeState is what is needed to restart a node.
type NodeState struct {
	Name        string       `json:"name"`
	Index       int          `json:"index"`
	Hollow      bool         `json:"hollow,omitempty"`
	IP          string       `json:"ip"`
	HealthzPort int          `json:"healthzPort"`
	StreamPort  int          `json:"streamPort,omitempty"`
	Profile     string       `json:"profile,omitempty"`
	Clique      string       `json:"clique,omitempty"`
	Agent       AgentOptions `json:"agent,omitzero"`

	// The outside paths of the node's own directories. What the node mounts below them is visible only below Root.
	KubeletDir string `json:"kubeletDir"`
	EtcCDI     string `json:"etcCDI"`
	RunCDI     string `json:"runCDI"`
	SimDir     string `json:"simDir,omitempty"`
	Root       string `json:"root,omitempty"`
}

func statePath(dir string) string { return filepath.Join(dir, "state.json") }

func readState(dir string) (*State, error) {
	data, err := os.ReadFile(statePath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: there is no %s; start one with berth-sandbox up --dir %s", ErrNotRunning, dir, statePath(dir), dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox state: %w", err)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read sandbox state %s: %w", statePath(dir), err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("read sandbox state %s: version %d, want %d; take it down with the berth-sandbox "+
			"that created it", statePath(dir), s.Version, stateVersion)
	}
	return &s, nil
}

func writeState(dir string, s *State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write sandbox state: %w", err)
	}
	// Each write uses a unique file name: a crash leaves at most a stray file, which down removes with the directory,
	// and never an incomplete state file.
	tmp, err := os.CreateTemp(dir, ".state-")
	if err != nil {
		return fmt.Errorf("write sandbox state: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), statePath(dir))
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write sandbox state: %w", err)
	}
	return nil
}

// updateState changes the state file under its lock, so that a test and the command line can use one sandbox at the
// same time.
func updateState(dir string, change func(*State)) (*State, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock sandbox state: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock sandbox state: %w", err)
	}
	s, err := readState(dir)
	if err != nil {
		return nil, err
	}
	change(s)
	return s, writeState(dir, s)
}

func (s *State) process(node, name string) *Process {
	for i := range s.Processes {
		if s.Processes[i].Node == node && s.Processes[i].Name == name {
			return &s.Processes[i]
		}
	}
	return nil
}

func (s *State) setProcess(p Process) {
	if old := s.process(p.Node, p.Name); old != nil {
		*old = p
		return
	}
	s.Processes = append(s.Processes, p)
}

func (s *State) dropProcess(node, name string) {
	for i := range s.Processes {
		if s.Processes[i].Node == node && s.Processes[i].Name == name {
			s.Processes = append(s.Processes[:i], s.Processes[i+1:]...)
			return
		}
	}
}

func bootID() string {
	data, _ := os.ReadFile(kernelBootID)
	return strings.TrimSpace(string(data))
}
