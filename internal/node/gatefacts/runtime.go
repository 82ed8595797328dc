package gatefacts

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// Runtime returns RuntimeStop with its arguments.
func Runtime(hostRoot, stateDir string) func() *gate.Stop {
	return func() *gate.Stop { return RuntimeStop(hostRoot, stateDir) }
}

// RuntimeStop returns why the container runtime does not inject CDI devices, by the configuration of containerd below the host's root;
// nil when it does, and when that cannot be said: containerd 2 and CRI-O inject them by default. The configuration of a containerd that
// does not serve its socket, in stateDir or in /run/containerd of the host, says nothing about the runtime of the node.
func RuntimeStop(hostRoot, stateDir string) *gate.Stop {
	if !serves(hostRoot, stateDir) {
		return nil
	}
	config, err := hostconfig.ReadContainerd(hostRoot)
	if err != nil || config.EnableCDI == nil || *config.EnableCDI {
		return nil
	}
	return &gate.Stop{Code: "RUNTIME_CDI_OFF", Message: fmt.Sprintf("enable_cdi is false in %s; set it to true, and restart containerd", strings.Join(config.Sources, ", "))}
}

// serves reports whether containerd has a socket.
func serves(hostRoot, stateDir string) bool {
	const socket = "containerd.sock"
	paths := []string{filepath.Join(stateDir, socket)}
	if path, err := hostconfig.Beneath(hostRoot, filepath.Join("/run/containerd", socket)); err == nil {
		paths = append(paths, path)
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.Mode()&fs.ModeSocket != 0
	})
}
