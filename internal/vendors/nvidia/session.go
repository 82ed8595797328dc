package nvidia

import (
	"fmt"
	"maps"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/gpu"
)

// session is one life of the driver, from Init to Shutdown. Handles and event sets
// of one session mean nothing in the next.
type session struct {
	number int
	driver gpu.Driver
	// cudaAsked is true once the question for the CUDA version was answered.
	cudaAsked bool
	// has remembers which functions the loaded library exports.
	has map[string]bool
}

// open makes sure that the library is loaded; otherwise it returns the call that failed.
func (a *Adapter) open() *failure {
	if a.session != nil {
		return nil
	}
	a.at("", "nvmlInit")
	a.inUse.Lock()
	defer a.inUse.Unlock()
	if ret := a.library.Init(); ret != nvml.SUCCESS && ret != nvml.ERROR_ALREADY_INITIALIZED {
		return &failure{call: "nvmlInit", ret: ret}
	}
	next := &session{number: a.sessions + 1, has: map[string]bool{}}
	a.at("", "nvmlSystemGetDriverVersion")
	version, ret := a.library.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		a.library.Shutdown()
		return &failure{call: "nvmlSystemGetDriverVersion", ret: ret}
	}
	next.driver.Version = version
	a.readCUDA(next)
	a.session, a.sessions = next, next.number
	a.log.Info("driver found", "version", version, "cuda", next.driver.CUDA.String())
	return nil
}

// readCUDA asks for the driver's CUDA version until it is answered. The same driver has the version that it had before.
func (a *Adapter) readCUDA(s *session) {
	if s.cudaAsked {
		return
	}
	a.at("", "nvmlSystemGetCudaDriverVersion")
	cuda, ret := a.library.SystemGetCudaDriverVersion()
	switch {
	case ret == nvml.SUCCESS:
		s.driver.CUDA = gpu.Version{Major: cuda / 1000, Minor: cuda % 1000 / 10}
	case doubtful(ret):
		if a.latest != nil && a.latest.Driver.Version == s.driver.Version {
			s.driver.CUDA = a.latest.Driver.CUDA
		}
		return
	}
	s.cudaAsked = true
}

// close ends the session, once nobody is in a call any more.
func (a *Adapter) close() {
	a.at("", "nvmlShutdown")
	a.watched.Store(nil)
	a.inUse.Lock()
	defer a.inUse.Unlock()
	a.unload()
}

// unload needs inUse. What was learned of the cards' nature may be different in the
// next session (another driver, another firmware), so only identities stay.
func (a *Adapter) unload() {
	if a.session == nil {
		return
	}
	if ret := a.library.Shutdown(); ret != nvml.SUCCESS {
		a.log.Debug("nvmlShutdown failed", "return", say(ret))
	}
	a.session = nil
	for _, m := range a.remembered {
		m.void()
	}
	clear(a.cards)
	clear(a.links)
	a.formerPaths = maps.Clone(a.paths)
	clear(a.paths)
	clear(a.pulses)
}

// exports tells whether the loaded library has a function. go-nvml ends the process
// on a call of one that it has not.
func (a *Adapter) exports(symbol string) bool {
	have, asked := a.session.has[symbol]
	if !asked {
		extensions := a.library.Extensions()
		have = extensions == nil || extensions.LookupSymbol(symbol) == nil
		a.session.has[symbol] = have
	}
	return have
}

// driverMissing is the fault of a node whose driver does not answer, with the fix.
func driverMissing(call string, ret nvml.Return) *gpu.Cause {
	fix := "load the NVIDIA driver; it is found without a restart"
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		fix = "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or correct the driver root; it is found without a restart"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		fix = "the loaded kernel module and libnvidia-ml.so.1 are of different versions; reload the module or reboot, and restart this process if the driver was upgraded while it ran"
	case nvml.ERROR_NO_PERMISSION:
		fix = "give this process access to /dev/nvidiactl"
	}
	cause := unstamped("DRIVER_MISSING", fmt.Sprintf("no NVIDIA driver answers: %s returned %s; %s", call, say(ret), fix))
	return &cause
}

// gone tells whether a return code means that the driver, not a card, went away.
func gone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	}
	return false
}

// unsupported tells whether a return code means that there is nothing to know.
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT,
		nvml.ERROR_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}
