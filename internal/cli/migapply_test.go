package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

// cluster simulates a node with an agent, as far as apply can see it, in a synctest bubble.
type cluster struct {
	t      *testing.T
	client *fake.FakeDynamicClient
	node   *v1alpha1.GPUNode
	// refusals are the responses to the next evictions.
	refusals []error
	// mu guards changes at a point in time, and evictions.
	mu sync.Mutex
	// evictions lists the evicted pods in order.
	evictions []string
}

func newCluster(t *testing.T, pods ...*unstructured.Unstructured) *cluster {
	kinds := map[schema.GroupVersionResource]string{
		nodesResource(): "NodeList", podsResource(): "PodList", v1alpha1.GPUNodes(): "GPUNodeList",
	}
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-0", "labels": map[string]any{"zone": "a"}},
	}}
	objects := []runtime.Object{node}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	c := &cluster{t: t, client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)}
	c.client.PrependReactor("create", "pods", func(action kubetesting.Action) (bool, runtime.Object, error) {
		object := action.(kubetesting.CreateAction).GetObject().(*unstructured.Unstructured)
		uid, _, _ := unstructured.NestedString(object.Object, "deleteOptions", "preconditions", "uid")
		if action.GetSubresource() != "eviction" || object.GetAPIVersion() != "policy/v1" || uid == "" {
			t.Errorf("not an eviction of a pod by its UID: %v", object)
		}
		if len(c.refusals) > 0 {
			err := c.refusals[0]
			c.refusals = c.refusals[1:]
			if err != nil {
				return true, nil, err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.evictions = append(c.evictions, object.GetNamespace()+"/"+object.GetName()+" "+uid)
		return true, object, nil
	})
	c.node = &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode)}
	c.node.Name = "node-0"
	profiles := []v1alpha1.MIGProfile{
		{Name: "1g.10gb", ComputeSlices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7},
		{Name: "7g.80gb", ComputeSlices: 7, Size: 8, Starts: []int{0}, Max: 1},
	}
	c.node.Status.Devices = []v1alpha1.GPUDevice{{UUID: "GPU-a", Product: "H100", MIGProfiles: profiles}}
	c.publish()
	return c
}

func pod(name, uid string, owned bool) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ml", "name": name, "uid": uid},
	}}
	if owned {
		yes := true
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x",
			UID: "x", Controller: &yes}})
	}
	return object
}

// publish writes the current GPUNode.
func (c *cluster) publish() {
	blob, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.node.DeepCopy())
	if err != nil {
		c.t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: blob}
	if err := c.client.Tracker().Add(object); apierrors.IsAlreadyExists(err) {
		err = c.client.Tracker().Update(v1alpha1.GPUNodes(), object, "")
		if err != nil {
			c.t.Fatal(err)
		}
	} else if err != nil {
		c.t.Fatal(err)
	}
}

// label sets a label of the Node.
func (c *cluster) label(name, value string) {
	object, err := c.client.Tracker().Get(nodesResource(), "", "node-0")
	if err != nil {
		c.t.Fatal(err)
	}
	node := object.(*unstructured.Unstructured).DeepCopy()
	labels := node.GetLabels()
	labels[name] = value
	node.SetLabels(labels)
	if err := c.client.Tracker().Update(nodesResource(), node, ""); err != nil {
		c.t.Fatal(err)
	}
}

// state sets what the agent reports.
func (c *cluster) state(label string, status metav1.ConditionStatus, message string) {
	c.node.Status.Config.MIGLayout = "small"
	c.node.Status.Conditions = []metav1.Condition{{Type: conditionMIGApplied, Status: status, Message: message}}
	c.publish()
	c.label(labelMIGState, label)
}

// hold sets the pods that hold the GPU; no names means none.
func (c *cluster) hold(names ...string) {
	c.node.Status.Devices[0].Holders = nil
	for _, name := range names {
		c.node.Status.Devices[0].Holders = append(c.node.Status.Devices[0].Holders,
			v1alpha1.Holder{Kind: "Pod", Namespace: "ml", Pod: name, PodUID: "uid-" + name, Container: "main"})
	}
	c.publish()
}

