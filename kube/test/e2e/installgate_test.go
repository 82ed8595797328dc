package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// gated is a cluster of two nodes with the chart as users install it: the gate is enforced.
type gated struct {
	*installed
	api dynamic.Interface
}

// TestInstallGate installs the chart beside pods that wait for GPUs, and follows the gate of its nodes: no pod comes before the validation,
// defects stop a node with their code, and a node in use is left alone.
func TestInstallGate(t *testing.T) {
	onOwnCluster(t, 2)
	c := ownCluster(t, sandbox.Options{Nodes: 2, Profile: profileName(), NoAgent: true})
	api, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{&installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}, api}
	before := g.everything(t)
	t.Run("NoPodBefore", func(t *testing.T) { testNoPodBefore(t, g) })
	if t.Failed() {
		return
	}
	t.Run("Defects", func(t *testing.T) { testDefects(t, g) })
	t.Run("InUse", func(t *testing.T) { testGateInUse(t, g) })
	t.Run("OperatorKilled", func(t *testing.T) { testOperatorKilled(t, g) })
	t.Run("Hostile", func(t *testing.T) { testForgedValidation(t, g) })
	if found, err := denials(c, time.Time{}); err != nil || len(found) > 0 {
		t.Errorf("the API server refused %d requests of Berth's programs, %v: %v", len(found), err, found)
	}
	t.Run("RemovalBeforeHelm", func(t *testing.T) { testRemoval(t, g.installed, before, false) })
}

// gateOf returns the gate of a node; nil while it has none.
func (g *gated) gateOf(ctx context.Context, node string) (*v1alpha1.GateStatus, error) {
	typed, err := g.gpuNode(ctx, node)
	if err != nil {
		return nil, err
	}
	return typed.Status.Gate, nil
}

// gpuNode returns the GPUNode of a node.
func (g *gated) gpuNode(ctx context.Context, node string) (*v1alpha1.GPUNode, error) {
	object, err := g.api.Resource(gpuNodes()).Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	typed := &v1alpha1.GPUNode{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return nil, err
	}
	return typed, nil
}

// waitGate waits until the gate of a node has a state and a code.
func (g *gated) waitGate(t *testing.T, node string, state v1alpha1.GateState, code string, within time.Duration) *v1alpha1.GateStatus {
	t.Helper()
	var last *v1alpha1.GateStatus
	waitUntil(t, within, fmt.Sprintf("%s is %s %s", node, state, code), func(ctx context.Context) error {
		var err error
		if last, err = g.gateOf(ctx, node); err != nil {
			return err
		}
		if last == nil || last.State != state || last.Code != code {
			return fmt.Errorf("its gate is %+v", last)
		}
		return nil
	})
	return last
}

// gateTaint returns whether a Node has the gate's taint.
func gateTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintNotValidated })
}

// journal records what the watches of Nodes and pods show, in the order of the resource versions.
type journal struct {
	mu sync.Mutex
	// tainted are the Nodes that were seen with the taint; opened is the version at which each of them lost it.
	tainted map[string]bool
	opened  map[string]uint64
	// bound is the version at which a pod was bound, and to which Node.
	bound map[string]binding
	wrong []string
}

type binding struct {
	node    string
	version uint64
}

func version(t *testing.T, object metav1.Object) uint64 {
	n, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Errorf("resource version of %s: %v", object.GetName(), err)
	}
	return n
}

// record follows Nodes and pods until the test ends.
func (g *gated) record(t *testing.T) *journal {
	t.Helper()
	j := &journal{tainted: map[string]bool{}, opened: map[string]uint64{}, bound: map[string]binding{}}
	nodes, err := g.Client().CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := g.Client().CoreV1().Pods(metav1.NamespaceDefault).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes.Stop(); pods.Stop() })
	go func() {
		for event := range nodes.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok {
				j.node(t, node)
			}
		}
	}()
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				j.mu.Lock()
				if _, known := j.bound[pod.Name]; !known {
					j.bound[pod.Name] = binding{pod.Spec.NodeName, version(t, pod)}
				}
				j.mu.Unlock()
			}
		}
	}()
	return j
}

func (j *journal) node(t *testing.T, node *corev1.Node) {
	j.mu.Lock()
	defer j.mu.Unlock()
	offers := node.Status.Allocatable[gpuResource]
	switch {
	case gateTaint(node):
		j.tainted[node.Name] = true
	case j.tainted[node.Name] && j.opened[node.Name] == 0:
		j.opened[node.Name] = version(t, node)
	case j.opened[node.Name] == 0 && offers.Value() > 0:
		j.wrong = append(j.wrong, fmt.Sprintf("%s offered %d GPUs before it was tainted", node.Name, offers.Value()))
	}
}

