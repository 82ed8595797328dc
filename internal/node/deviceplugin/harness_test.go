package deviceplugin

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	resource    = "nvidia.com/gpu"
	testTimeout = 10 * time.Second
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hardware are a node's GPUs as the tests change them; several agents may read it.
type hardware struct {
	mu          sync.Mutex
	snapshot    gpu.Snapshot
	settings    []offer.Settings
	policy      placement.Policy
	features    Features
	subscribers []chan struct{}
}

// testVendors are the names of NVIDIA, and of a vendor without a container runtime.
func testVendors() []gpu.Traits {
	return []gpu.Traits{
		{Name: "other"},
		{
			Name: gpu.NVIDIA, VisibleDevices: []string{"NVIDIA_VISIBLE_DEVICES"}, VisibleMounts: "/var/run/nvidia-container-devices",
			Features:  gpu.FeatureVariables{GDS: "NVIDIA_GDS", GDRCopy: "NVIDIA_GDRCOPY", MOFED: "NVIDIA_MOFED", IMEXChannels: "NVIDIA_IMEX_CHANNELS"},
			IMEXNodes: "/dev/nvidia-caps-imex-channels/channel",
		},
	}
}

// machine has n GPUs in two sockets, linked in pairs by NVLink: 0-1, 2-3, …
func machine(n int) *hardware {
	h := &hardware{settings: []offer.Settings{{}}}
	h.snapshot.Topology = gpu.NewTopology(n)
	h.snapshot.Vendors = []gpu.VendorState{{Name: gpu.NVIDIA, Shared: []gpu.DeviceNode{
		{Path: "/dev/nvidiactl", HostPath: "/dev/nvidiactl", Major: 195, Minor: 255},
		{Path: "/dev/nvidia-uvm", HostPath: "/dev/nvidia-uvm", Major: 510},
	}}}
	for i := range n {
		h.snapshot.GPUs = append(h.snapshot.GPUs, gpu.GPU{
			Vendor: gpu.NVIDIA, UUID: uuid(i), Index: i, Minor: i, NUMANode: i * 2 / n,
			Nodes: []gpu.DeviceNode{
				{Path: fmt.Sprintf("/dev/nvidia%d", i), HostPath: fmt.Sprintf("/driver/dev/nvidia%d", i), Major: 195, Minor: uint32(i)},
				{Path: fmt.Sprintf("/dev/dri/card%d", i), Major: 226, Minor: uint32(i)},
			},
		})
		for j := range i {
			link := gpu.Link{Path: gpu.PathSystem}
			if j/2 == i/2 {
				link = gpu.Link{Kind: gpu.LinkNVLink, Count: 4, Path: gpu.PathSameNUMA}
			}
			h.snapshot.Topology.Set(i, j, link)
		}
	}
	return h
}

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%02d", i)) }

// uuids are the IDs of GPUs by index.
func uuids(indices ...int) []string {
	ids := make([]string, 0, len(indices))
	for _, i := range indices {
		ids = append(ids, string(uuid(i)))
	}
	return ids
}

func first(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// State implements Deps.State.
func (h *hardware) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	copied := h.snapshot
	copied.GPUs = slices.Clone(h.snapshot.GPUs)
	state := State{Snapshot: &copied, Policy: h.policy, Features: h.features}
	for _, settings := range h.settings {
		units, _ := offer.Resolve(&copied, settings)
		state.Offers = append(state.Offers, offer.Build(&copied, units)...)
	}
	return state
}

// change alters the hardware and notifies every subscriber.
func (h *hardware) change(alter func(*hardware)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	alter(h)
	h.notify()
}

func (h *hardware) notify() {
	for _, subscriber := range h.subscribers {
		select {
		case subscriber <- struct{}{}:
		default:
		}
	}
}

func (h *hardware) degrade(i int) {
	h.change(func(h *hardware) {
		h.snapshot.GPUs[i].Health = gpu.Health{State: gpu.Degraded, Causes: []gpu.Cause{{Code: "NVLINK_ERRORS", Message: "500 errors"}}}
	})
}

func (h *hardware) setHealthy(i int, healthy bool) {
	h.change(func(h *hardware) {
		h.snapshot.GPUs[i].Health = gpu.Health{}
		if !healthy {
			h.snapshot.GPUs[i].Health = gpu.Health{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "XID79", Message: "the GPU has fallen off the bus"}}}
		}
	})
}

func (h *hardware) subscribe() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	subscriber := make(chan struct{}, 1)
	h.subscribers = append(h.subscribers, subscriber)
	return subscriber
}

// blocks is a ledger for tests, which blocks whole GPUs.
type blocks struct {
	mu      sync.Mutex
	blocked map[gpu.DeviceKey]ledger.Block
	held    []gpu.DeviceKey
}

