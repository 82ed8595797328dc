package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/version"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/agent/serve"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/pages"
)

const resource = "nvidia.com/gpu"

type state = fakekubelet.State

// bench is a standalone agent on simulated hardware, with a simulated device manager of the kubelet on real sockets.
type bench struct {
	t       testing.TB
	machine *sim.Machine
	dir     string
	kubelet *fakekubelet.Kubelet
	agent   *Agent
	// file is the agent's configuration; empty for none.
	file string
	// fault stops changes at a step, configFault those of the configuration; nil for none.
	fault       func(string) error
	configFault func(configwatch.Step) error
	// client is the test's own API server; nil for none.
	client dynamic.Interface
	// kube has the claims; nil for an agent without DRA.
	kube kubernetes.Interface
	// hook is the program of the CDI hooks; empty where the configuration does not use CDI.
	hook string
	// boot is the ID of the boot; empty for this machine's.
	boot string
	// instance distinguishes two agents of one node; empty for a node with one.
	instance string
	// override changes the configuration last; nil for nothing.
	override func(*v1alpha1.AgentConfig)
	// api is the API server; nil for a standalone agent.
	api *hangingAPI
	// log gets the agent's log; nil for the test's.
	log io.Writer
	// extra are vendors beside NVIDIA's.
	extra []vendor.Vendor
	// gate is closed by a test to make a call hang.
	gate *barrier
	// clock is the agent's; nil for the real one.
	clock clock.WithTicker
}

// newBench starts an agent. The envvar strategy needs no device nodes, so that the test also runs without root.
func newBench(t testing.TB, profile string) *bench {
	t.Helper()
	b := newIdleBench(t, profile)
	b.agent = b.start()
	return b
}

// newIdleBench returns a bench with a kubelet and no agent yet.
func newIdleBench(t testing.TB, profile string) *bench {
	t.Helper()
	b := &bench{t: t, dir: shortDir(t)}
	var err error
	if b.machine, err = sim.Create(filepath.Join(b.dir, "sim"), profile); err != nil {
		t.Fatal(err)
	}
	if b.kubelet, err = fakekubelet.Start(b.kubeletDir(), fakekubelet.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kubelet.Stop)
	return b
}

// shortDir is a folder whose sockets stay under the 108 bytes of a Unix address.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "ba")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (b *bench) kubeletDir() string { return filepath.Join(b.dir, "k") }

// start starts an agent that ends with the test.
func (b *bench) start() *Agent {
	b.t.Helper()
	agent, _ := b.startUntil()
	return agent
}

// startUntil starts an agent that ends when end is called, or with the test.
func (b *bench) startUntil() (agent *Agent, end func()) {
	b.t.Helper()
	deps := configwatch.Deps{File: b.file, Clock: b.clock, Fault: b.configFault, Override: func(c *v1alpha1.AgentConfig) {
		c.KubeletDir, c.CDIDir, c.StateDir, c.HookDir = b.kubeletDir(), filepath.Join(b.dir, "cdi"), filepath.Join(b.dir, "state"), filepath.Join(b.dir, "hooks")
		c.PersistentDir = filepath.Join(b.dir, "persistent")
		c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}
		c.Standalone = true
		c.MPSRoot = filepath.Join(b.dir, "mps")
		c.PollInterval = &metav1.Duration{Duration: 200 * time.Millisecond}
		if b.override != nil {
			b.override(c)
		}
	}}
	wiring := Deps{Kube: b.kube, Instance: b.instance, HookSource: b.hook, BootID: b.boot, Clock: b.clock, Fault: b.fault, Log: slog.New(slog.NewTextHandler(b.logWriter(), nil))}
	client := b.client
	if b.api != nil {
		client = b.api
	}
	if client != nil {
		deps.Connect = func(*v1alpha1.AgentConfig) (dynamic.Interface, error) { return client, nil }
		wiring.API = client
	}
	watcher, err := configwatch.Open(deps)
	if err != nil {
		b.t.Fatal(err)
	}
	machine, err := hardware.Open(b.machine.Dir(), watcher.Base())
	if err != nil {
		b.t.Fatal(err)
	}
	machine.Library, machine.SMI, machine.MPSControl = b.machine.NVML(), simtest.SMI(b.machine), simtest.MPSControl(b.machine)
	machine.Extra = b.extra
	wiring.Config, wiring.Hardware = watcher, machine
	agent, err = New(wiring)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("agent ended with %v", err)
		}
	})
	b.t.Cleanup(end)
	return agent, end
}

func (b *bench) await(wanted func(fakekubelet.State) bool) fakekubelet.State {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	if err := b.kubelet.Await(ctx, resource, wanted); err != nil {
		b.t.Fatal(err)
	}
	return b.kubelet.State(resource)
}

