package sandbox

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/deploy"
)

func twoNodes(t *testing.T, agent AgentOptions) []Node {
	t.Helper()
	c := &Cluster{dir: t.TempDir(), state: &State{Cgroup: "sandbox-1", Nodes: []NodeState{
		{Name: "node-0", Index: 0, Agent: agent}, {Name: "node-1", Index: 1, Agent: agent},
	}}}
	return c.Nodes()
}

// shippedIn returns the DaemonSet of a manifest as it is.
func shippedIn(t *testing.T, manifest []byte) *appsv1.DaemonSet {
	t.Helper()
	objects, err := decodeObjects(bytes.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	set := &appsv1.DaemonSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, set); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestAgentSetIsTheShippedOne checks that the DaemonSet of a node is the one of deploy/agent.yaml but for what the node
// of a sandbox needs: what is added is taken away again, and the rest must be equal.
func TestAgentSetIsTheShippedOne(t *testing.T) {
	node := twoNodes(t, AgentOptions{})[0]
	got, err := node.agentSet(AgentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := shippedIn(t, deploy.Agent())
	if got.Name != want.Name {
		t.Errorf("its name is %s, want %s", got.Name, want.Name)
	}
	delete(got.Spec.Selector.MatchLabels, labelNode)
	delete(got.Spec.Template.Labels, labelNode)
	got.Spec.Template.Spec.NodeSelector = nil
	container := &got.Spec.Template.Spec.Containers[0]
	container.Args = slices.DeleteFunc(container.Args, func(arg string) bool {
		return arg == "--sim="+node.SimDir() || arg == "--cgroup-root=/sandbox-1/node-0" || arg == "--hook-dir="+node.HookDir()
	})
	spec := &got.Spec.Template.Spec
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.HostPath.Path == node.SimDir() })
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == node.SimDir() })
	for i := range spec.Volumes {
		if spec.Volumes[i].HostPath.Path == node.HookDir() {
			spec.Volumes[i].HostPath.Path = "/opt/berth/bin"
		}
	}
	for i := range container.VolumeMounts {
		if container.VolumeMounts[i].MountPath == node.HookDir() {
			container.VolumeMounts[i].MountPath = "/opt/berth/bin"
		}
	}
	if a, b := asJSON(t, got), asJSON(t, want); a != b {
		t.Errorf("the DaemonSet is\n%s\nthe manifest has\n%s", a, b)
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
		for _, dir := range []string{n.SimDir(), "/etc/a-dir", "/etc/b-dir"} {
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

// TestMPSSetIsTheShippedOne checks that the supervisor has the manifest's rights and mounts.
func TestMPSSetIsTheShippedOne(t *testing.T) {
	set, err := twoNodes(t, AgentOptions{})[0].shippedSet(deploy.MPS())
	if err != nil {
		t.Fatal(err)
	}
	want := shippedIn(t, deploy.MPS())
	got := set.Spec.Template.Spec
	if set.Name != mpsSetName || got.Containers[0].Name != mpsContainer || !got.HostIPC || !got.HostPID ||
		len(got.Volumes) != len(want.Spec.Template.Spec.Volumes)+1 || set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("the supervisor's set is %s", asJSON(t, set))
	}
}
