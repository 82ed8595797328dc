package fit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// publish returns what the agent of a simulated machine publishes, and the names of the whole GPUs in the slices' order.
func publish(t testing.TB, node, profile string, dynamic bool) ([]resourceapi.ResourceSlice, []string) {
	t.Helper()
	s := nvidiatest.New(t, profile).Scan()
	settings := pool.Settings{Node: node, GPUs: map[gpu.UUID]pool.Use{}}
	for i := range s.GPUs {
		settings.GPUs[s.GPUs[i].UUID] = pool.Use{DynamicMIG: dynamic}
	}
	result := pool.Build(s, settings, nil)
	if err := pool.Validate(result.Slices); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range result.Slices {
		result.Slices[i].Name = fmt.Sprintf("%s-%d", node, i)
		for _, d := range result.Slices[i].Spec.Devices {
			if !strings.Contains(d.Name, "-me") && len(d.Name) == len("gpu-2a5c3378-40cb-28cb-9611-4167e5155386") {
				names = append(names, d.Name)
			}
		}
	}
	return result.Slices, names
}

// cluster is one with the classes of Berth, and a Node for each machine.
type cluster struct {
	Cluster
	gpus map[string][]string
}

func newCluster(t testing.TB, dynamic bool, profiles ...string) *cluster {
	t.Helper()
	classes, err := class.Classes(class.Settings{Profiles: class.DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: Cluster{Classes: classes}, gpus: map[string][]string{}}
	for i, profile := range profiles {
		name := fmt.Sprintf("node-%d", i)
		list, names := publish(t, name, profile, dynamic)
		c.Slices = append(c.Slices, list...)
		c.gpus[name] = names
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}})
	}
	return c
}

// allocate adds a claim that has devices of a node.
func (c *cluster) allocate(name, node string, devices ...string) {
	claim := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
	claim.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	for _, device := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: pool.DefaultDriver, Pool: node, Device: device,
		})
	}
	c.Claims = append(c.Claims, claim)
}

