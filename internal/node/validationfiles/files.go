// Package validationfiles writes the files by which programs for NVIDIA's GPU operator see how far a node is:
// driver-ready, toolkit-ready, plugin-ready and cuda-ready in /run/nvidia/validations of the host.
//
// It guarantees that a file is there exactly while the node has reached its state, that a file of another program is neither changed nor
// removed, and that a reader sees a whole file. It must not import the agent or a front end.
package validationfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/hardware/hostpath"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// mark is the first line of each file, by which it is known as Berth's. Shells read the files; to them it is a comment.
const mark = "# written by berth-agent"

// file is a file with the state from which on it is there.
type file struct {
	name string
	from gate.State
}

// files are in the order in which NVIDIA's validator writes them.
var files = []file{
	{"driver-ready", gate.DriverReady}, {"toolkit-ready", gate.RuntimeReady}, {"plugin-ready", gate.Held}, {"cuda-ready", gate.Validated},
}

// states are the states in their order.
var states = []gate.State{gate.Found, gate.DriverReady, gate.RuntimeReady, gate.SpecReady, gate.Held, gate.Validated}

func rank(s gate.State) int {
	for i, state := range states {
		if state == s {
			return i + 1
		}
	}
	return 0
}

// Bring makes the files of a directory those of a state. driverRoot is the root of the driver on the host. An empty directory means that
// no files are wanted.
func Bring(dir, driverRoot string, state gate.State) error {
	if dir == "" {
		return nil
	}
	var failed []error
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if rank(state) >= rank(f.from) {
			failed = append(failed, write(path, content(f.name, driverRoot)))
		} else {
			failed = append(failed, remove(path))
		}
	}
	return errors.Join(failed...)
}

// In returns Bring with its directory and driver root.
func In(dir, driverRoot string) func(gate.State) error {
	return func(state gate.State) error { return Bring(dir, driverRoot, state) }
}

// Dir is where the chart lets the agent write them, on the host.
const Dir = "/run/nvidia/validations"

// Remove removes the files from Dir of a host, whose root this process has at hostRoot.
func Remove(hostRoot string) error {
	return Bring(hostpath.New(hostRoot).Resolve(Dir), "", gate.None)
}

// content is what NVIDIA's validator writes into a file: the locations of the driver, as variables of a shell, into driver-ready, and
// nothing into the others.
func content(name, driverRoot string) string {
	if name != "driver-ready" {
		return mark + "\n"
	}
	return fmt.Sprintf("%[1]s\nIS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=%[2]s\nDRIVER_ROOT_CTR_PATH=/host\nNVIDIA_DEV_ROOT=%[2]s\nDEV_ROOT_CTR_PATH=/host\n", mark, driverRoot)
}

// write writes a file unless it is there, or another program has one of the name.
func write(path, text string) error {
	before, err := hostconfig.ReadFile(path)
	switch {
	case err == nil && (string(before) == text || !ours(before)):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return renameio.WriteFile(path, []byte(text), 0o644)
}

// remove removes a file of Berth.
func remove(path string) error {
	before, err := hostconfig.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !ours(before) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func ours(text []byte) bool { return strings.HasPrefix(string(text), mark+"\n") }
