package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// claimBench is an agent with dynamic GPUs, and the kubelet's side of the DRA socket.
type claimBench struct {
	*bench
	clients *fake.Clientset
	plugin  drapb.DRAPluginClient
	// driver is the name of the DRA driver.
	driver string
	end    func()

	mu    sync.Mutex
	dieAt string
}

var errDied = errors.New("died")

// newClaimBench starts an agent whose GPUs are dynamic, besides those that rules select first.
func newClaimBench(t testing.TB, profile, rules string) *claimBench {
	t.Helper()
	b := newIdleClaimBench(t, profile, pool.DefaultDriver)
	b.configure("gpus: [" + rules + "{allocation: {api: dra}, dynamicMIG: true}]\n")
	b.begin()
	return b
}

// newIdleClaimBench returns an agent that is not started, with objects in its API server.
func newIdleClaimBench(t testing.TB, profile, driver string, objects ...runtime.Object) *claimBench {
	t.Helper()
	b := &claimBench{bench: newIdleBench(t, profile), clients: fake.NewClientset(objects...), driver: driver}
	b.client, b.kube, b.boot = fakeapi.New(t), b.clients, "boot"
	b.fault = func(step string) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if step == b.dieAt {
			return errDied
		}
		return nil
	}
	b.override = func(c *v1alpha1.AgentConfig) {
		c.Standalone, c.NodeName, c.Labels.Output = false, fakeapi.NodeName, v1alpha1.LabelsNone
		c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
		c.PollInterval, c.DRADriverName = &metav1.Duration{Duration: time.Minute}, driver
	}
	b.hook = filepath.Join(b.dir, "hook")
	if err := os.WriteFile(b.hook, []byte("a hook"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.kubeletDir(), "plugins_registry"), 0o750); err != nil {
		t.Fatal(err)
	}
	return b
}

// begin starts the agent and connects with its socket.
func (b *claimBench) begin() {
	b.t.Helper()
	b.agent, b.end = b.startUntil()
	connection, err := grpc.NewClient("unix:"+b.sockets()[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = connection.Close() })
	b.plugin = drapb.NewDRAPluginClient(connection)
}

func (b *claimBench) until(what string, reached func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !reached(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not reached: %s\n%s", what, b.picture())
		}
	}
}

// picture describes the GPUs and the holdings.
func (b *claimBench) picture() string {
	var text strings.Builder
	for _, g := range b.agent.node.inventory.Current().GPUs {
		fmt.Fprintf(&text, "GPU %d: MIG %v", g.Index, g.MIG.Enabled)
		for _, part := range g.MIG.Devices {
			fmt.Fprintf(&text, " %s@%d(%s)", part.Profile, part.Start, part.UUID)
		}
		text.WriteByte('\n')
	}
	for _, h := range b.agent.node.ledger.Holdings() {
		fmt.Fprintf(&text, "%s %s\n", h.Key, h.Holder)
	}
	for _, status := range b.agent.changes.partition.Statuses() {
		fmt.Fprintf(&text, "%s: %s\n", status.State, status.Message)
	}
	return text.String()
}

// device returns the name of a device of the GPU with an index: a MIG device such as "1g.10gb at 4", or the GPU with "".
func (b *claimBench) device(index int, placed string) string {
	name := strings.ToLower(string(b.uuid(index)))
	if profile, start, ok := strings.Cut(placed, " at "); ok {
		name += "-" + strings.NewReplacer(".", "", "+", "-").Replace(profile) + "-" + start
	}
	return name
}

// claim makes a claim with devices in the API server.
func (b *claimBench) claim(name string, devices ...string) *resourceapi.ResourceClaim {
	b.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, device := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: fmt.Sprintf("request-%d", i), Driver: b.driver, Pool: fakeapi.NodeName, Device: device,
		})
	}
	claims := b.clients.ResourceV1().ResourceClaims("ns")
	if _, err := claims.Create(b.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	return claim
}

func requests(claim *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
}