func healthy(n int) func(fakekubelet.State) bool {
	return func(s fakekubelet.State) bool { return len(s.Healthy) == n }
}

// TestStandaloneServesEveryProfile checks that, without Kubernetes and over a bare registration socket, the four calls
// respond on all simulated machines.
func TestStandaloneServesEveryProfile(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			b := newBench(t, profile)
			want := len(inventoryOf(t, b.machine))
			state := b.await(healthy(want))
			if !state.Options.GetPreferredAllocationAvailable || state.Options.PreStartRequired {
				t.Errorf("options are %v, want preferred allocation and no pre-start", state.Options)
			}
			ids, err := b.kubelet.Preferred(t.Context(), resource, state.Healthy, nil, min(2, want))
			if err != nil || len(ids) != min(2, want) {
				t.Fatalf("Preferred gave %v, %v; want %d devices", ids, err, min(2, want))
			}
			answer, err := b.kubelet.Allocate(t.Context(), resource, ids)
			if err != nil {
				t.Fatal(err)
			}
			visible := strings.Split(answer.Envs["NVIDIA_VISIBLE_DEVICES"], ",")
			slices.Sort(visible)
			slices.Sort(ids)
			if diff := cmp.Diff(ids, visible); diff != "" {
				t.Errorf("NVIDIA_VISIBLE_DEVICES (-asked +got):\n%s", diff)
			}
			if _, err := b.kubelet.Allocate(t.Context(), resource, []string{"GPU-none"}); err == nil || !strings.Contains(err.Error(), "unknown device") {
				t.Errorf("Allocate of an unknown device gave %v", err)
			}
		})
	}
}

func inventoryOf(t testing.TB, machine *sim.Machine) []string {
	t.Helper()
	library := machine.NVML()
	library.Init()
	defer library.Shutdown()
	count, ret := library.DeviceGetCount()
	if ret != 0 {
		t.Fatalf("DeviceGetCount: %v", ret)
	}
	var ids []string
	for i := range count {
		device, _ := library.DeviceGetHandleByIndex(i)
		id, _ := device.GetUUID()
		ids = append(ids, id)
	}
	return ids
}

// TestFaultsAndRepairs injects each kind of fault: each makes one GPU unhealthy and, once it is cleared, the GPU is
// healthy again without a restart.
func TestFaultsAndRepairs(t *testing.T) {
	t.Parallel()
	tests := map[string]sim.Fault{
		"XID 79":               {GPU: "2", XID: 79},
		"lost without an XID":  {GPU: "2", LostSilently: true},
		"fallen off the bus":   {GPU: "2", OffBus: true},
		"hot-removed":          {GPU: "2", Remove: true},
		"row remapping failed": {GPU: "2", RowRemap: sim.RowRemapFailed},
	}
	for name, fault := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "a100x8-40g")
			id := inventoryOf(t, b.machine)[2]
			b.await(healthy(8))
			if err := b.machine.Inject(fault); err != nil {
				t.Fatal(err)
			}
			if state := b.await(healthy(7)); slices.Contains(state.Healthy, id) {
				t.Errorf("%s is still healthy", id)
			}
			ids, err := b.kubelet.Preferred(t.Context(), resource, b.kubelet.State(resource).Healthy, nil, 4)
			if err != nil || len(ids) != 4 {
				t.Errorf("one faulty GPU affects the others: Preferred gave %v, %v", ids, err)
			}
			if err := b.machine.Clear("all"); err != nil {
				t.Fatal(err)
			}
			b.await(healthy(8))
		})
	}
}

func TestIgnoredXIDChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, "t4x4")
	b.await(healthy(4))
	if err := b.machine.Inject(sim.Fault{GPU: "0", XID: 31}); err != nil {
		t.Fatal(err)
	}
	// A second, real fault shows that the first was seen and ignored.
	if err := b.machine.Inject(sim.Fault{GPU: "1", XID: 79}); err != nil {
		t.Fatal(err)
	}
	if state := b.await(healthy(3)); state.Lowest < 3 {
		t.Errorf("at worst %d GPUs were healthy, want 3", state.Lowest)
	}
}

