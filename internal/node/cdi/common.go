package cdi

import (
	"fmt"
	"log/slog"
	"path"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"tags.cncf.io/container-device-interface/specs-go"
)

// commonCache keeps what nvcdi found until one of the places it looks at changes.
type commonCache struct {
	key   string
	edits *specs.ContainerEdits
}

// commonEdits finds the driver's files and hooks. The result is shared: callers
// copy what they change.
func (w *Writer) commonEdits(version string, check *checker) (*specs.ContainerEdits, error) {
	places := w.searchedPlaces(version)
	if w.cache.edits == nil || w.cache.key != w.cacheKey(version, places, w.cache.edits) {
		before := w.cacheKey(version, places, nil)
		edits, err := w.search(version)
		if err != nil {
			w.cache = commonCache{}
			return nil, err
		}
		w.cache = commonCache{edits: edits}
		// What changed during the search may or may not have been seen: search again next time.
		if before == w.cacheKey(version, places, nil) {
			w.cache.key = w.cacheKey(version, places, edits)
		}
	}
	edits := *w.cache.edits
	edits.Hooks = w.usableHooks(edits.Hooks, check)
	return &edits, nil
}

// search asks nvcdi. It opens libraries and parses them, so a damaged one must not
// end the agent.
func (w *Writer) search(version string) (edits *specs.ContainerEdits, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("search driver files in %s: nvcdi panicked: %v", w.deps.Roots.Driver, r)
		}
	}()
	edits, err = w.discover(version)
	if err != nil {
		return nil, fmt.Errorf("find the files of driver %s below %s (are they those of the loaded kernel module?): %w",
			version, w.deps.Roots.Driver, err)
	}
	return edits, nil
}

// nvcdi runs the container toolkit's search with these options, and no others:
// mode nvml (no guessing of the platform), our NVML handle, driver and dev root, the
// hook's path, library paths and disabled hooks as configured, and no
// nvsandboxutils, which would dlopen another driver library.
func (w *Writer) nvcdi(version string) (*specs.ContainerEdits, error) {
	// nvcdi cuts the root off paths whose links it has resolved.
	root := w.host.resolve(w.deps.Roots.Driver)
	options := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(quietLogger{w.deps.Log}),
		nvcdi.WithNvmlLib(versionOnly{w.deps.Library, version}),
		nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(w.host.resolve(w.deps.Roots.Dev)),
		nvcdi.WithLibrarySearchPaths(w.deps.LibraryPaths),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithDisabledHooks(w.deps.DisabledHooks...),
	}
	if w.deps.HookPath == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		options = append(options, nvcdi.WithNVIDIACDIHookPath(w.deps.HookPath))
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

// usableHooks leaves out hooks that cannot run on this host: a hook that is missing,
// or that misses its tool, keeps the container from starting.
func (w *Writer) usableHooks(hooks []*specs.Hook, check *checker) []*specs.Hook {
	if len(hooks) == 0 {
		return nil
	}
	if !w.host.executable(w.deps.HookPath) {
		check.problem("CDI_HOOK_MISSING", "the hook binary %s is not on the host or cannot be executed, so GPU containers get no hooks "+
			"and may not find the driver libraries; restart the agent to install it again", w.deps.HookPath)
		return nil
	}
	ldconfig := w.ldconfig()
	var usable []*specs.Hook
	for _, hook := range hooks {
		if hookName(hook) == string(nvcdi.UpdateLDCacheHook) {
			if ldconfig == "" {
				check.problem("CDI_LDCONFIG_MISSING", "the host has no ldconfig in %v, so the library cache in GPU containers is not refreshed "+
					"and programs may not find libcuda.so.1; install it on the host", ldconfigPlaces)
				continue
			}
			copied := *hook
			copied.Args = slices.Insert(slices.Clone(hook.Args), 2, "--ldconfig-path", ldconfig)
			hook = &copied
		}
		usable = append(usable, hook)
	}
	return usable
}

var ldconfigPlaces = [...]string{"/sbin/ldconfig", "/usr/sbin/ldconfig"}

// ldconfig is the host's, or else the driver root's (a host without a libc may
// have a driver container with one); as the host sees it, empty when there is none.
func (w *Writer) ldconfig() string {
	for _, root := range []string{"/", w.host.toHost(w.deps.Roots.Driver)} {
		for _, place := range ldconfigPlaces {
			if p := path.Join(root, place); w.host.executable(p) {
				return p
			}
		}
	}
	return ""
}

// hookFor makes a hook of the same form as nvcdi's, or gives nil when hooks of that name
// are not wanted or cannot run.
func (w *Writer) hookFor(name string) func(args ...string) *specs.Hook {
	off := w.deps.HookPath == "" || slices.Contains(w.deps.DisabledHooks, name) ||
		slices.Contains(w.deps.DisabledHooks, string(nvcdi.AllHooks)) || !w.host.executable(w.deps.HookPath)
	return func(args ...string) *specs.Hook {
		if off {
			return nil
		}
		return &specs.Hook{
			HookName: "createContainer",
			Path:     w.deps.HookPath,
			Args:     append([]string{path.Base(w.deps.HookPath), name}, args...),
			Env:      []string{"NVIDIA_CTK_DEBUG=false"},
		}
	}
}

func hookName(hook *specs.Hook) string {
	if len(hook.Args) < 2 {
		return ""
	}
	return hook.Args[1]
}

// versionOnly answers what nvcdi asks NVML while it looks for common edits: the
// driver version, as the inventory read it.
type versionOnly struct {
	nvml.Interface
	version string
}

func (versionOnly) Init() nvml.Return     { return nvml.SUCCESS }
func (versionOnly) Shutdown() nvml.Return { return nvml.SUCCESS }
func (v versionOnly) SystemGetDriverVersion() (string, nvml.Return) {
	return v.version, nvml.SUCCESS
}

// quietLogger takes nvcdi's log, in which every optional file that is absent is a warning.
type quietLogger struct{ log *slog.Logger }

func (l quietLogger) say(format string, args []any) {
	//lint:ignore sloglint the message is nvcdi's
	l.log.Debug("nvcdi: " + fmt.Sprintf(format, args...))
}
func (l quietLogger) Tracef(format string, args ...any)   { l.say(format, args) }
func (l quietLogger) Debugf(format string, args ...any)   { l.say(format, args) }
func (l quietLogger) Infof(format string, args ...any)    { l.say(format, args) }
func (l quietLogger) Warningf(format string, args ...any) { l.say(format, args) }
func (l quietLogger) Errorf(format string, args ...any)   { l.say(format, args) }

// common makes the edits of every container: what was found, less what is not on
// the host, with the inventory's control nodes.
func (c *checker) common(found *specs.ContainerEdits, control []gpu.DeviceNode) specs.ContainerEdits {
	var edits specs.ContainerEdits
	edits.Env = slices.Clone(found.Env)
	// Nearly every CUDA image sets NVIDIA_VISIBLE_DEVICES=all. Where the legacy
	// NVIDIA runtime is installed too, its hook would take that as a request for every
	// GPU of the node; "void" tells it to do nothing. nvcdi sets it; make sure of it.
	edits.Env = append(edits.Env, "NVIDIA_VISIBLE_DEVICES=void")
	slices.Sort(edits.Env)
	edits.Env = slices.Compact(edits.Env)
	edits.Mounts = c.mounts(found.Mounts)
	edits.Hooks = found.Hooks // in nvcdi's order: links before the library cache
	c.addNodes(&edits, control, "every container")
	return edits
}
