// Package cdiedits finds what containers with NVIDIA GPUs need besides their device nodes: the driver's files, hooks
// and environment.
//
// The driver's files and hooks come from the container toolkit (nvcdi, GetCommonEdits). Nothing else of the toolkit is
// used: its own device listing fails for all GPUs when one of them is faulty, and reads /proc/driver/nvidia and
// /sys/bus/pci of the real machine only.
//
// It guarantees that nvcdi runs once per change of the driver or of a folder that it searches, that a panic of nvcdi is
// an error, and that hooks that cannot run on the host are left out and reported.
//
// A call takes as long as the file systems that it reads; the caller bounds it and makes one at a time. The package
// makes no NVML call, and must not import Kubernetes or anything of internal/node.
package cdiedits

import (
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/hostpath"
)

// Deps are what a Source needs. Roots are paths as this process sees them.
type Deps struct {
	// DriverRoot is where the driver is installed, DevRoot the root of /dev/nvidia*; DriverRoot when empty.
	DriverRoot string
	DevRoot    string
	// HostRoot is where this process sees the host's "/"; "/" when empty.
	HostRoot string
	// Library is passed to nvcdi, which reads only the driver version from it; the version comes from the snapshot, so
	// that no call can hang. May be nil.
	Library nvml.Interface
	// HookPath is the hook program, as this process or the host sees it; empty for edits without hooks.
	HookPath string
	// LibraryPaths are the only places searched for driver libraries; the usual ones when empty.
	LibraryPaths []string
	// DisabledHooks are names of hooks to leave out, such as "update-ldcache", or "all".
	DisabledHooks []string
	// Search finds the files and hooks of a driver version; nvcdi when nil.
	Search func(version string) (*specs.ContainerEdits, error)
	Log    *slog.Logger
}

// Source finds the edits of one node. Its methods must not be called at the same time.
type Source struct {
	deps  Deps
	host  hostpath.View
	cache cache
}

// Nvcdi returns the search that a Source without Search uses.
func Nvcdi(deps Deps) func(version string) (*specs.ContainerEdits, error) { return New(deps).nvcdi }

// New returns a Source. It touches nothing on the machine.
func New(deps Deps) *Source {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.DevRoot == "" {
		deps.DevRoot = deps.DriverRoot
	}
	s := &Source{host: hostpath.New(deps.HostRoot)}
	if deps.HookPath != "" {
		deps.HookPath = s.host.ToHost(deps.HookPath)
	}
	s.deps = deps
	if s.deps.Search == nil {
		s.deps.Search = s.nvcdi
	}
	return s
}

// Common returns the edits of every container that gets a GPU, and what was left out of them because the host does not have
// it. Paths of mounts may be those of the host or of this process.
func (s *Source) Common(driver gpu.Driver) (edits specs.ContainerEdits, missing []gpu.Cause, err error) {
	found, err := s.find(driver.Version)
	if err != nil {
		return specs.ContainerEdits{}, nil, err
	}
	edits = *found
	// Nearly every CUDA image sets NVIDIA_VISIBLE_DEVICES=all. Where the legacy NVIDIA runtime is installed too, its hook
	// would read that as a request for every GPU of the node; "void" disables it. nvcdi sets it; this makes sure of it.
	edits.Env = append(slices.Clone(found.Env), "NVIDIA_VISIBLE_DEVICES=void")
	edits.Hooks, missing = s.usableHooks(found.Hooks)
	return edits, missing, nil
}

// PartitionNodes returns the GPU's own node and the two capabilities that open the MIG device on it; none when one of the
// kinds is missing, since neither is of use alone.
func (s *Source) PartitionNodes(g *gpu.GPU, partition *gpu.MIGDevice) []gpu.DeviceNode {
	compute, drm := split(g.Nodes)
	if len(compute) == 0 || len(partition.Nodes) == 0 {
		return nil
	}
	nodes := append(compute, partition.Nodes...)
	// Only a profile with graphics can use the GPU's DRM nodes.
	if strings.Contains(partition.Profile, "gfx") {
		nodes = append(nodes, drm...)
	}
	return nodes
}

func split(nodes []gpu.DeviceNode) (compute, drm []gpu.DeviceNode) {
	for _, node := range nodes {
		if node.DRM() {
			drm = append(drm, node)
		} else {
			compute = append(compute, node)
		}
	}
	return compute, drm
}

// Links returns a hook that creates links ("target::link") in a container, in the form of nvcdi's; nil when hooks of
// that name are disabled or cannot run.
func (s *Source) Links(links []string) *specs.Hook {
	const name = "create-symlinks"
	if s.deps.HookPath == "" || slices.Contains(s.deps.DisabledHooks, name) ||
		slices.Contains(s.deps.DisabledHooks, string(nvcdi.AllHooks)) || !s.host.Executable(s.deps.HookPath) {
		return nil
	}
	args := []string{path.Base(s.deps.HookPath), name}
	for _, link := range links {
		args = append(args, "--link", link)
	}
	return &specs.Hook{
		HookName: "createContainer",
		Path:     s.deps.HookPath,
		Args:     args,
		Env:      []string{"NVIDIA_CTK_DEBUG=false"},
	}
}