// TestUpgradeLeavesNoGap starts a second agent beside the first, then stops the first.
func TestUpgradeLeavesNoGap(t *testing.T) {
	t.Parallel()
	b := newBench(t, "h100x8")
	first := b.await(healthy(8))
	second := b.start()
	b.await(func(s fakekubelet.State) bool { return len(s.Endpoints) == 2 && s.Primary != first.Primary })
	<-second.compared.Done()
	if got := b.kubelet.State(resource); got.Lowest != 8 {
		t.Errorf("at worst %d of 8 GPUs were healthy", got.Lowest)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	b := newBench(t, "a30x4")
	b.await(healthy(4))
	handler := b.agent.reports.server.Handler()
	get := func(path string) (int, string) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		return recorder.Code, recorder.Body.String()
	}
	// The kubelet has the list a moment before the agent has the response to its registration.
	code, text := get("/readyz")
	for deadline := time.Now().Add(5 * time.Second); code != 200 && time.Now().Before(deadline); code, text = get("/readyz") {
		<-time.After(10 * time.Millisecond)
	}
	if code != 200 {
		t.Errorf("/readyz: %d %s", code, text)
	}
	if _, text := get("/metrics"); !strings.Contains(text, `berth_device_plugin_healthy_devices{resource="nvidia.com/gpu"} 4`) {
		t.Errorf("/metrics has no 4 healthy devices:\n%s", text)
	} else if build := version.Current(); !strings.Contains(text, fmt.Sprintf("berth_build_info{commit=%q,go_version=%q,version=%q} 1", build.Commit, build.Go, build.Version)) {
		t.Errorf("/metrics has no build:\n%s", text)
	}
	_, text = get("/debug/state")
	var state serve.DebugState
	if err := json.Unmarshal([]byte(text), &state); err != nil || state.Kind != "AgentState" || len(state.Inventory.GPUs) != 4 {
		t.Errorf("/debug/state: %v\n%s", err, text)
	}
}

// TestMetricsAlone checks that the address for Prometheus serves the metrics and nothing else.
func TestMetricsAlone(t *testing.T) {
	t.Parallel()
	b := newIdleBench(t, "t4x4")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	b.configure("standalone: true\nmetricsListen: " + address + "\nsampleInterval: 500ms\ndcgmNames: true\ndcgmCounters: |\n" +
		"  DCGM_FI_DEV_PSTATE, gauge, Performance state.\n  DCGM_FI_PROF_SM_ACTIVE, gauge, Not on a T4.\n  DCGM_FI_DEV_SERIAL, label, Serial number.\n  frobnicate\n")
	b.agent = b.start()
	b.await(healthy(4))
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	awaitTrue(t, "the first measurement", func() bool {
		_, text := get("/metrics")
		return strings.Contains(text, "DCGM_FI_DEV_GPU_TEMP{")
	})
	awaitTrue(t, "the problems of the list", func() bool {
		_, text := get("/metrics")
		messages := ""
		for _, problem := range b.agent.reports.list.All() {
			messages += problem.Message + "\n"
		}
		return strings.Contains(text, "DCGM_FI_DEV_PSTATE{") && strings.Contains(text, `berth_problem{code="DCGM_FIELD_UNAVAILABLE"} 1`) &&
			strings.Contains(messages, `dcgmCounters: line 4: "frobnicate" has no comma`) && strings.Contains(messages, "DCGM_FI_DEV_SERIAL: Berth has no label with it") &&
			strings.Contains(messages, "DCGM_FI_PROF_SM_ACTIVE: no GPU of the node has it; it is read by nvmlGpmMetricsGet (Hopper and later)")
	})
	for _, path := range []string{"/debug/state", "/debug/samples", "/healthz", "/readyz", "/"} {
		if code, _ := get(path); code != http.StatusNotFound {
			t.Errorf("%s is served with %d", path, code)
		}
	}
	// The other pages are on the socket.
	socket := filepath.Join(b.agent.config.StateDir, pages.Name)
	awaitTrue(t, "an agent that is ready on "+socket, func() bool { return answers(t, socket) })
	if text, err := (pages.Client{Socket: socket}).Get(t.Context(), "/debug/samples"); err != nil || !strings.Contains(string(text), `"kind":"GPUSamples"`) {
		t.Errorf("/debug/samples on the socket: %v\n%.200s", err, text)
	}
}

func TestDriverThatComesLater(t *testing.T) {
	t.Parallel()
	b := newBench(t, "t4x4")
	b.await(healthy(4))
	if err := b.machine.Inject(sim.Fault{DriverGone: true}); err != nil {
		t.Fatal(err)
	}
	b.await(healthy(0))
	if err := b.machine.Clear("driver"); err != nil {
		t.Fatal(err)
	}
	b.await(healthy(4))
}

// logWriter receives the agent's log.
func (b *bench) logWriter() io.Writer {
	if b.log != nil {
		return b.log
	}
	return b.t.Output()
}

// answers reports whether an agent that is ready serves a socket.
func answers(t testing.TB, socket string) bool {
	_, err := (pages.Client{Socket: socket}).Get(t.Context(), "/readyz")
	return err == nil
}