func (b *blocks) BlockedBy(_ string, key gpu.DeviceKey) (ledger.Block, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	block, blocked := b.blocked[gpu.DeviceKey{GPU: key.GPU}]
	return block, blocked
}

func (b *blocks) Offered(string, []gpu.DeviceKey) []gpu.DeviceKey { return nil }

func (b *blocks) Allocate(_, _ string, keys []gpu.DeviceKey) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		if _, blocked := b.blocked[gpu.DeviceKey{GPU: key.GPU}]; blocked {
			return fmt.Errorf("hold %s: it is held by container c of pod ns/p, which still runs; it is free when that container ends", key)
		}
	}
	b.held = append(b.held, keys...)
	return nil
}

func (b *blocks) set(i int, block *ledger.Block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if block == nil {
		delete(b.blocked, gpu.DeviceKey{GPU: uuid(i)})
		return
	}
	if b.blocked == nil {
		b.blocked = make(map[gpu.DeviceKey]ledger.Block)
	}
	b.blocked[gpu.DeviceKey{GPU: uuid(i)}] = *block
}

// fastTiming is the default with short waits.
func fastTiming() timing {
	t := defaultTiming()
	t.deferNewer, t.retire, t.resend, t.linger = 300*time.Millisecond, 30*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
	return t
}

// agent is a running Manager.
type agent struct {
	*Manager
	log    *bytes.Buffer
	cancel context.CancelFunc
	done   chan error
}

func cdiName(id string) string { return "k8s.berth.dev/gpu=" + id }

// startAgent runs a manager until the test ends or stop is called.
func startAgent(t testing.TB, dir string, h *hardware, alter func(*Manager)) *agent {
	t.Helper()
	a := &agent{log: &bytes.Buffer{}, done: make(chan error, 1)}
	m, err := New(Deps{
		KubeletDir: dir, State: h.State, Changed: h.subscribe(), CDIName: cdiName, Vendors: testVendors(),
		Log: slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	m.timing = fastTiming()
	m.viewer.linger = m.timing.linger
	if alter != nil {
		alter(m)
	}
	a.Manager = m
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	go func() { a.done <- m.Run(ctx) }()
	t.Cleanup(func() {
		a.stop(t)
		if t.Failed() {
			t.Logf("log of agent %s:\n%s", m.instance, a.log)
		}
	})
	return a
}

func named(instance string) func(*Manager) {
	return func(m *Manager) { m.deps.Instance = instance }
}

// stop ends the agent and waits for it.
func (a *agent) stop(t testing.TB) {
	a.cancel()
	select {
	case err, running := <-a.done:
		if running {
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			close(a.done)
		}
	case <-time.After(testTimeout):
		t.Error("the agent does not end")
	}
}

// kubeletDir is a directory whose path is short enough for sockets.
func kubeletDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func startKubelet(t testing.TB, dir string, options fakekubelet.Options) *fakekubelet.Kubelet {
	t.Helper()
	k, err := fakekubelet.Start(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

func await(t testing.TB, k *fakekubelet.Kubelet, wanted func(fakekubelet.State) bool) fakekubelet.State {
	t.Helper()
	return awaitResource(t, k, resource, wanted)
}

func awaitResource(t testing.TB, k *fakekubelet.Kubelet, name string, wanted func(fakekubelet.State) bool) fakekubelet.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := k.Await(ctx, name, wanted); err != nil {
		t.Fatal(err)
	}
	return k.State(name)
}

func healthy(n int) func(fakekubelet.State) bool {
	return func(s fakekubelet.State) bool { return s.Primary != "" && len(s.Healthy) == n }
}

// short is a socket's name without what all have in common: a.2 for berth-gpu-a.2.sock.
func short(socket string) string {
	name, ok := parseSocketName(socket)
	if !ok {
		return socket
	}
	text := name.instance
	if name.part != "gpu" {
		text = name.part + ":" + text
	}
	if name.attempt > 1 {
		text += "." + strconv.Itoa(name.attempt)
	}
	return text
}

// shortIDs prints indices: 0 1 2.
func shortIDs(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	list := make([]string, 0, len(ids))
	for _, id := range ids {
		list = append(list, strings.TrimPrefix(strings.TrimPrefix(id, "GPU-"), "0"))
	}
	return strings.Join(list, " ")
}

// received is an answer as the kubelet decodes it.
func received(t *testing.T, answer *pluginapi.ContainerAllocateResponse) *pluginapi.ContainerAllocateResponse {
	t.Helper()
	blob, err := proto.Marshal(answer)
	decoded := &pluginapi.ContainerAllocateResponse{}
	if err == nil {
		err = proto.Unmarshal(blob, decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}