// testNoPodBefore creates 50 pods with a GPU each, which end by themselves, before the chart is installed.
func testNoPodBefore(t *testing.T, g *gated) {
	ctx := timeout(t, 3*time.Minute)
	j := g.record(t)
	const count = 50
	var pods []*corev1.Pod
	for n := range count {
		pod := podWithGPUs("early-"+strconv.Itoa(n), 1)
		pod.Spec.Containers[0].Args = []string{"exit", "0"}
		made, err := g.CreatePod(ctx, pod)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, made)
	}
	began := time.Now()
	if _, err := g.Helm(ctx, g.MachineValues(), g.chart("install", "--create-namespace")...); err != nil {
		t.Fatal(err)
	}
	for _, node := range g.Nodes() {
		g.waitGate(t, node.Name(), v1alpha1.GateValidated, "", time.Minute)
		t.Logf("%s was validated %.1f s after the command of the installation began", node.Name(), time.Since(began).Seconds())
	}
	for _, pod := range pods {
		if _, err := g.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodSucceeded); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pods have ended %.1f s after the command", count, time.Since(began).Seconds())
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, b := range j.bound {
		if opened := j.opened[b.node]; opened == 0 || b.version < opened {
			t.Errorf("pod %s was bound to %s at version %d; the node was open at %d", name, b.node, b.version, opened)
		}
	}
	if len(j.bound) != count || len(j.tainted) != 2 || len(j.wrong) > 0 {
		t.Errorf("%d pods were bound, %v were tainted; %v", len(j.bound), j.tainted, j.wrong)
	}
	for _, pod := range pods {
		if err := g.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil {
			t.Fatal(err)
		}
	}
	g.waitNothingLeft(t)
}

// waitNothingLeft waits until nothing of a validation is left.
func (g *gated) waitNothingLeft(t *testing.T) {
	t.Helper()
	waitUntil(t, 30*time.Second, "nothing is left of validations", func(ctx context.Context) error {
		operations, err := g.api.Resource(v1alpha1.NodeOperations()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ValidationLabel})
		if err == nil && len(operations.Items)+len(pods.Items) > 0 {
			err = fmt.Errorf("%d NodeOperations and %d pods", len(operations.Items), len(pods.Items))
		}
		return err
	})
}

// agentPod returns the pod of the agent of a node, which is not the one that an upgrade ends.
func (g *gated) agentPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=berth-agent", FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	// During an upgrade there are two.
	if at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil }); at >= 0 {
		return &pods.Items[at], nil
	}
	return nil, errors.New("the node has no agent")
}

// forget makes a node one that was never validated: its agent ends, and the next one finds no record.
func (g *gated) forget(t *testing.T, node sandbox.Node) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	pod, err := g.agentPod(ctx, node.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(node.AgentDir(), "gate.json")); err != nil {
		t.Fatal(err)
	}
	if err := g.Client().CoreV1().Pods(agentNamespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
}

// defect is something that is wrong with a node before it is validated.
type defect struct {
	name  string
	fault sim.Fault
	clear string
	// make makes a defect of the node itself, and returns what repairs it; nil for a fault of the hardware.
	make func(*testing.T, sandbox.Node) (repair func())
	// seen is true for a defect that a validated node shows too.
	seen  bool
	state v1alpha1.GateState
	code  string
}

