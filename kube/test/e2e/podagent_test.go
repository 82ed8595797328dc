package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// Names from the chart.
const (
	agentNamespace = "berth-system"
	agentName      = "berth-agent"
	agentSelector  = "app.kubernetes.io/name=berth-agent"
)

// repository is the root of the repository as seen from this package.
func repository(path ...string) string {
	return filepath.Join(append([]string{"..", "..", ".."}, path...)...)
}

// rendered returns the objects of the chart of one name, which are a role and its binding.
func rendered(t *testing.T, c *sandbox.Cluster, name string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := c.Rendered()
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() != name })
	if len(objects) == 0 {
		t.Fatalf("the chart has no object named %s", name)
	}
	return objects
}

// podAgent runs the agent as it ships: its image, with the DaemonSet and the permissions of the chart, as the
// sandbox deploys it.
type podAgent struct{ node sandbox.Node }

func (a *podAgent) Name() string { return "DaemonSet" }

func (a *podAgent) Start(ctx context.Context) error { return a.startWith(ctx, sandbox.AgentOptions{}) }

func (a *podAgent) startWith(ctx context.Context, o sandbox.AgentOptions) error {
	if err := a.node.StartAgent(ctx, o); err != nil {
		return err
	}
	return a.node.WaitAgentReady(ctx)
}

func (a *podAgent) Kill(ctx context.Context) error { return a.node.KillAgent(ctx) }

func (a *podAgent) Upgrade(ctx context.Context) error { return a.node.UpgradeAgent(ctx) }

func (a *podAgent) Remove(ctx context.Context) error { return a.node.StopAgent(ctx) }

// newRig returns the first node of a sandbox, with the agent that the sandbox deployed.
func newRig(c *sandbox.Cluster) *rig {
	node := c.Nodes()[0]
	return &rig{Cluster: c, node: node, mode: &podAgent{node: node}}
}

// agents returns the running agents of the node.
func (r *rig) agents(t testing.TB) []sandbox.Process {
	t.Helper()
	agents, err := r.node.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return agents
}

// agent returns the node's only agent.
func (r *rig) agent(t testing.TB) sandbox.Process {
	t.Helper()
	agents := r.agents(t)
	if len(agents) != 1 {
		t.Fatalf("%d agents run on the node, want one", len(agents))
	}
	return agents[0]
}

// withAgent replaces the node's agent by one with further options until the test ends.
func (r *rig) withAgent(t testing.TB, more sandbox.AgentOptions) {
	t.Helper()
	agent := &podAgent{node: r.node}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := agent.Remove(ctx); err != nil {
			t.Error(err)
		}
		if err := r.mode.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx := timeout(t, time.Minute)
	if err := agent.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if err := agent.startWith(ctx, more); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, nodeGPUs)
}

// agentLog returns the logs of the agents that exist.
func (r *rig) agentLog() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := r.node.AgentPods(ctx)
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, pod := range pods {
		out, err := r.PodLogs(ctx, pod.Namespace, pod.Name, "agent")
		if err != nil {
			out = err.Error()
		}
		fmt.Fprintf(&text, "%s:\n%s\n", pod.Name, out)
	}
	return text.String()
}
