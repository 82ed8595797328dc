package nvidia

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// session is one use of the driver, from Init to Shutdown. Handles and event sets are valid in their session only. It ends when
// its last call has returned; the next session may begin before that.
type session struct {
	number int
	// users are making calls, closing is true when no new ones may begin, and the channels of waiting are closed after
	// Shutdown. Adapter.mu guards all three.
	users   map[*user]struct{}
	closing bool
	waiting []chan struct{}
	driver  gpu.Driver
	// cudaAsked is true once the CUDA version was read.
	cudaAsked bool
	// symbols guards has.
	symbols sync.Mutex
	// has caches which functions the loaded library exports.
	has map[string]bool
}

// user makes calls in a session.
type user struct {
	// doing returns the call and the GPU that it is about ("" for the node).
	doing func() (id gpu.UUID, call string)
}

// enter begins calls in a session; false when it is not the present one. The library stays loaded until leave is called.
func (a *Adapter) enter(number int, doing func() (gpu.UUID, string)) (leave func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.session
	if s == nil || s.number != number {
		return nil, false
	}
	u := &user{doing: doing}
	s.users[u] = struct{}{}
	return func() {
		a.mu.Lock()
		delete(s.users, u)
		last := s.closing && len(s.users) == 0
		a.mu.Unlock()
		if last {
			a.shutDown(s)
		}
	}, true
}

// detach ends the session for new calls, and closes the library when the last call of the session has returned: at once, or
// when its last user leaves.
func (a *Adapter) detach() {
	a.watched.Store(nil)
	a.mu.Lock()
	s := a.session
	a.session = nil
	a.work = a.work.clone()
	a.work.session = nil
	if s != nil {
		s.closing = true
		a.ending = append(a.ending, s)
	}
	idle := s != nil && len(s.users) == 0
	a.mu.Unlock()
	if s != nil {
		a.forgetSession()
	}
	if idle {
		a.shutDown(s)
	}
}

func (a *Adapter) shutDown(s *session) {
	if ret := a.library.Shutdown(); ret != nvml.SUCCESS {
		a.log.Debug("nvmlShutdown failed", "return", codeName(ret))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = slices.DeleteFunc(a.ending, func(e *session) bool { return e == s })
	for _, waiting := range s.waiting {
		close(waiting)
	}
}

// awaitClosed waits until every session that was detached has ended. The error names the call that keeps one open.
func (a *Adapter) awaitClosed(ctx context.Context) error {
	a.mu.Lock()
	ending := slices.Clone(a.ending)
	ends := make([]chan struct{}, len(ending))
	for i, s := range ending {
		ends[i] = make(chan struct{})
		s.waiting = append(s.waiting, ends[i])
	}
	a.mu.Unlock()
	for i, s := range ending {
		select {
		case <-ends[i]:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", a.keptOpenBy(s), ctx.Err())
		}
	}
	return nil
}

// keptOpenBy describes the calls of a session that have not returned.
func (a *Adapter) keptOpenBy(s *session) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var calls []string
	for u := range s.users {
		id, call := u.doing()
		if id != "" {
			call += " of GPU " + string(id)
		}
		calls = append(calls, call)
	}
	slices.Sort(calls)
	if len(calls) == 0 {
		calls = []string{"nvmlShutdown"}
	}
	return strings.Join(calls, ", ") + " has not returned, and no GPU can be reset before it has"
}

// open begins a session unless there is one. It returns the call that failed; nil when none did.
func (a *Adapter) open() *failure {
	if a.session != nil {
		return nil
	}
	a.at("", "nvmlInit")
	if ret := a.library.Init(); ret != nvml.SUCCESS && ret != nvml.ERROR_ALREADY_INITIALIZED {
		return &failure{call: "nvmlInit", ret: ret}
	}
	next := &session{number: a.sessions + 1, has: map[string]bool{}, users: map[*user]struct{}{}}
	a.at("", "nvmlSystemGetDriverVersion")
	version, ret := a.library.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		a.library.Shutdown()
		return &failure{call: "nvmlSystemGetDriverVersion", ret: ret}
	}
	next.driver.Version = version
	a.readCUDA(next)
	a.mu.Lock()
	a.session, a.sessions = next, next.number
	a.work.session = next
	a.mu.Unlock()
	a.log.Info("Found driver", "version", version, "cuda", next.driver.CUDA.String())
	return nil
}

// readCUDA reads the CUDA version of the driver until that succeeds. The same driver has the same version as before.
func (a *Adapter) readCUDA(s *session) {
	if s.cudaAsked {
		return
	}
	a.at("", "nvmlSystemGetCudaDriverVersion")
	cuda, ret := a.library.SystemGetCudaDriverVersion()
	switch {
	case ret == nvml.SUCCESS:
		s.driver.CUDA = gpu.Version{Major: cuda / 1000, Minor: cuda % 1000 / 10}
	case transient(ret):
		if latest := a.latestDriver(); latest.Present() && latest.Version == s.driver.Version {
			s.driver.CUDA = latest.CUDA
		}
		return
	}
	s.cudaAsked = true
}

// forgetSession drops what is valid in one session only. The properties of the GPUs may be different in the next (another
// driver, another firmware), so that only identities stay, and values to show until they are read again.
func (a *Adapter) forgetSession() {
	for _, m := range a.caches {
		m.invalidate()
	}
	clear(a.gpus)
	clear(a.links)
	a.formerPaths = maps.Clone(a.paths)
	clear(a.paths)
	clear(a.histories)
}

// exports reports whether the loaded library has a function. go-nvml ends the process on a call of a missing one.
func (a *work) exports(symbol string) bool {
	a.session.symbols.Lock()
	defer a.session.symbols.Unlock()
	have, checked := a.session.has[symbol]
	if !checked {
		extensions := a.library.Extensions()
		have = extensions == nil || extensions.LookupSymbol(symbol) == nil
		a.session.has[symbol] = have
	}
	return have
}

// driverMissing returns the fault of a node whose driver does not answer, with the fix.
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
	cause := newCause("DRIVER_MISSING", fmt.Sprintf("no NVIDIA driver answers: %s returned %s; %s", call, codeName(ret), fix))
	return &cause
}

// unusable returns why the library's files cannot be loaded; empty when there is none.
func (a *Adapter) unusable() string {
	if library, ok := a.library.(interface{ Unusable() string }); ok {
		return library.Unusable()
	}
	return ""
}

// libraryUnusable is driverMissing for a library that was found and cannot be loaded.
func libraryUnusable(reason string) *gpu.Cause {
	cause := newCause("DRIVER_MISSING", "no NVIDIA driver answers: libnvidia-ml.so.1 was found and cannot be loaded: "+reason+
		"; install the NVIDIA driver again; it is found without a restart")
	return &cause
}

// driverGone reports whether a return code means that the driver, not a GPU, went away.
func driverGone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	}
	return false
}

// withoutValue reports whether a return code means that there is no value to read, or not for this process. After a value it is a fault.
func withoutValue(ret nvml.Return) bool { return unsupported(ret) || ret == nvml.ERROR_NO_PERMISSION }

// unsupported reports whether a return code means that there is no value to read.
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT,
		nvml.ERROR_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}
