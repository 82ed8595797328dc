package sandbox

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// twoNodes returns the nodes of a sandbox that is not started, with the chart rendered for the machine of the golden test.
func twoNodes(t *testing.T, agent AgentOptions) []Node {
	t.Helper()
	c := &Cluster{dir: t.TempDir(), state: &State{Cgroup: "sandbox-1", Nodes: []NodeState{
		{Name: "node-0", Index: 0, Agent: agent}, {Name: "node-1", Index: 1, Agent: agent},
	}}}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "charts", "testdata", "golden", "everything.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.renderedPath(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return c.Nodes()
}

// shipped returns a DaemonSet of the chart as it is.
func shipped(t *testing.T, n Node, name string) *appsv1.DaemonSet {
	t.Helper()
	objects, err := n.c.Rendered()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" && o.GetName() == name })
	set := &appsv1.DaemonSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, set); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestSetsAreTheShippedOnes checks that the DaemonSets of a node are those of the chart but for what tells the nodes apart: what is added
// is taken away again, and the rest must be equal.
func TestSetsAreTheShippedOnes(t *testing.T) {
	node := twoNodes(t, AgentOptions{})[0]
	agent, err := node.agentSet(AgentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mps, err := node.shippedSet(mpsSetName)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]*appsv1.DaemonSet{agentSetName: agent, mpsSetName: mps} {
		want := shipped(t, node, name)
		delete(got.Spec.Selector.MatchLabels, labelNode)
		delete(got.Spec.Template.Labels, labelNode)
		got.Spec.Template.Spec.NodeSelector = want.Spec.Template.Spec.NodeSelector
		if a, b := asJSON(t, got), asJSON(t, want); a != b {
			t.Errorf("the DaemonSet is\n%s\nthe chart has\n%s", a, b)
		}
	}
	if _, err := node.shippedSet("another"); err == nil || !strings.Contains(err.Error(), "the chart has no DaemonSet another") {
		t.Errorf("%v for a set that the chart does not have", err)
	}
}

// TestMachineValues checks that the values name what differs between a node of a sandbox and a machine: one path of the hardware, the
// node's own cgroup, and a directory of the hook that nodes do not share.
func TestMachineValues(t *testing.T) {
	c := twoNodes(t, AgentOptions{})[0].c
	text := asJSON(t, c.MachineValues())
	for _, want := range []string{`"--sim=` + c.hardwareDir(), `"--cgroup-root=/sandbox-1/$(NODE_NAME)"`, `"hookDir": "/var/lib/berth/bin"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the values lack %s: %s", want, text)
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAgentSetsOfNodes checks that the sets of two nodes select disjoint pods, and that options of the cluster and of
// one agent are added.
func TestAgentSetsOfNodes(t *testing.T) {
	nodes := twoNodes(t, AgentOptions{Args: []string{"--config=/etc/a"}, Dirs: []string{"/etc/a-dir"}})
	names := map[string]bool{}
	for _, n := range nodes {
		set, err := n.agentSet(AgentOptions{Image: "other", Args: []string{"--config=/etc/b"}, Env: []string{"A=b=c"}, Dirs: []string{"/etc/b-dir"}})
		if err != nil {
			t.Fatal(err)
		}
		names[set.Name] = true
		spec := set.Spec.Template.Spec
		if spec.NodeSelector[corev1.LabelHostname] != n.name || set.Spec.Selector.MatchLabels[labelNode] != n.name ||
			set.Spec.Template.Labels[labelNode] != n.name {
			t.Errorf("the set of %s selects the node %v and the pods %v", n.name, spec.NodeSelector, set.Spec.Selector.MatchLabels)
		}
		agent := spec.Containers[0]
		if args := strings.Join(agent.Args, " "); !strings.HasSuffix(args, "--config=/etc/a --config=/etc/b") {
			t.Errorf("its arguments are %s, want those of the cluster and then those of the agent at their end", args)
		}
		if agent.Image != "other" || !slices.Contains(agent.Env, corev1.EnvVar{Name: "A", Value: "b=c"}) {
			t.Errorf("its image is %s and its environment %v", agent.Image, agent.Env)
		}
		for _, dir := range []string{"/etc/a-dir", "/etc/b-dir"} {
			at := slices.IndexFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir })
			if at < 0 || !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
				return v.Name == agent.VolumeMounts[at].Name && v.HostPath.Path == dir
			}) {
				t.Errorf("the container does not have %s at the same path", dir)
			}
		}
	}
	if len(names) != len(nodes) {
		t.Errorf("the sets are named %v, want two names", names)
	}
}
