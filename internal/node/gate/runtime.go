package gate

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
)

// Runtime returns runtimeStop for the runtime that is found at the time of the call.
func Runtime(hostRoot string, find func() *hostruntime.Host) func() *gate.Stop {
	return func() *gate.Stop { return runtimeStop(hostRoot, &find().Runtime) }
}

// runtimeStop returns why the container runtime does not inject CDI devices, by the configuration of containerd below the host's root;
// nil when it does, and when that cannot be said: containerd 2 and CRI-O inject them by default. The configuration of a containerd that
// does not serve its socket says nothing about the runtime of the node.
func runtimeStop(hostRoot string, runtime *hostruntime.Runtime) *gate.Stop {
	if runtime.Kind != hostruntime.Containerd || !runtime.Served {
		return nil
	}
	config, err := hostconfig.ReadContainerd(hostRoot, runtime.Config.Path)
	if err != nil || config.EnableCDI == nil || *config.EnableCDI {
		return nil
	}
	fix := "set it to true, and restart containerd"
	if by := config.Generated; by.By != "" {
		fix = fmt.Sprintf("%s generates this configuration: set enable_cdi to true in %s, and restart %[1]s", by.By, by.From)
	}
	return &gate.Stop{Code: "RUNTIME_CDI_OFF", Message: fmt.Sprintf("enable_cdi is false in %s; %s", strings.Join(config.Sources, ", "), fix)}
}