// partitioned sets the GPU to the layout.
func (c *cluster) partitioned() {
	device := &c.node.Status.Devices[0]
	device.MIGEnabled, device.MIGDevices = true, []v1alpha1.MIGDevice{{UUID: "MIG-1", Profile: "1g.10gb", GI: 7, Start: 6, Size: 1}}
	c.state(stateSuccess, metav1.ConditionTrue, "")
}

// after runs do after that many seconds of the bubble's time.
func (c *cluster) after(seconds float64, do func()) {
	time.AfterFunc(time.Duration(seconds*float64(time.Second)), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		do()
	})
}

func budget() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "DisruptionBudget",
		Message: "The disruption budget web needs 1 healthy pods and has 1 currently"}}
	return err
}

func forbidden(what string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "a", errors.New("no"))
}

func TestApply(t *testing.T) {
	const set = "set the label nvidia.com/mig.config=small of Node node-0\n"
	const waiting = "waiting for berth-agent on node-0 to accept the layout\n"
	const applied = "applied: the GPUs of node-0 have the layout small\n"
	tests := map[string]struct {
		pods      []*unstructured.Unstructured
		force     bool
		wait      time.Duration
		world     func(c *cluster)
		want      string
		err       string
		code      int
		evictions []string
		took      time.Duration
	}{
		"no holder": {
			world: func(c *cluster) {
				c.after(1.5, func() { c.state("pending", metav1.ConditionFalse, "GPU 0 changes") })
				c.after(2.5, c.partitioned)
			},
			want: set + waiting + "waiting: GPU 0 changes\n" + applied, took: 3 * time.Second,
		},
		"the agent is at once": {
			world: func(c *cluster) {
				c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
					c.after(0.1, c.partitioned)
					return false, nil, nil
				})
			},
			want: set + waiting + applied, took: time.Second,
		},
		"already there": {
			world: func(c *cluster) { c.label(labelMIG, "small"); c.partitioned() },
		},
		"already there, under another name": {
			world: func(c *cluster) {
				c.label(labelMIG, "other")
				c.partitioned()
				c.node.Status.Config.MIGLayout = "other"
				c.publish()
				c.after(0.5, c.partitioned)
			},
			want: set + waiting + applied, took: time.Second,
		},
		"already asked for": {
			world: func(c *cluster) {
				c.label(labelMIG, "small")
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a")
				c.after(1.5, c.partitioned)
			},
			want: "Node node-0 already has the label nvidia.com/mig.config=small\nwaiting: GPU 0 waits for ml/a\n" +
				applied, took: 2 * time.Second,
		},
		"without waiting": {
			wait: -1, want: set,
		},
		"waits for a pod that stays": {
			wait: 4 * time.Second,
			world: func(c *cluster) {
				c.hold("a")
				c.after(0.5, func() { c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a") })
			},
			want: set + waiting + "waiting: GPU 0 waits for ml/a\n",
			err:  "apply small to node-0: not applied after 4s: GPU 0 waits for ml/a\nthe request stays",
			code: ExitFinding, took: 4 * time.Second,
		},
		"no agent": {
			wait: 2 * time.Second, want: set + waiting,
			err: "berth-agent has not accepted the layout; check that it runs on the node", code: ExitFinding, took: 2 * time.Second,
		},
		"it fails": {
			world: func(c *cluster) {
				c.after(0.5, func() { c.state(stateFailed, metav1.ConditionFalse, "GPU 0: reset: in use by another process") })
			},
			want: set + waiting + "waiting: GPU 0: reset: in use by another process\n",
			err:  "apply small to node-0: failed: GPU 0: reset: in use by another process", code: ExitFinding, took: 4 * time.Second,
		},
		"the failure of the layout before": {
			world: func(c *cluster) {
				c.state(stateFailed, metav1.ConditionFalse, "the layout before")
				c.after(1.5, func() { c.state("pending", metav1.ConditionFalse, "GPU 0 changes") })
				c.after(2.5, c.partitioned)
			},
			want: set + "waiting: the layout before\nwaiting: GPU 0 changes\n" + applied, took: 3 * time.Second,
		},
		"the success of the layout before": {
			world: func(c *cluster) {
				c.state(stateSuccess, metav1.ConditionTrue, "")
				c.after(1.5, func() { c.state("pending", metav1.ConditionFalse, "GPU 0 changes") })
				c.after(5.5, c.partitioned)
			},
			want: set + "waiting for berth-agent on node-0\nwaiting: GPU 0 changes\n" + applied, took: 6 * time.Second,
		},
		"a GPU that the agent leaves alone": {
			world: func(c *cluster) { c.after(0.5, func() { c.state(stateSuccess, metav1.ConditionTrue, "") }) },
			want: set + waiting + "waiting for berth-agent on node-0\n" +
				"applied, as the agent of node-0 reports; it does not change: GPU 0\n", took: 4 * time.Second,
		},
		"another user wants another layout": {
			world: func(c *cluster) { c.after(1.5, func() { c.label(labelMIG, "large") }) },
			want:  set + waiting, err: `its label nvidia.com/mig.config was changed to "large"`,
			code: ExitFinding, took: 2 * time.Second,
		},
		"the API is away for a while": {
			world: func(c *cluster) {
				var back atomic.Bool
				c.client.PrependReactor("get", "gpunodes", func(kubetesting.Action) (bool, runtime.Object, error) {
					return !back.Load(), nil, errors.New("connection refused")
				})
				c.after(2.5, func() { back.Store(true); c.partitioned() })
			},
			want: set + "the API server did not answer, retrying: connection refused\n" + applied, took: 3 * time.Second,
		},
		"the node is gone": {
			world: func(c *cluster) {
				c.after(0.5, func() { _ = c.client.Tracker().Delete(nodesResource(), "", "node-0") })
			},
			want: set + waiting, err: "wait for node-0: read Node node-0", code: ExitUnknown, took: time.Second,
		},
		"no right to set the label": {
			world: func(c *cluster) {
				c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object,
					error) {
					return true, nil, forbidden("nodes")
				})
			},
			err: "fix: get the permission to patch nodes", code: ExitUnknown,
		},
		"eviction, only once the agent has the label": {
			pods: []*unstructured.Unstructured{pod("a", "uid-a", true), pod("b", "uid-b", false)}, force: true,
			world: func(c *cluster) {
				c.hold("a", "b")
				c.after(1.5, func() {
					if len(c.evictions) > 0 {
						t.Error("evicted before the agent had the label")
					}
					c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a and ml/b")
				})
				c.after(4.5, func() { c.hold(); c.partitioned() })
			},
			want: set + waiting + "waiting: GPU 0 waits for ml/a and ml/b\nevicted ml/a\n" +
				"evicted ml/b; it has no controller, so it is not created again\n" + applied,
			evictions: []string{"ml/a uid-a", "ml/b uid-b"}, took: 5 * time.Second,
		},
		"a budget keeps the pod for a while": {
			pods: []*unstructured.Unstructured{pod("a", "uid-a", true)}, force: true,
			world: func(c *cluster) {
				c.refusals = []error{budget(), budget(), nil}
				c.hold("a")
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a")
				c.after(4.5, func() { c.hold(); c.partitioned() })
			},
			want: set + "waiting: GPU 0 waits for ml/a\n" +
				"ml/a is not evicted yet, its PodDisruptionBudget prevents it: Cannot evict pod as it would violate " +
				"the pod's disruption budget. " +
				"(The disruption budget web needs 1 healthy pods and has 1 currently)\nevicted ml/a\n" + applied,
			evictions: []string{"ml/a uid-a"}, took: 5 * time.Second,
		},
		"a budget prevents the eviction permanently": {
			pods: []*unstructured.Unstructured{pod("a", "uid-a", true)}, force: true, wait: 3 * time.Second,
			world: func(c *cluster) {
				c.refusals = slices.Repeat([]error{budget()}, 10)
				c.hold("a")
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a")
			},
			want: set + "waiting: GPU 0 waits for ml/a\n" +
				"ml/a is not evicted yet, its PodDisruptionBudget prevents it: Cannot evict pod as it would violate " +
				"the pod's disruption budget. " +
				"(The disruption budget web needs 1 healthy pods and has 1 currently)\n",
			err: "not applied after 3s", code: ExitFinding, took: 3 * time.Second,
		},
		"no right to evict": {
			pods: []*unstructured.Unstructured{pod("a", "uid-a", true)}, force: true,
			world: func(c *cluster) {
				c.refusals = []error{forbidden("pods/eviction")}
				c.hold("a")
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits for ml/a")
			},
			want: set + "waiting: GPU 0 waits for ml/a\n", err: "fix: get the permission to create pods/eviction in namespace ml", code: ExitUnknown,
		},
		"the pod is gone, and one takes its place": {
			force: true,
			world: func(c *cluster) {
				c.refusals = []error{apierrors.NewNotFound(podsResource().GroupResource(), "a"), nil}
				c.hold("a")
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits")
				c.after(1.5, func() { c.hold("b") })
				c.after(3.5, func() { c.hold(); c.partitioned() })
			},
			want: set + "waiting: GPU 0 waits\nevicted ml/b\n" + applied, evictions: []string{"ml/b uid-b"}, took: 4 * time.Second,
		},
		"those that cannot be evicted": {
			pods: []*unstructured.Unstructured{func() *unstructured.Unstructured {
				static := pod("static", "uid-static", false)
				static.SetAnnotations(map[string]string{"kubernetes.io/config.mirror": "x"})
				return static
			}()}, force: true, wait: 2 * time.Second,
			world: func(c *cluster) {
				c.hold("static")
				device := &c.node.Status.Devices[0]
				device.Holders = append(device.Holders, v1alpha1.Holder{Kind: "Orphan", Namespace: "ml", Pod: "lost",
					PodUID: "ul"}, v1alpha1.Holder{Kind: "Claim"}, v1alpha1.Holder{Kind: string(gpu.HolderMaintenance)})
				c.state("pending", metav1.ConditionFalse, "GPU 0 waits")
			},
			want: set + "waiting: GPU 0 waits\nml/static cannot be evicted: it is a static pod of the node\n" +
				"ml/lost (orphan) cannot be evicted: the API server has no such pod\nResourceClaim cannot be evicted: the API server has no such pod\n",
			err: "not applied after 2s", code: ExitFinding, took: 2 * time.Second,
		},
		"names that would move the cursor": {
			wait:  time.Second,
			world: func(c *cluster) { c.state("pending", metav1.ConditionFalse, "evil\x1b[2J") },
			want:  set + `waiting: evil\x1b[2J` + "\n", err: `evil\x1b[2J`, code: ExitFinding, took: time.Second,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, test.pods...)
				if test.world != nil {
					test.world(c)
				}
				var out bytes.Buffer
				a := &applier{
					client: c.client, clock: clock.RealClock{}, out: &out, node: "node-0", layoutName: "small",
					force: test.force, wait: test.wait,
					layout: mig.Layout{{All: true, Enabled: true, Devices: map[string]int{"1g.10gb": 1}}},
				}
				if a.wait == 0 {
					a.wait = time.Minute
				}
				c.mu.Lock()
				node := c.node.DeepCopy()
				c.mu.Unlock()
				start := time.Now()
				err := a.apply(t.Context(), node)
				if got := time.Since(start); got != test.took {
					t.Errorf("it took %s, want %s", got, test.took)
				}
				if diff := cmp.Diff(test.want, out.String()); diff != "" {
					t.Errorf("output (-want +got):\n%s", diff)
				}
				if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
					t.Errorf("error is %v, want %q", err, test.err)
				}
				if got := exitCode(err); got != test.code {
					t.Errorf("exit code %d, want %d", got, test.code)
				}
				if diff := cmp.Diff(test.evictions, c.evictions); diff != "" {
					t.Errorf("evictions (-want +got):\n%s", diff)
				}
				if test.err == "" {
					labels, err := a.labels(t.Context())
					if err != nil || labels[labelMIG] != "small" || labels["zone"] != "a" {
						t.Errorf("labels of the Node: %v, %v", labels, err)
					}
				}
			})
		})
	}
}