// defects returns those that are injected: three, and all with BERTH_SOAK=1.
func defects() []defect {
	all := []defect{
		{"no driver", sim.Fault{DriverGone: true}, sim.ClearDriver, nil, true, v1alpha1.GateFound, "DRIVER_MISSING"},
		{"cuInit fails", sim.Fault{CUDA: "cuInit=999"}, sim.ClearDriver, nil, false, v1alpha1.GateHeld, "VALIDATE_CUDA_INIT"},
		{"one dead GPU of eight", sim.Fault{GPU: "3", Lost: true}, "3", nil, false, v1alpha1.GateFound, "XID79"},
		{"fewer devices than offered", sim.Fault{CUDA: "count=-1"}, sim.ClearDriver, nil, false, v1alpha1.GateHeld, "VALIDATE_COUNT"},
		{"wrong sums", sim.Fault{CUDA: "wrong"}, sim.ClearDriver, nil, false, v1alpha1.GateHeld, "VALIDATE_COMPUTE"},
		{"wrong sums of one GPU", sim.Fault{GPU: "5", CUDA: "wrong"}, "5", nil, false, v1alpha1.GateHeld, "VALIDATE_COMPUTE"},
		{"no memory", sim.Fault{GPU: "1", CUDA: "cuMemAlloc_v2=2"}, "1", nil, false, v1alpha1.GateHeld, "VALIDATE_COMPUTE"},
		{"libcuda of another version", sim.Fault{CUDA: "cuInit=803"}, sim.ClearDriver, nil, false, v1alpha1.GateHeld, "VALIDATE_VERSION"},
		{"a GPU off the bus", sim.Fault{GPU: "2", OffBus: true}, "2", nil, false, v1alpha1.GateFound, "XID79"},
		{"a GPU that needs a reset", sim.Fault{GPU: "6", ECC: 1}, "6", nil, false, v1alpha1.GateFound, "XID48"},
		{"CDI is off", sim.Fault{}, "", turnCDIOff, true, v1alpha1.GateDriverReady, "RUNTIME_CDI_OFF"},
		{"a device node is missing", sim.Fault{}, "", removeDeviceNode, false, v1alpha1.GateRuntimeReady, "CDI_NODE_MISSING"},
	}
	if os.Getenv(envSoak) == "" {
		return all[:3]
	}
	return all
}

// stopLimit is how long a defect may take until the node says so, from the end of the agent before. The goal is 5 s.
const stopLimit = 30 * time.Second

func testDefects(t *testing.T, g *gated) {
	node := g.Nodes()[1]
	machine, err := sim.Open(node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			repair := func() {
				if err := machine.Clear(d.clear); err != nil {
					t.Fatal(err)
				}
			}
			if d.make != nil {
				repair = d.make(t, node)
			} else if err := machine.Inject(d.fault); err != nil {
				t.Fatal(err)
			}
			if !d.seen {
				// What was validated stays so.
				time.Sleep(3 * time.Second)
				if now, err := g.gateOf(t.Context(), node.Name()); err != nil || now.State != v1alpha1.GateValidated {
					t.Errorf("a validated node became %+v, %v", now, err)
				}
			}
			if !d.seen || d.make != nil {
				g.forget(t, node)
			}
			began := time.Now()
			stopped := g.waitGate(t, node.Name(), d.state, d.code, stopLimit)
			took := time.Since(began)
			// GPUNode and Node are written by workers of their own.
			waitUntil(t, 5*time.Second, "the Node has the gate's taint", func(ctx context.Context) error {
				object, err := g.Client().CoreV1().Nodes().Get(ctx, node.Name(), metav1.GetOptions{})
				if err == nil && !gateTaint(object) {
					err = fmt.Errorf("its taints are %v", object.Spec.Taints)
				}
				return err
			})
			if other, err := g.gateOf(t.Context(), g.Nodes()[0].Name()); err != nil || other.State != v1alpha1.GateValidated {
				t.Errorf("the other node is %+v, %v", other, err)
			}
			repair()
			fixed := time.Now()
			g.waitGate(t, node.Name(), v1alpha1.GateValidated, "", time.Minute)
			t.Logf("stopped as %s %s after %.1f s (%s); validated %.1f s after the repair", d.state, d.code, took.Seconds(), stopped.Message, time.Since(fixed).Seconds())
			g.waitFull(t, node)
		})
	}
	g.waitNothingLeft(t)
}