// prepare returns the CDI names for a claim.
func (b *claimBench) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]string, error) {
	response, err := b.plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: requests(claim)}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	result := response.GetClaims()[string(claim.UID)]
	if result.GetError() != "" {
		return nil, errors.New(result.GetError())
	}
	var names []string
	for _, device := range result.GetDevices() {
		names = append(names, device.GetCdiDeviceIds()...)
	}
	return names, nil
}

func (b *claimBench) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := b.plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: requests(claim)}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if text := response.GetClaims()[string(claim.UID)].GetError(); text != "" {
		return errors.New(text)
	}
	return nil
}

// parts returns the MIG devices of a GPU as the driver lists them, with their CDI names.
func (b *claimBench) parts(index int) map[mig.Placed]string {
	parts := map[mig.Placed]string{}
	for _, part := range b.agent.node.inventory.Current().GPU(b.uuid(index)).MIG.Devices {
		parts[mig.Placed{Profile: part.Profile, Start: part.Start, Size: part.Size}] = cdi.QualifiedName(string(part.UUID))
	}
	return parts
}

// has checks that a prepared claim has exactly the MIG device.
func (b *claimBench) has(index int, placed mig.Placed, names []string) {
	b.t.Helper()
	if want := b.parts(index)[placed]; want == "" || len(names) != 1 || names[0] != want {
		b.t.Fatalf("the claim for %s got %v, want %q\n%s", placed, names, want, b.picture())
	}
	spec, err := cdi.ReadSpec(filepath.Join(b.dir, "cdi"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, device := range spec.Devices {
		if cdi.QualifiedName(device.Name) == names[0] {
			return
		}
	}
	b.t.Fatalf("%v is not in the CDI spec", names)
}

// idle waits until no dynamic GPU has a MIG device, and the ledger is empty.
func (b *claimBench) idle() {
	b.t.Helper()
	b.until("nothing is left", func() bool {
		for _, g := range b.agent.node.inventory.Current().GPUs {
			if len(g.MIG.Devices) > 0 {
				return false
			}
		}
		return len(b.agent.node.ledger.Holdings()) == 0
	})
}

// TestClaimCreatesMIGDevice creates MIG devices on a GPU with MIG off, beside one another and after one another, and gives the GPU
// as a whole when they are gone.
func TestClaimCreatesMIGDevice(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	ctx := t.Context()
	small, half := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}, mig.Placed{Profile: "3g.40gb", Start: 0, Size: 4}
	first, second, whole := b.claim("a", b.device(0, small.String())), b.claim("b", b.device(0, half.String())), b.claim("c", b.device(0, ""))
	overlaps := b.claim("d", b.device(0, "2g.20gb at 4"))
	for i, test := range []struct {
		claim  *resourceapi.ResourceClaim
		placed mig.Placed
	}{{first, small}, {second, half}, {first, small}} {
		began := time.Now()
		names, err := b.prepare(ctx, test.claim)
		if err != nil {
			t.Fatalf("prepare %d: %v\n%s", i, err, b.picture())
		}
		t.Logf("prepare %d took %s", i, time.Since(began))
		b.has(0, test.placed, names)
	}
	for _, refused := range []*resourceapi.ResourceClaim{whole, overlaps} {
		if _, err := b.prepare(ctx, refused); err == nil || !strings.Contains(err.Error(), "ResourceClaim ns/") {
			t.Errorf("a claim for held slices: %v", err)
		}
	}
	if err := b.unprepare(ctx, first); err != nil {
		t.Fatal(err)
	}
	// It has slices of the device that is removed at this moment.
	names, err := b.prepare(ctx, overlaps)
	if err != nil {
		t.Fatal(err)
	}
	b.has(0, mig.Placed{Profile: "2g.20gb", Start: 4, Size: 2}, names)
	for _, claim := range []*resourceapi.ResourceClaim{second, overlaps} {
		if err := b.unprepare(ctx, claim); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if names, err = b.prepare(ctx, whole); err != nil || len(names) != 1 || names[0] != cdi.QualifiedName(string(b.uuid(0))) {
		t.Fatalf("the whole GPU: %v %v\n%s", names, err, b.picture())
	}
	t.Logf("the whole GPU took %s", time.Since(began))
	if g := b.agent.node.inventory.Current().GPU(b.uuid(0)); g.MIG.Enabled || len(g.MIG.Devices) > 0 {
		t.Errorf("the claim has the whole GPU with MIG on:\n%s", b.picture())
	}
	if err := b.unprepare(ctx, whole); err != nil {
		t.Fatal(err)
	}
	b.idle()
	if g := b.agent.node.inventory.Current().GPU(gpu.UUID(b.uuid(0))); g.MIG.Enabled {
		t.Error("the mode changed without a claim")
	}
}

// dieAtStep lets each call end at a step, as if the agent were killed there.
func (b *claimBench) dieAtStep(step dra.Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dieAt = string(step)
}

// restart ends the agent and starts the next one.
func (b *claimBench) restart() {
	b.t.Helper()
	b.dieAtStep("")
	b.end()
	b.begin()
}

// TestClaimKilledAtEachStep ends the agent at each step of a prepare and an unprepare. The kubelet's retry gets the device from the next
// agent, and its unprepare leaves nothing.
func TestClaimKilledAtEachStep(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	ctx := t.Context()
	placed := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	claim := b.claim("a", b.device(0, placed.String()))
	for _, step := range []dra.Step{dra.StepLocked, dra.StepChecked, dra.StepAcquired, dra.StepCreated, dra.StepResolved, dra.StepInjectable} {
		for _, then := range []string{"retry", "unprepare"} {
			b.dieAtStep(step)
			if _, err := b.prepare(ctx, claim); err == nil || !strings.Contains(err.Error(), errDied.Error()) {
				t.Fatalf("%s: %v", step, err)
			}
			b.restart()
			if then == "retry" {
				names, err := b.prepare(ctx, claim)
				if err != nil {
					t.Fatalf("killed at %q: %v\n%s", step, err, b.picture())
				}
				b.has(0, placed, names)
				b.dieAtStep(dra.StepReleased)
				if err := b.unprepare(ctx, claim); err == nil {
					t.Fatal("the unprepare was not stopped")
				}
				b.restart()
			}
			if err := b.unprepare(ctx, claim); err != nil {
				t.Fatalf("killed at %q: %v", step, err)
			}
			b.idle()
		}
	}
}

// TestClaimNeverResets serves dynamic A100s, whose mode changes only with a reset: MIG devices while MIG is on, the whole GPU while it is
// off.
func TestClaimNeverResets(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "a100x8-40g", "")
	ctx := t.Context()
	partitioned := b.uuid(1)
	setMIG(t, b.bench, partitioned)
	if err := b.agent.node.inventory.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	placed := mig.Placed{Profile: "2g.10gb", Start: 2, Size: 2}
	names, err := b.prepare(ctx, b.claim("on", b.device(1, placed.String())))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.picture())
	}
	b.has(1, placed, names)
	if names, err = b.prepare(ctx, b.claim("whole", b.device(0, ""))); err != nil || names[0] != cdi.QualifiedName(string(b.uuid(0))) {
		t.Errorf("the whole GPU with MIG off: %v %v", names, err)
	}
	for name, device := range map[string]string{"mig-off": b.device(2, placed.String()), "whole-on": b.device(1, "")} {
		if _, err := b.prepare(ctx, b.claim(name, device)); err == nil || !strings.Contains(err.Error(), "not on this node") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i, on := range []bool{false, true, false} {
		if g := b.agent.node.inventory.Current().GPU(b.uuid(i)); g.MIG.Enabled != on || g.MIG.PendingEnabled != on {
			t.Errorf("the mode of GPU %d changed:\n%s", i, b.picture())
		}
	}
	for _, name := range []string{"on", "whole"} {
		claim, err := b.clients.ResourceV1().ResourceClaims("ns").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.unprepare(ctx, claim); err != nil {
			t.Fatal(err)
		}
	}
	b.idle()
	if !b.agent.node.inventory.Current().GPU(partitioned).MIG.Enabled {
		t.Error("the end of the claims turned MIG off")
	}
}