// taint adds a taint to the device at an index of a node's GPUs.
func (c *cluster) taint(node string, index int) {
	for i := range c.Slices {
		for d := range c.Slices[i].Spec.Devices {
			if device := &c.Slices[i].Spec.Devices[d]; device.Name == c.gpus[node][index] {
				device.Taints = []resourceapi.DeviceTaint{{Key: "gpu.berth.dev/health", Value: "Unhealthy", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
}

// check returns the answers for a file, on a machine of any speed.
func (c *cluster) check(t testing.TB, text string) []v1alpha1.FitItem {
	t.Helper()
	settings := Defaults()
	settings.Timeout, settings.Explain = time.Minute, 20*time.Second
	return c.checkWith(t, settings, text)
}

// checkWith is check by a scheduler with other settings.
func (c *cluster) checkWith(t testing.TB, settings Settings, text string) []v1alpha1.FitItem {
	t.Helper()
	file, err := Parse("claim.yaml", []byte(text), "default", settings)
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := file.Workloads(c.Claims, nil)
	if err != nil {
		t.Fatal(err)
	}
	checker := New(c.Cluster, settings)
	var items []v1alpha1.FitItem
	for i := range workloads {
		item, err := checker.Check(t.Context(), &workloads[i], "")
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	return items
}

// summary is an answer in lines: NODE: n devices, or NODE: CODE message.
func summary(items []v1alpha1.FitItem) (lines []string) {
	for _, item := range items {
		for _, reason := range item.Reasons {
			lines = append(lines, fmt.Sprintf("*: %s %s", reason.Code, reason.Message))
		}
		for _, node := range item.Nodes {
			if node.Fits {
				lines = append(lines, fmt.Sprintf("%s: fits with %d", node.Name, len(node.Devices)))
			}
			for _, reason := range node.Reasons {
				lines = append(lines, fmt.Sprintf("%s: %s %s", node.Name, reason.Code, reason.Message))
			}
		}
	}
	return lines
}

// claimFile returns a file of one claim with one request, with lines added to the request and to the claim.
func claimFile(count int, class, request, devices string) string {
	return fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: large}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: %s, count: %d%s}
%s`, class, count, request, devices)
}

const island = `    constraints: [{requests: [gpu], matchAttribute: gpu.berth.dev/nvlinkIsland}]`

func selector(expression string) string {
	return fmt.Sprintf(`, selectors: [{cel: {expression: %q}}]`, expression)
}

const hopper = `device.attributes["gpu.berth.dev"].architecture == "Hopper"`

func TestReasons(t *testing.T) {
	clean := newCluster(t, false, "h100x8", "a100x8-80g")
	for _, test := range []struct {
		name   string
		file   string
		change func(*cluster)
		want   []string
	}{
		{"fits", claimFile(8, "gpu.berth.dev", "", ""), nil, []string{"node-0: fits with 8", "node-1: fits with 8"}},
		{
			"by selector", claimFile(1, "gpu.berth.dev", selector(hopper), ""), nil, []string{
				"node-0: fits with 1",
				`node-1: TooFewMatch Request gpu of ResourceClaim large: 0 of the node's 8 devices of DeviceClass gpu.berth.dev match, and it wants 1: selector 1 (` + hopper + `) excludes 8.`,
			},
		},
		{
			"too many", claimFile(9, "gpu.berth.dev", "", ""), nil, []string{
				"node-0: TooFewMatch Request gpu of ResourceClaim large: 8 of the node's 8 devices of DeviceClass gpu.berth.dev match, and it wants 9.",
				"node-1: TooFewMatch Request gpu of ResourceClaim large: 8 of the node's 8 devices of DeviceClass gpu.berth.dev match, and it wants 9.",
			},
		},
		{
			"no class", claimFile(1, "gpu.example.com", "", ""), nil,
			[]string{"*: DeviceClassMissing DeviceClass gpu.example.com of request gpu of ResourceClaim large does not exist."},
		},
		{
			"class of another driver", claimFile(1, "nic.example.com", "", ""),
			func(c *cluster) {
				nic := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
				nic.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}
				c.Classes = append(c.Classes, nic)
				c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-only"}})
			},
			[]string{
				"cpu-only: NoDevices No ResourceSlice has devices for the node: no DRA driver has published any.",
				"node-0: ClassMatchesNothing Request gpu of ResourceClaim large: none of the node's 8 devices (gpu.berth.dev) is of DeviceClass nic.example.com.",
				"node-1: ClassMatchesNothing Request gpu of ResourceClaim large: none of the node's 8 devices (gpu.berth.dev) is of DeviceClass nic.example.com.",
			},
		},
		{
			"held", claimFile(2, "gpu.berth.dev", selector(hopper), ""), func(c *cluster) {
				c.Nodes = c.Nodes[:1]
				c.allocate("train", "node-0", c.gpus["node-0"][:5]...)
				c.allocate("infer", "node-0", c.gpus["node-0"][5:7]...)
			},
			[]string{"node-0: Held Other claims hold 7 of the 8 devices that match: ml/infer (GPU5), ml/train (GPU0)."},
		},
		{
			"admin access is not held", claimFile(8, "gpu.berth.dev", "", ""), func(c *cluster) {
				c.Nodes = c.Nodes[:1]
				c.allocate("monitor", "node-0", c.gpus["node-0"]...)
				for i := range c.Claims[0].Status.Allocation.Devices.Results {
					c.Claims[0].Status.Allocation.Devices.Results[i].AdminAccess = new(true)
				}
			},
			[]string{"node-0: fits with 8"},
		},
		{
			"tainted", claimFile(8, "gpu.berth.dev", "", ""), func(c *cluster) { c.Nodes = c.Nodes[:1]; c.taint("node-0", 3) },
			[]string{"node-0: Tainted Request gpu of ResourceClaim large: 1 of the 8 devices that match has the taint gpu.berth.dev/health=Unhealthy:NoSchedule, which it does not tolerate."},
		},
		{
			"tolerated", claimFile(8, "gpu.berth.dev", ", tolerations: [{key: gpu.berth.dev/health, operator: Exists}]", ""),
			func(c *cluster) { c.Nodes = c.Nodes[:1]; c.taint("node-0", 3) }, []string{"node-0: fits with 8"},
		},
		{
			"tainted by a rule", claimFile(1, "gpu.berth.dev", "", ""), func(c *cluster) {
				rule := resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "repair"}}
				rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: new("node-1")}
				rule.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoExecute}
				c.TaintRules = append(c.TaintRules, rule)
			},
			[]string{
				"node-0: fits with 1",
				"node-1: Tainted Request gpu of ResourceClaim large: 8 of the 8 devices that match have the taint example.com/repair=:NoExecute, which it does not tolerate.",
			},
		},
		{
			"held or tainted", claimFile(1, "gpu.berth.dev", "", ""), func(c *cluster) {
				c.Nodes = c.Nodes[:1]
				c.allocate("train", "node-0", c.gpus["node-0"][:7]...)
				c.taint("node-0", 7)
			},
			[]string{
				"node-0: Held Other claims hold 7 of the 8 devices that match: ml/train (GPU0).",
				"node-0: Tainted Request gpu of ResourceClaim large: 1 of the 8 devices that match has the taint gpu.berth.dev/health=Unhealthy:NoSchedule, which it does not tolerate.",
			},
		},
		{
			"incomplete pool", claimFile(1, "gpu.berth.dev", "", ""), func(c *cluster) {
				c.Nodes = c.Nodes[:1]
				for i := range c.Slices {
					c.Slices[i].Spec.Pool.ResourceSliceCount = 3
				}
			},
			[]string{"node-0: PoolIncomplete Pool node-0 of driver gpu.berth.dev is incomplete: 1 of the 3 ResourceSlices of generation 0 exist, so its devices are not allocated."},
		},
		{
			"invalid pool", claimFile(1, "gpu.berth.dev", "", ""), func(c *cluster) {
				c.Nodes = c.Nodes[:1]
				devices := c.Slices[0].Spec.Devices
				devices[1].Name = devices[0].Name
			},
			[]string{"node-0: PoolInvalid Pool node-0 of driver gpu.berth.dev is invalid, so its devices are not allocated: two devices have the name GPU0."},
		},
		{
			"an error stops the scheduler", claimFile(1, "gpu.berth.dev", selector(`device.attributes["gpu.berth.dev"].nvlinkIsland != "" && device.attributes["gpu.berth.dev"].clique == "a"`), ""), nil,
			[]string{
				"*: AllocatorError The allocator returned an error for node node-0, and the scheduler then tries no other node: claim default/large: selector #0 on device gpu.berth.dev/node-0/GPU0: CEL runtime error: no such key: clique. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields.",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clean.copy()
			if test.change != nil {
				test.change(c)
			}
			got := summary(c.check(t, test.file))
			for i := range got {
				for _, names := range c.gpus {
					for n, name := range names {
						got[i] = strings.ReplaceAll(got[i], name, fmt.Sprintf("GPU%d", n))
					}
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestConstraint: with two islands of four and the GPUs 3 to 7 free, four linked ones do not fit when one of the others is tainted.
func TestConstraint(t *testing.T) {
	c := newCluster(t, false, "v100x8-hybrid-mesh")
	for i := range c.Slices[0].Spec.Devices {
		c.Slices[0].Spec.Devices[i].Attributes["nvlinkIsland"] = resourceapi.DeviceAttribute{StringValue: new([]string{"a", "b"}[i/4])}
	}
	if got := summary(c.check(t, claimFile(4, "gpu.berth.dev", "", island))); !slices.Equal(got, []string{"node-0: fits with 4"}) {
		t.Errorf("with all free: %v", got)
	}
	if got := c.check(t, claimFile(5, "gpu.berth.dev", "", island)); len(got[0].Nodes[0].Reasons) != 1 || got[0].Nodes[0].Reasons[0].Message !=
		"The constraint matchAttribute gpu.berth.dev/nvlinkIsland of ResourceClaim large cannot be met with the 8 devices that match and are free: at most 4 of them have the same value, and it wants 5." {
		t.Errorf("five linked: %v", summary(got))
	}
	c.allocate("train", "node-0", c.gpus["node-0"][0], c.gpus["node-0"][7])
	want := []string{
		"node-0: Held Other claims hold 2 of the 8 devices that match: ml/train (" + c.gpus["node-0"][0] + ").",
		"node-0: Constraint The constraint matchAttribute gpu.berth.dev/nvlinkIsland of ResourceClaim large cannot be met with the 6 devices that match and are free: at most 3 of them have the same value, and it wants 4.",
	}
	if diff := cmp.Diff(want, summary(c.check(t, claimFile(4, "gpu.berth.dev", "", island)))); diff != "" {
		t.Errorf("three free in each: -want +got:\n%s", diff)
	}
}

// TestDynamic: a MIG device keeps the whole GPU from others, and requests can fit one by one and not together.
func TestDynamic(t *testing.T) {
	c := newCluster(t, true, "h100x8")
	for i, gpu := range c.gpus["node-0"] {
		c.allocate(fmt.Sprintf("small-%d", i), "node-0", gpu+"-1g10gb-6")
	}
	want := []string{"node-0: Held Other claims hold 8 of the 8 devices that match, or capacity that these need: ml/small-0, ml/small-1, ml/small-2, ml/small-3, ml/small-4, and 3 more."}
	if diff := cmp.Diff(want, summary(c.check(t, claimFile(1, "gpu.berth.dev", "", "")))); diff != "" {
		t.Errorf("a whole GPU: -want +got:\n%s", diff)
	}
	c.Claims = nil
	both := claimFile(8, "gpu.berth.dev", "", "    - name: small\n      exactly: {deviceClassName: mig-1g.10gb.gpu.berth.dev}\n")
	want = []string{"node-0: Together The requests fit one by one, but not together, even if no device was held: gpu (8 of gpu.berth.dev), small (1 of mig-1g.10gb.gpu.berth.dev)."}
	if diff := cmp.Diff(want, summary(c.check(t, both))); diff != "" {
		t.Errorf("all GPUs and a MIG device: -want +got:\n%s", diff)
	}
}

func TestPrioritizedList(t *testing.T) {
	c := newCluster(t, false, "h100x8", "a100x8-80g", "v100x8-hybrid-mesh")
	text := `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: choice}
spec:
  devices:
    requests:
    - name: gpu
      firstAvailable:
      - {name: h100, deviceClassName: gpu.berth.dev, selectors: [{cel: {expression: 'device.attributes["gpu.berth.dev"].architecture == "Hopper"'}}]}
      - {name: a100, deviceClassName: gpu.berth.dev, selectors: [{cel: {expression: 'device.attributes["gpu.berth.dev"].architecture == "Ampere"'}}]}
`
	items := c.check(t, text)
	var got []string
	for _, node := range items[0].Nodes {
		for _, d := range node.Devices {
			got = append(got, node.Name+" "+d.Request)
		}
		for _, r := range node.Reasons {
			got = append(got, node.Name+" "+string(r.Code))
		}
	}
	if want := []string{"node-0 gpu/h100", "node-1 gpu/a100", "node-2 TooFewMatch", "node-2 TooFewMatch"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// pod returns a pod file with lines of its spec.
func pod(spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n" + spec
}

func TestPods(t *testing.T) {
	clean := newCluster(t, false, "h100x8", "a100x8-80g")
	extended := func(n int) string {
		return fmt.Sprintf("  containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: %d}}}]\n", n)
	}
	advertise := func(c *cluster, n int64) {
		c.Nodes[1].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	}
	for _, test := range []struct {
		name   string
		file   string
		change func(*cluster)
		want   []string
	}{
		{"extended resource", pod(extended(2)), nil, []string{"node-0: fits with 2", "node-1: fits with 2"}},
		{
			"device plugin", pod(extended(3)), func(c *cluster) {
				advertise(c, 4)
				c.Pods = []corev1.Pod{{Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
					{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}}},
				}}}}
			},
			[]string{"node-0: fits with 3", "node-1: ResourceHeld The node's device plugin serves nvidia.com/gpu: it has 4, the node's pods request 2, and this pod requests 3."},
		},
		{"device plugin with enough", pod(extended(3)), func(c *cluster) { advertise(c, 4) }, []string{"node-0: fits with 3", "node-1: fits with 0"}},
		{
			"unknown resource", pod("  containers: [{name: main, image: a, resources: {limits: {example.com/x: 1}}}]\n"), func(c *cluster) { c.Nodes = c.Nodes[:1] },
			[]string{"node-0: ResourceMissing No device plugin of the node advertises example.com/x, and no DeviceClass has it as extendedResourceName."},
		},
		{
			"init containers use the devices of later containers", pod(`  initContainers:
  - {name: short, image: a, resources: {requests: {nvidia.com/gpu: 3}}}
  - {name: sidecar, image: a, restartPolicy: Always, resources: {requests: {nvidia.com/gpu: 1}}}
  containers: [{name: main, image: a, resources: {requests: {nvidia.com/gpu: 1}}}]
`), nil, []string{"node-0: fits with 3", "node-1: fits with 3"},
		},
		{
			"taints and selectors", pod("  nodeSelector: {kubernetes.io/hostname: node-1}\n" + extended(1)),
			func(c *cluster) {
				c.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
			},
			[]string{
				"node-0: NodeRefuses The pod's node selector or required node affinity does not match the Node's labels.",
				"node-1: NodeRefuses The Node has the taint nvidia.com/gpu:NoSchedule, which the pod does not tolerate.",
			},
		},
		{
			"a cordoned node", pod("  tolerations: [{key: nvidia.com/gpu, operator: Exists}]\n" + extended(1)),
			func(c *cluster) {
				c.Nodes[0].Spec.Unschedulable = true
				c.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
			},
			[]string{"node-0: NodeRefuses The Node has the taint node.kubernetes.io/unschedulable:NoSchedule, which the pod does not tolerate.", "node-1: fits with 1"},
		},
		{
			"an allocated claim of the cluster", pod("  resourceClaims: [{name: a, resourceClaimName: shared}]\n") + "---\n" + "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.berth.dev}}]}}}\n",
			func(c *cluster) {
				c.allocate("shared", "node-1", c.gpus["node-1"][0])
				c.Claims[0].Namespace = "default"
			},
			[]string{"node-0: ClaimElsewhere ResourceClaim shared is allocated on another node.", "node-1: fits with 1", "node-0: fits with 1", "node-1: fits with 1"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clean.copy()
			if test.change != nil {
				test.change(c)
			}
			if diff := cmp.Diff(test.want, summary(c.check(t, test.file))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestClaimsOfAPod: the claims of a pod have to fit together, each template is a claim of its own, and what a pod names is not checked
// alone.
func TestClaimsOfAPod(t *testing.T) {
	c := newCluster(t, false, "h100x8")
	template := "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: four}\nspec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.berth.dev, count: 4}}]}}}\n"
	two := pod("  resourceClaims: [{name: a, resourceClaimTemplateName: four}, {name: b, resourceClaimTemplateName: four}]\n") + template
	three := pod("  resourceClaims: [{name: a, resourceClaimTemplateName: four}, {name: b, resourceClaimTemplateName: four}, {name: c, resourceClaimTemplateName: four}]\n") + template
	if got := summary(c.check(t, two)); !slices.Equal(got, []string{"node-0: fits with 8"}) {
		t.Errorf("two: %v", got)
	}
	if items := c.check(t, three); len(items) != 1 || items[0].Fits || items[0].Nodes[0].Reasons[0].Code != v1alpha1.FitTogether {
		t.Errorf("three: %v", summary(items))
	}
}

// TestPodOfTheCluster: a pod that was read from the cluster has its claim, whose devices are not in its own way.
func TestPodOfTheCluster(t *testing.T) {
	c := newCluster(t, false, "h100x8")
	c.allocate("train-a-x7k2p", "node-0", c.gpus["node-0"]...)
	c.Claims[0].Namespace, c.Claims[0].UID = "default", "1234"
	text := pod("  resourceClaims: [{name: a, resourceClaimTemplateName: eight}]\nstatus: {resourceClaimStatuses: [{name: a, resourceClaimName: train-a-x7k2p}]}\n")
	if got := summary(c.check(t, text)); !slices.Equal(got, []string{"node-0: fits with 8"}) {
		t.Errorf("got %v", got)
	}
}

// TestTimeout: a question that the allocator does not answer in time stops the scheduler.
func TestTimeout(t *testing.T) {
	c := newCluster(t, false, "h100x8")
	settings := Defaults()
	settings.Timeout = -time.Second
	items := c.checkWith(t, settings, claimFile(1, "gpu.berth.dev", "", ""))
	if len(items) != 1 || items[0].Fits || len(items[0].Reasons) != 1 || items[0].Reasons[0].Code != v1alpha1.FitTimeout {
		t.Errorf("got %v", summary(items))
	}
}