// sampleTaint looks at a Node every 20 ms until stop is called, which returns how often it looked and how often it saw the taint.
func (g *gated) sampleTaint(t *testing.T, node string) (stop func() (samples, tainted int)) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	samples, tainted := 0, 0
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if object, err := g.Client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil {
				samples++
				if gateTaint(object) {
					tainted++
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() (int, int) { cancel(); <-ended; return samples, tainted }
}

// testGateInUse checks that a node with a running GPU pod is never tainted: while its agent is killed, replaced, and has lost its record,
// and while the configuration changes. When the pod has ended, a pod validates the node.
func testGateInUse(t *testing.T, g *gated) {
	node := g.Nodes()[0]
	pod := podWithGPUs("user", 1)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name()}
	startPod(t, g.Cluster, pod)
	stop := g.sampleTaint(t, node.Name())
	ctx := timeout(t, 2*time.Minute)
	agent, err := g.agentPod(ctx, node.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Client().CoreV1().Pods(agentNamespace).Delete(ctx, agent.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	g.waitFull(t, node)
	values := map[string]any{"agent": map[string]any{"annotations": map[string]any{"a": "b"}},
		"configs": map[string]any{"default": map[string]any{"pollInterval": "7s"}}}
	if _, err := g.Helm(ctx, g.merged(values), g.chart("upgrade", "--wait", "--timeout", "2m")...); err != nil {
		t.Fatal(err)
	}
	g.forget(t, node)
	time.Sleep(3 * time.Second)
	waitUntil(t, 30*time.Second, node.Name()+" is validated by its agent", func(ctx context.Context) error {
		gate, err := g.gateOf(ctx, node.Name())
		if err == nil && (gate == nil || gate.By != v1alpha1.GateByAgent) {
			err = fmt.Errorf("its gate is %+v", gate)
		}
		return err
	})
	samples, tainted := stop()
	t.Logf("%d of %d samples have the taint", tainted, samples)
	if tainted > 0 || samples < 100 {
		t.Errorf("a node in use was tainted in %d of %d samples", tainted, samples)
	}
	if err := g.DeletePodAndWait(ctx, pod.Namespace, pod.Name, -1); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, node.Name()+" is validated by a pod", func(ctx context.Context) error {
		gate, err := g.gateOf(ctx, node.Name())
		if err == nil && (gate == nil || gate.By != v1alpha1.GateByPod) {
			err = fmt.Errorf("its gate is %+v", gate)
		}
		return err
	})
	g.waitNothingLeft(t)
}

// testOperatorKilled kills the operator when the operation of a node has reached a step; the next one goes on, and nothing is left.
func testOperatorKilled(t *testing.T, g *gated) {
	node := g.Nodes()[1]
	steps := []string{"PodCreated", "PodFinished"}
	if os.Getenv(envSoak) != "" {
		steps = []string{"Started", "PodCreated", "PodScheduled", "PodFinished"}
	}
	for _, step := range steps {
		g.forget(t, node)
		reached := false
		waitUntil(t, time.Minute, "the operation has the step "+step, func(ctx context.Context) error {
			if gate, err := g.gateOf(ctx, node.Name()); err == nil && reached && gate != nil && gate.State == v1alpha1.GateValidated {
				return nil // It was too fast for this look.
			}
			object, err := g.api.Resource(v1alpha1.NodeOperations()).Get(ctx, "validate-"+node.Name(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			reached = true
			op := &v1alpha1.NodeOperation{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, op); err != nil {
				return err
			}
			if !slices.ContainsFunc(op.Status.Steps, func(s v1alpha1.NodeOperationStep) bool { return s.Name == step }) {
				return fmt.Errorf("its steps are %v", op.Status.Steps)
			}
			return nil
		})
		if err := g.killOperator(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		g.waitGate(t, node.Name(), v1alpha1.GateValidated, "", 2*time.Minute)
		g.waitNothingLeft(t)
		t.Logf("killed at %s: nothing is left after %.1f s", step, time.Since(began).Seconds())
	}
}

// testForgedValidation checks that a pod of a tenant that looks like a validation pod opens no gate.
func testForgedValidation(t *testing.T, g *gated) {
	node := g.Nodes()[1]
	ctx := timeout(t, 2*time.Minute)
	scale := func(replicas int) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
		if _, err := g.Client().AppsV1().Deployments(agentNamespace).Patch(ctx, "berth-operator", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	scale(0)
	waitUntil(t, 30*time.Second, "the operator has ended", func(ctx context.Context) error {
		pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-operator"})
		if err == nil && len(pods.Items) > 0 {
			err = errors.New("it has a pod")
		}
		return err
	})
	g.forget(t, node)
	gate := g.waitGate(t, node.Name(), v1alpha1.GateHeld, "", time.Minute)
	pod := workloadPod("forged", "sleep")
	pod.Labels = map[string]string{v1alpha1.ValidationLabel: "node"}
	pod.Annotations = map[string]string{v1alpha1.ValidationKeyAnnotation: gate.Key}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name()}
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	startPod(t, g.Cluster, pod)
	const status = `{"status":{"phase":"Succeeded","containerStatuses":[{"name":"main","image":"x","imageID":"x","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":0,
		"message":"{\"apiVersion\":\"validation.berth.dev/v1\",\"kind\":\"ValidationResult\",\"passed\":true}"}}}]}}`
	if _, err := g.Client().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	if now, err := g.gateOf(ctx, node.Name()); err != nil || now.State != v1alpha1.GateHeld || !now.Tainted {
		t.Errorf("after the forged pod the gate is %+v, %v", now, err)
	}
	scale(1)
	g.waitGate(t, node.Name(), v1alpha1.GateValidated, "", time.Minute)
	if err := g.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	g.waitNothingLeft(t)
}
