package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// Names from deploy/agent.yaml.
const (
	agentNamespace = "berth-system"
	agentName      = "berth-agent"
	agentSelector  = "app.kubernetes.io/name=berth-agent"
)

// repository is the root of the repository as seen from this package.
func repository(path ...string) string {
	return filepath.Join(append([]string{"..", "..", ".."}, path...)...)
}

// podAgent runs the agent as it ships: its image, with the DaemonSet and the permissions of deploy/agent.yaml, as the
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

// decodeFile returns the objects of a file.
func decodeFile(path string) ([]*unstructured.Unstructured, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(f, 4096)
	var objects []*unstructured.Unstructured
	for {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case len(o.Object) > 0:
			objects = append(objects, &o)
		}
	}
}
