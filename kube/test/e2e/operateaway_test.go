package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestOperateAway kills the operator during an installation, takes the API server away under a running GPU pod, and takes the operator
// its Lease: the installation converges, and nothing changes on the node.
func TestOperateAway(t *testing.T) {
	onOwnCluster(t, 1)
	c := ownCluster(t, sandbox.Options{Nodes: 1, Profile: profileName(), NoAgent: true})
	api, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{&installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}, api}
	t.Run("KilledDuringInstall", func(t *testing.T) { testKilledDuringInstall(t, g) })
	if t.Failed() {
		return
	}
	pod := startPod(t, c, podWithGPUs("user", 1))
	t.Run("APIServer", func(t *testing.T) { testAPIServerAway(t, g, pod) })
	t.Run("Leader", func(t *testing.T) { testLeaderLost(t, g, pod) })
}

// testKilledDuringInstall kills the operator each time when it has made something for the first time.
func testKilledDuringInstall(t *testing.T, g *gated) {
	ctx := timeout(t, 3*time.Minute)
	began := time.Now()
	if _, err := g.Helm(ctx, g.MachineValues(), g.chart("install", "--create-namespace")...); err != nil {
		t.Fatal(err)
	}
	there := func(resource schema.GroupVersionResource, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := g.api.Resource(resource).Get(ctx, name, metav1.GetOptions{})
			return err
		}
	}
	for _, step := range []struct {
		what string
		made func(context.Context) error
	}{
		{"the first definition", there(definitions(), "gpunodes.berth.dev")},
		{"the last definition", there(definitions(), "nodeoperations.berth.dev")},
		{"the GPUStack", there(v1alpha1.GPUStacks(), v1alpha1.GPUStackName)},
		{"the NodeOperation", func(ctx context.Context) error {
			err := there(v1alpha1.NodeOperations(), "validate-"+g.Nodes()[0].Name())(ctx)
			if gate, gateErr := g.gateOf(ctx, g.Nodes()[0].Name()); gateErr == nil && gate != nil && gate.State == v1alpha1.GateValidated {
				return nil // It came and went between two looks.
			}
			return err
		}},
	} {
		waitUntil(t, time.Minute, "the operator has made "+step.what, step.made)
		if err := g.killOperator(ctx); err != nil {
			t.Fatal(err)
		}
	}
	g.waitGate(t, g.Nodes()[0].Name(), v1alpha1.GateValidated, "", time.Minute)
	g.waitNothingLeft(t)
	for _, plural := range []string{"gpunodes", "gpuquotas", "gpustacks", "nodeoperations"} {
		g.waitDefinition(t, plural+".berth.dev")
	}
	g.waitFull(t, g.Nodes()[0])
	t.Logf("with an operator that was killed four times the node was validated %.1f s after the command of the installation began", time.Since(began).Seconds())
}

func (g *gated) killOperator(ctx context.Context) error {
	return g.Client().CoreV1().Pods(agentNamespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-operator"})
}

// state is what must not change on a node: the files of Berth with their content, the agent's process, the pod's, and the Node's spec and
// labels.
func (g *gated) state(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	ctx := timeout(t, 30*time.Second)
	node := g.Nodes()[0]
	var all []string
	for _, file := range filesOf(t, node) {
		if !slices.ContainsFunc([]string{"/run/berth/ledger", "/run/berth/grants", "checkpoint"}, func(part string) bool { return strings.Contains(file, part) }) {
			text, err := os.ReadFile(filepath.Join(node.Root(), file))
			if err != nil {
				text = nil // A folder or a socket.
			}
			all = append(all, fmt.Sprintf("file %s %x", file, sha256.Sum256(text)))
		}
	}
	agent, err := g.agentPod(ctx, node.Name())
	if err != nil {
		t.Fatal(err)
	}
	user, err := g.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{agent, user} {
		all = append(all, fmt.Sprintf("pod %s %s %s %d", p.Name, p.UID, p.Status.Phase, restarts(p)))
	}
	object, err := g.Client().CoreV1().Nodes().Get(ctx, node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, fmt.Sprintf("taints %v", object.Spec.Taints), fmt.Sprintf("labels %v", object.Labels),
		fmt.Sprintf("allocatable %v", object.Status.Allocatable[gpuResource]))
	return all
}

// testAPIServerAway stops the API server: it accepts connections and does not respond. BERTH_SOAK=1 for 5 minutes.
func testAPIServerAway(t *testing.T, g *gated, pod *corev1.Pod) {
	away := 20 * time.Second
	if os.Getenv(envSoak) != "" {
		away = 4*time.Minute + 50*time.Second // After 5 minutes Kubernetes itself evicts the pods of a node that was not heard of.
	}
	before := g.state(t, pod)
	processes := g.State().Processes
	at := slices.IndexFunc(processes, func(p sandbox.Process) bool { return p.Name == "kube-apiserver" })
	if err := syscall.Kill(processes[at].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(away)
	if err := syscall.Kill(processes[at].PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.waitSame(t, pod, before)
	t.Logf("nothing has changed on the node after %s without the API server", away)
}

// waitSame waits until the cluster is as before: the kubelet's Node can be NotReady for a while, and must not get taints of Berth.
func (g *gated) waitSame(t *testing.T, pod *corev1.Pod, before []string) {
	t.Helper()
	waitUntil(t, time.Minute, "the node is ready", func(ctx context.Context) error {
		node, err := g.Client().CoreV1().Nodes().Get(ctx, g.Nodes()[0].Name(), metav1.GetOptions{})
		if err == nil && len(node.Spec.Taints) > 0 {
			err = fmt.Errorf("its taints are %v", node.Spec.Taints)
		}
		return err
	})
	time.Sleep(3 * time.Second) // What the operator and the agent would do now.
	if diff := cmp.Diff(before, g.state(t, pod)); diff != "" {
		t.Errorf("state of the node (-before +after):\n%s", diff)
	}
	if gate, err := g.gateOf(t.Context(), g.Nodes()[0].Name()); err != nil || gate.State != v1alpha1.GateValidated {
		t.Errorf("the gate is %+v, %v", gate, err)
	}
	g.waitNothingLeft(t)
}

// testLeaderLost gives the operator's Lease to somebody else: the operator ends, and takes the Lease again when it has expired.
func testLeaderLost(t *testing.T, g *gated, pod *corev1.Pod) {
	before := g.state(t, pod)
	ctx := timeout(t, 2*time.Minute)
	leases := g.Client().CoordinationV1().Leases(agentNamespace)
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	patch := fmt.Appendf(nil, `{"spec":{"holderIdentity":"somebody-else","acquireTime":%[1]q,"renewTime":%[1]q}}`, now)
	if _, err := leases.Patch(ctx, "berth-operator", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, time.Minute, "the operator has the Lease again", func(ctx context.Context) error {
		lease, err := leases.Get(ctx, "berth-operator", metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "somebody-else") {
			err = errors.New("somebody else has it")
		}
		return err
	})
	g.waitSame(t, pod, before)
	t.Logf("the operator has its Lease again after %.1f s, and nothing has changed on the node", time.Since(began).Seconds())
}
