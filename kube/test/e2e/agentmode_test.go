package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// gpuResource is the resource name of whole GPUs, and nodeGPUs how many a node of these tests has.
const (
	gpuResource = "nvidia.com/gpu"
	nodeGPUs    = 8
)

// agentMode is one way of running the agent on a node. The agent must keep its guarantees in each of them.
type agentMode interface {
	Name() string
	// Start starts the agent; it returns when the agent reports that it is ready.
	Start(ctx context.Context) error
	// Kill ends the agent with SIGKILL. It does not run again until Start.
	Kill(ctx context.Context) error
	// Upgrade starts a new agent beside the old one and stops the old one once the new one is ready; it returns when
	// the old one has ended.
	Upgrade(ctx context.Context) error
	// Remove stops the agent in an orderly way.
	Remove(ctx context.Context) error
}

// rig is a node with an agent in one mode, for tests that run in every mode.
type rig struct {
	*sandbox.Cluster
	node sandbox.Node
	mode agentMode
}

// agentTest is a test that runs in every mode.
type agentTest struct {
	name string
	run  func(*testing.T, *rig)
}

// agentTests returns the tests in order: a node that has forgotten a GPU makes all later ones fail.
func agentTests() []agentTest {
	tests := []agentTest{
		{"GivesDevices", testGivesDevices},
		{"AgentKilled", testAgentKilled},
		{"AgentUpgraded", testAgentUpgraded},
	}
	return append(tests, kubeletTests()...)
}

func TestAgentAsDaemonSet(t *testing.T) {
	onSharedCluster(t)
	r := newRig(cluster(t))
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(r.agentLog(), "\n")
			t.Logf("the end of the agent's log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	t.Run("Permissions", func(t *testing.T) { testPermissions(t, r) })
	t.Run("Views", func(t *testing.T) { testViews(t, r) })
	runAgentTests(t, r)
	t.Run("WritesOnlyItsOwn", func(t *testing.T) { testAgentWrites(t, r.Cluster, r.node.Name(), r.podToken(t)) })
	t.Run("NothingForbidden", func(t *testing.T) { testNothingForbidden(t, r) })
	t.Run("DriverUpgraded", func(t *testing.T) { testDriverUpgraded(t, r) })
}

// TestAgentAsHostProcess runs the agent outside a pod, as a system service does. It runs with BERTH_SOAK=1 only.
func TestAgentAsHostProcess(t *testing.T) {
	soakOnly(t)
	onSharedCluster(t)
	r := newRig(cluster(t))
	shipped := r.mode
	if err := shipped.Remove(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	host := &hostAgent{node: r.node}
	r.mode = host
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(host.Remove(ctx), shipped.Start(ctx)); err != nil {
			t.Error(err)
		}
	})
	if err := host.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	runAgentTests(t, r)
}

func runAgentTests(t *testing.T, r *rig) {
	if r.State().Profile == "" {
		t.Skip("skipped: the sandbox has no simulated hardware; start it with --profile")
	}
	for _, test := range agentTests() {
		t.Run(test.name, func(t *testing.T) {
			// Check the node first, so that a test is not blamed for the leftovers of an earlier one.
			r.waitAllocatable(t, nodeGPUs)
			test.run(t, r)
		})
	}
}

// hostAgent runs the agent as a process of the node.
type hostAgent struct{ node sandbox.Node }

func (a *hostAgent) Name() string { return "process" }

func (a *hostAgent) Start(ctx context.Context) error {
	_, err := a.node.StartAgentProcess(ctx)
	return err
}

func (a *hostAgent) Kill(ctx context.Context) error {
	return a.node.EndAgentProcesses(ctx, syscall.SIGKILL)
}

func (a *hostAgent) Remove(ctx context.Context) error {
	return a.node.EndAgentProcesses(ctx, syscall.SIGTERM)
}

func (a *hostAgent) Upgrade(ctx context.Context) error {
	old := a.node.AgentProcesses()
	if err := a.Start(ctx); err != nil {
		return err
	}
	for _, agent := range old {
		if err := a.node.EndAgentProcess(ctx, agent, syscall.SIGTERM); err != nil {
			return err
		}
	}
	if left := len(a.node.AgentProcesses()); left != 1 {
		return fmt.Errorf("upgrade agent: %d agents run, want the new one alone", left)
	}
	return nil
}

// uuids maps the minor number of each GPU of the hardware to its UUID.
func (r *rig) uuids(t testing.TB) map[uint32]string {
	t.Helper()
	ids := map[uint32]string{}
	for _, gpuInfo := range hardware(t, r.node.SimDir()).GPUs {
		ids[uint32(gpuInfo.Minor)] = gpuInfo.UUID
	}
	return ids
}

// allocatable returns how many GPUs are healthy for the kubelet now. It asks the kubelet, because the node's status is
// written only every two seconds.
func (r *rig) allocatable(ctx context.Context) (int, error) {
	devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(ctx)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, d := range devices {
		if d.Resource == gpuResource {
			count += len(d.IDs)
		}
	}
	return count, nil
}

func (r *rig) waitAllocatable(t testing.TB, want int) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the kubelet has %d healthy GPUs", want), func(ctx context.Context) error {
		got, err := r.allocatable(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("it has %d", got)
		}
		return err
	})
}

// waitUntil calls check every 50 ms until it returns no complaint.
func waitUntil(t testing.TB, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := poll(ctx, what, func() error { return check(ctx) }); err != nil {
		t.Fatal(err)
	}
}