// TestApplyInterrupted checks that an interrupt leaves the label and prints that.
func TestApplyInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		ctx, cancel := context.WithCancel(t.Context())
		c.after(1.5, cancel)
		a := &applier{client: c.client, clock: clock.RealClock{}, out: io.Discard, node: "node-0", layoutName: "small", wait: time.Minute}
		err := a.apply(ctx, c.node.DeepCopy())
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the label stays set") || exitCode(err) != ExitUnknown {
			t.Errorf("error is %v", err)
		}
	})
}

// TestMIGExitCodes runs the whole command.
func TestMIGExitCodes(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	dir := filepath.Join(t.TempDir(), "node")
	if _, err := sim.CreateWith(dir, "a100x8-40g", sim.Options{NoDeviceNodes: true}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "layouts.yaml")
	layouts := "version: v1\nmig-configs:\n  too-much:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 8}}\n"
	if err := os.WriteFile(file, []byte(layouts), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want int
	}{
		"a plan":         {[]string{"plan", "--sim", dir, "all-balanced"}, ExitOK},
		"nothing to do":  {[]string{"plan", "--sim", dir, "all-disabled"}, ExitOK},
		"refused":        {[]string{"plan", "--sim", dir, "--file", file, "too-much"}, ExitFinding},
		"unknown layout": {[]string{"plan", "--sim", dir, "all-9g.1gb"}, ExitUnknown},
		"no such file":   {[]string{"plan", "--sim", dir, "--file", file + "x", "too-much"}, ExitUnknown},
		"no hardware":    {[]string{"plan", "--sim", dir + "x", "all-disabled"}, ExitUnknown},
		"no API server":  {[]string{"apply", "node-0", "all-disabled"}, ExitUnknown},
		"too few":        {[]string{"apply", "node-0"}, ExitUnknown},
		"layouts":        {[]string{"layouts", "--sim", dir}, ExitOK},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			deps := Deps{Out: &out, Err: &out, Name: "berth", KubeletDir: filepath.Join(dir, "no-kubelet"), OpenLibrary: openInProcess}
			if got := Run(t.Context(), deps, append([]string{"mig"}, test.args...)); got != test.want {
				t.Errorf("exit code %d, want %d:\n%s", got, test.want, out.String())
			}
		})
	}
}

