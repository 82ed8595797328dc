package gate

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

// fileMark is the first line of each file, by which it is known as Berth's. Shells read the files; to them it is a comment.
const fileMark = "# written by berth-agent"

// validationFile is a file with the state from which on it is there.
type validationFile struct {
	name string
	from gate.State
}

// validationFiles are in the order in which NVIDIA's validator writes them.
var validationFiles = []validationFile{
	{"driver-ready", gate.DriverReady}, {"toolkit-ready", gate.RuntimeReady}, {"plugin-ready", gate.Held}, {"cuda-ready", gate.Validated},
}

// fileStates are the states in their order.
var fileStates = []gate.State{gate.Found, gate.DriverReady, gate.RuntimeReady, gate.SpecReady, gate.Held, gate.Validated}

func stateRank(s gate.State) int {
	for i, state := range fileStates {
		if state == s {
			return i + 1
		}
	}
	return 0
}

// BringFiles makes the files of a directory those of a state. driverRoot is the root of the driver on the host. An empty directory means
// that no files are wanted.
func BringFiles(dir, driverRoot string, state gate.State) error {
	if dir == "" {
		return nil
	}
	var failed []error
	for _, f := range validationFiles {
		path := filepath.Join(dir, f.name)
		if stateRank(state) >= stateRank(f.from) {
			failed = append(failed, writeFile(path, fileContent(f.name, driverRoot)))
		} else {
			failed = append(failed, removeFile(path))
		}
	}
	return errors.Join(failed...)
}

// FilesIn returns BringFiles with its directory and driver root.
func FilesIn(dir, driverRoot string) func(gate.State) error {
	return func(state gate.State) error { return BringFiles(dir, driverRoot, state) }
}

// FilesDir is where the chart lets the agent write them, on the host.
const FilesDir = "/run/nvidia/validations"

// RemoveFiles removes the files from FilesDir of a host, whose root this process has at hostRoot.
func RemoveFiles(hostRoot string) error {
	return BringFiles(hostpath.New(hostRoot).Resolve(FilesDir), "", gate.None)
}

// fileContent is what NVIDIA's validator writes into a file: the locations of the driver, as variables of a shell, into driver-ready, and
// nothing into the others.
func fileContent(name, driverRoot string) string {
	if name != "driver-ready" {
		return fileMark + "\n"
	}
	return fmt.Sprintf("%[1]s\nIS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=%[2]s\nDRIVER_ROOT_CTR_PATH=/host\nNVIDIA_DEV_ROOT=%[2]s\nDEV_ROOT_CTR_PATH=/host\n", fileMark, driverRoot)
}

// writeFile writes a file unless it is there, or another program has one of the name.
func writeFile(path, text string) error {
	before, err := hostconfig.ReadFile(path)
	switch {
	case err == nil && (string(before) == text || !hasMark(before)):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return renameio.WriteFile(path, []byte(text), 0o644)
}

// removeFile removes a file of Berth.
func removeFile(path string) error {
	before, err := hostconfig.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !hasMark(before) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func hasMark(text []byte) bool { return strings.HasPrefix(string(text), fileMark+"\n") }
