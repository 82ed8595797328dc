package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/timeslice"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// TestMain lets the test binary replace the driver's programs, and clients list before they watch: client-go's fake clientset sends no
// bookmarks.
func TestMain(m *testing.M) {
	simtest.Main()
	if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// configure writes the agent's file; a running agent follows it.
func (b *bench) configure(text string) {
	b.t.Helper()
	b.file = filepath.Join(b.dir, "agent.yaml")
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// configured returns a bench whose agent starts with a file.
func configured(t *testing.T, profile, text string) *bench {
	t.Helper()
	b := newIdleBench(t, profile)
	b.configure(text)
	b.agent = b.start()
	return b
}

// awaitOf waits for a resource's devices.
func (b *bench) awaitOf(resource string, wanted func(fakekubelet.State) bool) fakekubelet.State {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	if err := b.kubelet.Await(ctx, resource, wanted); err != nil {
		if b.agent != nil {
			state, _ := json.MarshalIndent(b.agent.reports.server.State(), "", " ")
			b.t.Logf("the agent's state is %s", state)
		}
		b.t.Fatal(err)
	}
	return b.kubelet.State(resource)
}

const matrix = `
standalone: true
gpus:
- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 4, resourceName: nvidia.com/gpu.shared, timeSlice: long}}
- {select: {index: [3]}, mig: {devices: {1g.5gb: 7}}}
migDevices:
- {select: {profile: [1g.5gb]}, sharing: {mode: timeSlicing, replicas: 4}}
`

// TestAllModesSideBySide has whole and time-sliced GPUs and MIG devices with 28 replicas on one machine; an edit of the
// file changes only the devices that it concerns.
func TestAllModesSideBySide(t *testing.T) {
	t.Parallel()
	b := configured(t, "h100x8", strings.ReplaceAll(matrix, "1g.5gb", "1g.10gb"))
	whole := b.awaitOf("nvidia.com/gpu", healthy(6))
	b.awaitOf("nvidia.com/gpu.shared", healthy(4))
	slices28 := b.awaitOf("nvidia.com/mig-1g.10gb", healthy(28))
	b.awaitSlice(1, "Long")

	b.configure(strings.ReplaceAll(strings.ReplaceAll(matrix, "1g.5gb", "1g.10gb"), "index: [1]", "index: [2]"))
	b.awaitSlice(1, "Default")
	b.awaitSlice(2, "Long")
	b.awaitOf("nvidia.com/gpu.shared", func(s fakekubelet.State) bool {
		return len(s.Healthy) == 4 && strings.HasPrefix(s.Healthy[0], string(b.uuid(2)))
	})
	// The number of whole GPUs is the same, one of them is another; the MIG devices are unchanged.
	b.awaitOf("nvidia.com/gpu", func(s fakekubelet.State) bool { return slices.Contains(s.Healthy, string(b.uuid(1))) })
	after := b.kubelet.State("nvidia.com/mig-1g.10gb")
	if len(after.From) != len(slices28.From) || after.Accepted != slices28.Accepted {
		t.Errorf("the MIG devices were sent %d times and registered %d times, before %d and %d", len(after.From), after.Accepted, len(slices28.From), slices28.Accepted)
	}
	if after := b.kubelet.State("nvidia.com/gpu"); after.Accepted != whole.Accepted {
		t.Errorf("whole GPUs were registered %d times, before %d", after.Accepted, whole.Accepted)
	}
}

// awaitSlice waits until the GPU with an index has a time slice.
func (b *bench) awaitSlice(index int, want string) {
	b.t.Helper()
	awaitTrue(b.t, "time slice "+want, func() bool {
		shown, err := b.machine.Show()
		if err != nil {
			b.t.Fatal(err)
		}
		return shown.GPUs[index].TimeSlice == want || want == "Default" && shown.GPUs[index].TimeSlice == ""
	})
}

func (b *bench) uuid(index int) gpu.UUID { return gpu.UUID(inventoryOf(b.t, b.machine)[index]) }

func awaitTrue(t testing.TB, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(limit) {
			t.Fatalf("never saw %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestBadEditLeavesTheLastGoodOne checks that a refused edit changes nothing and is reported as a problem.
func TestBadEditLeavesTheLastGoodOne(t *testing.T) {
	t.Parallel()
	b := configured(t, "t4x4", "standalone: true\ngpus: [{sharing: {mode: timeSlicing, replicas: 2}}]\n")
	b.awaitOf("nvidia.com/gpu", healthy(8))
	b.configure("standalone: true\ngpus: [{sharing: {mode: timeSlicing, replica: 3}}]\n")
	awaitTrue(t, "the refusal", func() bool { return b.agent.reports.server.State().Config.Refused != "" })
	if refused := b.agent.reports.server.State().Config.Refused; !strings.Contains(refused, "agent.yaml:2: gpus[0].sharing.replica: unknown key (did you mean replicas?)") {
		t.Errorf("refused with %s", refused)
	}
	if got := b.kubelet.State("nvidia.com/gpu"); len(got.Healthy) != 8 || got.Lowest != 8 {
		t.Errorf("%d devices are healthy, at worst %d; want 8 all the time", len(got.Healthy), got.Lowest)
	}
	b.configure("standalone: true\ngpus: [{sharing: {mode: timeSlicing, replicas: 3}}]\n")
	b.awaitOf("nvidia.com/gpu", healthy(12))
}

// TestMPSFollowsItsDaemon checks that MPS replicas are healthy exactly while their daemon is ready, also when it or its
// supervisor ends.
func TestMPSFollowsItsDaemon(t *testing.T) {
	t.Parallel()
	b := configured(t, "t4x4", "standalone: true\ngpus: [{select: {index: [2]}, sharing: {mode: mps, replicas: 3, resourceName: nvidia.com/gpu.mps}}]\n")
	b.awaitOf("nvidia.com/gpu", healthy(3))
	state := b.awaitOf("nvidia.com/gpu.mps", func(s fakekubelet.State) bool { return len(s.Healthy)+len(s.Unhealthy) == 3 })
	if len(state.Healthy) > 0 {
		t.Errorf("%v are healthy without a supervisor", state.Healthy)
	}
	stop := b.supervise()
	b.awaitOf("nvidia.com/gpu.mps", healthy(3))
	id := string(b.uuid(2))
	answer, err := b.kubelet.Allocate(t.Context(), "nvidia.com/gpu.mps", []string{id + "::1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := answer.Envs["CUDA_MPS_PIPE_DIRECTORY"], "/mps/"+id+"/pipe"; got != want || len(answer.Mounts) != 3 {
		t.Errorf("pipe directory %q and %d mounts, want %q, pipes, shm and the grant", got, len(answer.Mounts), want)
	}
	if _, err := b.kubelet.Allocate(t.Context(), "nvidia.com/gpu.mps", []string{id + "::0", id + "::2"}); err == nil || !strings.Contains(err.Error(), "maximum request size for shared resources is 1; found 2") {
		t.Errorf("two MPS replicas gave %v", err)
	}
	stop()
	b.awaitOf("nvidia.com/gpu.mps", healthy(0))
	stop = b.supervise()
	b.awaitOf("nvidia.com/gpu.mps", healthy(3))
	b.configure("standalone: true\n")
	// The replica that was allocated above is held until the checkpoint does not list it.
	awaitTrue(t, "the end of the daemon or of its use", func() bool {
		units := b.agent.devices.allocatable.Units()
		return units[2].Use.Mode == "" || units[2].Draining != ""
	})
	stop()
}

// supervise runs an MPS supervisor until stop is called.
func (b *bench) supervise() (stop func()) {
	b.t.Helper()
	return b.superviseAt(mps.SocketPath(filepath.Join(b.dir, "mps")))
}

// superviseAt is supervise with a socket other than the agent's.
func (b *bench) superviseAt(socket string) (stop func()) {
	b.t.Helper()
	actions := nvidia.NewActions(nvidia.Deps{Library: b.machine.NVML()})
	supervisor, err := mps.New(mps.Deps{
		Root: filepath.Join(b.dir, "mps"), Socket: socket, Program: simtest.MPSControl(b.machine),
		ComputeMode: hardware.NewComputeModes(actions), Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- supervisor.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				b.t.Errorf("the supervisor ended with %v", err)
			}
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// TestTimeSliceOfAKilledAgent checks that an agent that is killed while it sets a time slice leaves the old one or a
// record of it, so that the next agent sets the wanted one.
func TestTimeSliceOfAKilledAgent(t *testing.T) {
	t.Parallel()
	for _, step := range []string{string(allocatable.StepKept), string(timeslice.Noted), string(timeslice.Set)} {
		t.Run(step, func(t *testing.T) {
			b := newIdleBench(t, "t4x4")
			b.configure("standalone: true\ngpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: short}}]\n")
			reached := make(chan struct{}, 1)
			b.fault = func(at string) error {
				if at != step {
					return nil
				}
				select {
				case reached <- struct{}{}:
				default:
				}
				return context.Canceled
			}
			_, end := b.startUntil()
			<-reached
			end()
			b.fault = nil
			// The next agent starts with a configuration without sharing.
			b.configure("standalone: true\n")
			b.agent = b.start()
			b.awaitOf("nvidia.com/gpu", healthy(4))
			b.awaitSlice(1, "Default")
			awaitTrue(t, "that no record is left", func() bool {
				text, err := os.ReadFile(filepath.Join(b.dir, "state", timeslice.FileName))
				return errors.Is(err, fs.ErrNotExist) || err == nil && !strings.Contains(string(text), string(b.uuid(1)))
			})
		})
	}
}

const twoSlices = `
standalone: true
gpus:
- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: short}}
- {select: {index: [2]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: long}}
`

// TestTimeSlicesAfterAResetByOthers checks that a scan that finds a reset GPU leads to a new time slice; the periodic
// check would come too late.
func TestTimeSlicesAfterAResetByOthers(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	b.configure(twoSlices)
	b.agent = b.start()
	b.awaitSlice(1, "Short")
	b.awaitSlice(2, "Long")
	for range 2 { // Each reset is found.
		if err := b.machine.ResetGPUs("1"); err != nil {
			t.Fatal(err)
		}
		b.awaitSlice(1, "Short")
	}
}

// TestTimeSlicesAfterALoadedDriver checks that a scan that finds the driver again leads to new time slices; the
// periodic check would come too late.
func TestTimeSlicesAfterALoadedDriver(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	b.configure(twoSlices)
	b.agent = b.start()
	b.awaitSlice(1, "Short")
	b.awaitSlice(2, "Long")
	if err := b.machine.Inject(sim.Fault{DriverGone: true}); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "that the driver is gone", func() bool { return !b.agent.node.inventory.Current().DriverPresent() })
	if err := b.machine.Clear(sim.ClearDriver); err != nil {
		t.Fatal(err)
	}
	b.awaitSlice(1, "Short")
	b.awaitSlice(2, "Long")
}