// TestGPUsOfGPUNode checks that the planner gets the same data from a GPUNode as from the hardware itself.
func TestGPUsOfGPUNode(t *testing.T) {
	c := newCluster(t)
	device := &c.node.Status.Devices[0]
	device.DeviceID, device.MIGModeNeedsReset, device.MIGEnabled = "0x233010DE", true, true
	device.MIGDevices = []v1alpha1.MIGDevice{
		{UUID: "MIG-1", Profile: "1g.10gb", GI: 7, Start: 6, Size: 1,
			Holders: []v1alpha1.Holder{{Kind: "Pod", Namespace: "ml", Pod: "a"},
				{Kind: string(gpu.HolderMaintenance)}}},
	}
	gpus := gpusOf(c.node)
	got := fmt.Sprintf("%s %#x %v %v %v %d/%d %d %v", gpus[0].Product, gpus[0].DeviceID, gpus[0].Capable, gpus[0].Enabled,
		gpus[0].ModeNeedsReset, gpus[0].Geometry.MemorySlices, gpus[0].Geometry.ComputeSlices, len(gpus[0].Geometry.Profiles), gpus[0].Instances)
	want := "H100 0x233010de true true true 8/7 2 [{MIG-1 7 1g.10gb 6 1 [] [ml/a]}]"
	if got != want {
		t.Errorf("GPU is %s, want %s", got, want)
	}
}