// setMIG turns MIG on as an administrator does, with a reset.
func setMIG(t *testing.T, b *bench, id gpu.UUID) {
	t.Helper()
	root := b.machine.Root()
	actions := nvidia.NewActions(nvidia.Deps{Library: b.machine.NVML(), Roots: nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}})
	pending, err := actions.SetMIGMode(id, true)
	if err == nil && pending {
		err = b.machine.ResetGPUs(string(id))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRandomClaims prepares and unprepares claims on two GPUs at random, several at the same time and across restarts of the agent, and
// compares the MIG devices with a simple twin.
func TestRandomClaims(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	ctx := t.Context()
	random := rand.New(rand.NewPCG(1, 2))
	placements := mig.Placements(&b.agent.node.inventory.Current().GPU(b.uuid(0)).MIG.Geometry)
	type held struct {
		claim  *resourceapi.ResourceClaim
		index  int
		placed mig.Placed // zero for the whole GPU
		names  []string
	}
	var prepared []held
	free := func(index int, placed mig.Placed) bool {
		return !slices.ContainsFunc(prepared, func(h held) bool {
			return h.index == index && (h.placed.Size == 0 || placed.Size == 0 ||
				placed.Start < h.placed.Start+h.placed.Size && h.placed.Start < placed.Start+placed.Size)
		})
	}
	fits := func(index int, placed mig.Placed) bool {
		wanted := mig.Wanted{Enabled: true, Placed: []mig.Placed{placed}}
		for _, h := range prepared {
			if h.index == index && placed.Size > 0 {
				wanted.Placed = append(wanted.Placed, h.placed)
			}
		}
		empty := mig.GPUOf(b.agent.node.inventory.Current().GPU(b.uuid(index)), func(gpu.DeviceKey) []string { return nil })
		return free(index, placed) && (placed.Size == 0 || mig.PlanGPU(empty, wanted).Refused == "")
	}
	check := func() {
		t.Helper()
		for _, h := range prepared {
			if h.placed.Size > 0 && b.parts(h.index)[h.placed] != h.names[0] {
				t.Fatalf("%s lost %s:\n%s", h.claim.Name, h.placed, b.picture())
			}
			if g := b.agent.node.inventory.Current().GPU(b.uuid(h.index)); h.placed.Size == 0 && g.MIG.Enabled {
				t.Fatalf("%s has the whole GPU with MIG on:\n%s", h.claim.Name, b.picture())
			}
		}
	}
	began, made := time.Now(), 0
	for step := range 60 {
		switch what := random.IntN(10); {
		case what == 0:
			b.restart()
		case what < 6:
			// Claims that the scheduler has allocated at the same time.
			var batch []held
			for range 1 + random.IntN(3) {
				one := held{index: random.IntN(2), placed: placements[random.IntN(len(placements))]}
				if random.IntN(6) == 0 {
					one.placed = mig.Placed{}
				}
				if !fits(one.index, one.placed) {
					continue
				}
				name := ""
				if one.placed.Size > 0 {
					name = one.placed.String()
				}
				made++
				one.claim = b.claim(fmt.Sprintf("c%d", made), b.device(one.index, name))
				prepared, batch = append(prepared, one), append(batch, one)
			}
			var group sync.WaitGroup
			for i := range batch {
				one := &prepared[len(prepared)-len(batch)+i]
				group.Go(func() {
					var err error
					if one.names, err = b.prepare(ctx, one.claim); err != nil || len(one.names) != 1 {
						t.Errorf("step %d: prepare %s on GPU %d: %v %v\n%s", step, one.placed, one.index, one.names, err, b.picture())
					}
				})
			}
			if group.Wait(); t.Failed() {
				return
			}
		case len(prepared) > 0:
			i := random.IntN(len(prepared))
			if err := b.unprepare(ctx, prepared[i].claim); err != nil {
				t.Fatal(err)
			}
			prepared = slices.Delete(prepared, i, i+1)
		}
		check()
	}
	t.Logf("%d claims in %s", made, time.Since(began))
	for _, h := range prepared {
		if err := b.unprepare(ctx, h.claim); err != nil {
			t.Fatal(err)
		}
	}
	b.idle()
}