// nvcdi runs the container toolkit's search with these options, and no others: mode nvml (no guessing of the platform),
// Berth's NVML handle, driver and dev root, the hook's path, library paths and disabled hooks as configured, and no
// nvsandboxutils, which would dlopen another driver library.
func (s *Source) nvcdi(version string) (*specs.ContainerEdits, error) {
	options := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(debugLogger{s.deps.Log}),
		nvcdi.WithNvmlLib(versionOnly{s.deps.Library, version}),
		// nvcdi removes the root from paths whose links it has resolved.
		nvcdi.WithDriverRoot(s.host.Resolve(s.deps.DriverRoot)),
		nvcdi.WithDevRoot(s.host.Resolve(s.deps.DevRoot)),
		nvcdi.WithLibrarySearchPaths(s.deps.LibraryPaths),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithDisabledHooks(s.deps.DisabledHooks...),
	}
	if s.deps.HookPath == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		options = append(options, nvcdi.WithNVIDIACDIHookPath(s.deps.HookPath))
	}
	lib, err := nvcdi.New(options...)
	if err != nil {
		return nil, err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return nil, err
	}
	return edits.ContainerEdits, nil
}

// usableHooks leaves out hooks that cannot run on this host: a hook that is missing, or whose tool is missing, keeps the
// container from starting.
func (s *Source) usableHooks(hooks []*specs.Hook) (usable []*specs.Hook, missing []gpu.Cause) {
	if len(hooks) == 0 {
		return nil, nil
	}
	if !s.host.Executable(s.deps.HookPath) {
		return nil, []gpu.Cause{{Code: "CDI_HOOK_MISSING", Message: fmt.Sprintf("the hook binary %s is not on the host or cannot be executed, "+
			"so GPU containers get no hooks and may not find the driver libraries; restart the agent to install it again", s.deps.HookPath)}}
	}
	ldconfig := s.ldconfig()
	for _, hook := range hooks {
		if len(hook.Args) > 1 && hook.Args[1] == string(nvcdi.UpdateLDCacheHook) {
			if ldconfig == "" {
				missing = append(missing, gpu.Cause{Code: "CDI_LDCONFIG_MISSING", Message: fmt.Sprintf("the host has no ldconfig in %v, so the library "+
					"cache in GPU containers is not refreshed and programs may not find libcuda.so.1; install it on the host", ldconfigPlaces)})
				continue
			}
			copied := *hook
			copied.Args = slices.Insert(slices.Clone(hook.Args), 2, "--ldconfig-path", ldconfig)
			hook = &copied
		}
		usable = append(usable, hook)
	}
	return usable, missing
}

var ldconfigPlaces = [...]string{"/sbin/ldconfig", "/usr/sbin/ldconfig"}

// ldconfig returns the path of the host's ldconfig, otherwise that of the driver root's (a driver container on a host
// without a libc may have one), as the host sees it; "" when there is none.
func (s *Source) ldconfig() string {
	for _, root := range []string{"/", s.host.ToHost(s.deps.DriverRoot)} {
		for _, place := range ldconfigPlaces {
			if p := path.Join(root, place); s.host.Executable(p) {
				return p
			}
		}
	}
	return ""
}

// versionOnly is the NVML library for nvcdi's search for common edits: it returns the driver version that the inventory
// read.
type versionOnly struct {
	nvml.Interface
	version string
}

func (versionOnly) Init() nvml.Return     { return nvml.SUCCESS }
func (versionOnly) Shutdown() nvml.Return { return nvml.SUCCESS }
func (v versionOnly) SystemGetDriverVersion() (string, nvml.Return) {
	return v.version, nvml.SUCCESS
}

// debugLogger logs all of nvcdi's lines at debug level: it warns about every optional file that is absent.
type debugLogger struct{ log *slog.Logger }

func (l debugLogger) debug(format string, args []any) {
	//lint:ignore sloglint the message is nvcdi's
	l.log.Debug("nvcdi: " + fmt.Sprintf(format, args...))
}
func (l debugLogger) Tracef(format string, args ...any)   { l.debug(format, args) }
func (l debugLogger) Debugf(format string, args ...any)   { l.debug(format, args) }
func (l debugLogger) Infof(format string, args ...any)    { l.debug(format, args) }
func (l debugLogger) Warningf(format string, args ...any) { l.debug(format, args) }
func (l debugLogger) Errorf(format string, args ...any)   { l.debug(format, args) }
