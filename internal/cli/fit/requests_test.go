package fit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// requests returns a file of the claim large with these requests, one in each line, and constraints.
func requests(constraints string, lines ...string) string {
	text := "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: large}\nspec:\n  devices:\n    requests:\n"
	for _, line := range lines {
		text += "    - {" + line + "}\n"
	}
	return text + constraints
}

// sentences returns the summary of the answers for a file, with the GPUs as GPU0, GPU1 and so on.
func (c *cluster) sentences(t *testing.T, file string) []string {
	t.Helper()
	lines := summary(c.check(t, file))
	for i := range lines {
		for _, names := range c.gpus {
			for n, name := range names {
				lines[i] = strings.ReplaceAll(lines[i], name, fmt.Sprintf("GPU%d", n))
			}
		}
	}
	return lines
}

// device returns a device of the first pool.
func (c *cluster) device(t *testing.T, name string) *resourceapi.Device {
	t.Helper()
	for i := range c.Slices {
		for d := range c.Slices[i].Spec.Devices {
			if device := &c.Slices[i].Spec.Devices[d]; device.Name == name {
				return device
			}
		}
	}
	t.Fatalf("there is no device %s", name)
	return nil
}

// attribute adds an attribute to the GPUs of node-0, with a value for each; empty for none.
func (c *cluster) attribute(t *testing.T, name resourceapi.QualifiedName, values ...string) {
	for i, value := range values {
		if value != "" {
			c.device(t, c.gpus["node-0"][i]).Attributes[name] = resourceapi.DeviceAttribute{StringValue: new(value)}
		}
	}
}

// nic adds a pool of another driver to node-0, with a device and its class.
func (c *cluster) nic() *resourceapi.ResourceSlice {
	class := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}
	c.Classes = append(c.Classes, class)
	c.Slices = append(c.Slices, resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "node-0-nic"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "nic.example.com", NodeName: new("node-0"), Pool: resourceapi.ResourcePool{Name: "nics", ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "nic-0"}},
		},
	})
	return &c.Slices[len(c.Slices)-1]
}

// TestRequests has the kinds of requests on one node with 8 x H100.
func TestRequests(t *testing.T) {
	clean := newCluster(t, false, "h100x8")
	const (
		hold    = "node-0: Held Other claims hold 8 of the 8 devices that match: ml/train (GPU0)."
		one     = "name: gpu, exactly: {deviceClassName: gpu.berth.dev}"
		a, b    = "example.com/a", "example.com/b"
		both    = "    constraints: [{matchAttribute: example.com/a}, {matchAttribute: example.com/b}]\n"
		matchA  = "    constraints: [{matchAttribute: example.com/a}]\n"
		incompl = "Pool nics of driver nic.example.com is incomplete: 1 of the 2 ResourceSlices of generation 0 exist, so its devices are not allocated."
	)
	onlyA := `, selectors: [{cel: {expression: 'device.attributes["example.com"].a == "1"'}}]`
	all := func(c *cluster) { c.allocate("train", "node-0", c.gpus["node-0"]...) }
	for _, test := range []struct {
		name   string
		file   string
		change func(*testing.T, *cluster)
		want   []string
	}{
		{
			"admin access to held devices", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, allocationMode: All, adminAccess: true}"),
			func(_ *testing.T, c *cluster) { all(c) }, []string{"node-0: fits with 8"},
		},
		{
			"admin access to tainted devices", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 8, adminAccess: true}"),
			func(_ *testing.T, c *cluster) { all(c); c.taint("node-0", 2) },
			[]string{"node-0: Tainted Request gpu of ResourceClaim large: 1 of the 8 devices that match has the taint gpu.berth.dev/health=Unhealthy:NoSchedule, which it does not tolerate."},
		},
		{"all devices", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, allocationMode: All}"), nil, []string{"node-0: fits with 8"}},
		{
			"all devices of which one is held", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, allocationMode: All}"),
			func(_ *testing.T, c *cluster) { c.allocate("train", "node-0", c.gpus["node-0"][3]) },
			[]string{"node-0: Held Other claims hold 1 of the 8 devices that match: ml/train (GPU3)."},
		},
		{
			"a prioritized list takes the next entry", requests("", "name: gpu, firstAvailable: [{name: many, deviceClassName: gpu.berth.dev, count: 8}, {name: few, deviceClassName: gpu.berth.dev, count: 2}]"),
			func(_ *testing.T, c *cluster) { c.allocate("train", "node-0", c.gpus["node-0"][3]) }, []string{"node-0: fits with 2"},
		},
		{
			"a prioritized list of which every entry is held", requests("", "name: gpu, firstAvailable: [{name: many, deviceClassName: gpu.berth.dev, count: 8}, {name: few, deviceClassName: gpu.berth.dev, count: 2}]"),
			func(_ *testing.T, c *cluster) { all(c) }, []string{hold},
		},
		{
			"a prioritized list that no device meets", requests("", "name: gpu, firstAvailable: [{name: many, deviceClassName: gpu.berth.dev, count: 9}, {name: mig, deviceClassName: mig-1g.10gb.gpu.berth.dev}]"), nil,
			[]string{
				"node-0: TooFewMatch Request gpu/many of ResourceClaim large: 8 of the node's 8 devices of DeviceClass gpu.berth.dev match, and it wants 9.",
				"node-0: ClassMatchesNothing Request gpu/mig of ResourceClaim large: none of the node's 8 devices (gpu.berth.dev) is of DeviceClass mig-1g.10gb.gpu.berth.dev.",
			},
		},
		{
			"the one of two constraints that is not met", requests(both, "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 3}"),
			func(t *testing.T, c *cluster) {
				c.attribute(t, a, "1", "1", "1", "1", "1", "1", "1", "1")
				c.attribute(t, b, "1", "1", "2", "2", "3", "3", "4", "4")
			},
			[]string{"node-0: Constraint The constraint matchAttribute example.com/b of ResourceClaim large cannot be met with the 8 devices that match and are free: at most 2 of them have the same value, and it wants 3."},
		},
		{
			"two constraints of which neither is met", requests(both, "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 3}"),
			func(t *testing.T, c *cluster) { c.attribute(t, b, "1", "1", "2", "2", "3", "3", "4", "4") },
			[]string{
				"node-0: Constraint The constraint matchAttribute example.com/a of ResourceClaim large cannot be met with the 8 devices that match and are free: none of them has the attribute.",
				"node-0: Constraint The constraint matchAttribute example.com/b of ResourceClaim large cannot be met with the 8 devices that match and are free: at most 2 of them have the same value, and it wants 3.",
			},
		},
		{
			"no value for each of two requests", requests("    constraints: [{matchAttribute: example.com/b}]\n", "name: r0, exactly: {deviceClassName: gpu.berth.dev, count: 2"+onlyA+"}", "name: r1, exactly: {deviceClassName: gpu.berth.dev}"),
			func(t *testing.T, c *cluster) {
				c.attribute(t, a, "1", "0", "0", "0", "1", "0", "0", "0")
				c.attribute(t, b, "1", "1", "1", "1", "2", "2", "2", "2")
			},
			// A selector that reads a missing attribute is an error; all have it.
			[]string{"node-0: Constraint The constraint matchAttribute example.com/b of ResourceClaim large cannot be met with the 8 devices that match and are free: no value has enough of them for each of its requests: r0 (2), r1 (1)."},
		},
		{
			"distinct values", requests("    constraints: [{distinctAttribute: example.com/a}]\n", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 3}"),
			func(t *testing.T, c *cluster) { c.attribute(t, a, "1", "1", "1", "1", "2", "2", "2", "2") },
			[]string{"node-0: Constraint The constraint distinctAttribute example.com/a of ResourceClaim large cannot be met with the 8 devices that match and are free: they have 2 different values, and it wants 3."},
		},
		{
			"a constraint and a prioritized list", requests(matchA, "name: gpu, firstAvailable: [{name: many, deviceClassName: gpu.berth.dev, count: 6}, {name: few, deviceClassName: gpu.berth.dev, count: 5}]"),
			func(t *testing.T, c *cluster) { c.attribute(t, a, "1", "1", "1", "1", "2", "2", "2", "2") },
			[]string{"node-0: Constraint The constraint matchAttribute example.com/a of ResourceClaim large cannot be met with the 8 devices that match and are free: at most 4 of them have the same value, and it wants 5."},
		},
		{
			// If the first GPU was not held, the scheduler would have an error; it does not ask that.
			"a selector that fails on a held device", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 7"+onlyA+"}"),
			func(t *testing.T, c *cluster) {
				c.attribute(t, a, "", "1", "1", "1", "1", "1", "1", "1")
				c.allocate("train", "node-0", c.gpus["node-0"][0])
				c.taint("node-0", 5)
			},
			[]string{"node-0: Tainted Request gpu of ResourceClaim large: 1 of the 7 devices that match has the taint gpu.berth.dev/health=Unhealthy:NoSchedule, which it does not tolerate."},
		},
		{
			"an incomplete pool that the claim does not need", requests("", one),
			func(_ *testing.T, c *cluster) { all(c); c.nic().Spec.Pool.ResourceSliceCount = 2 }, []string{hold},
		},
		{
			"an incomplete pool that the claim needs", requests("", one, "name: nic, exactly: {deviceClassName: nic.example.com}"),
			func(_ *testing.T, c *cluster) { all(c); c.nic().Spec.Pool.ResourceSliceCount = 2 },
			[]string{
				"node-0: PoolIncomplete " + incompl,
				"node-0: ClassMatchesNothing Request nic of ResourceClaim large: none of the node's 8 devices (gpu.berth.dev) is of DeviceClass nic.example.com.",
			},
		},
		{
			"all devices beside an incomplete pool", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, allocationMode: All}"),
			func(_ *testing.T, c *cluster) { c.nic().Spec.Pool.ResourceSliceCount = 2 },
			[]string{"*: AllocatorError The allocator returned an error for node node-0, and the scheduler then tries no other node: claim default/large, request gpu: asks for all devices, but resource pool nic.example.com/nics is currently being updated."},
		},
		{
			"an outdated slice", requests("", one), func(_ *testing.T, c *cluster) {
				old := c.Slices[0].DeepCopy()
				old.Name = "node-0-old"
				c.Slices[0].Spec.Pool.Generation = 2
				c.Slices = append(c.Slices, *old)
			},
			[]string{"node-0: fits with 1"},
		},
		{
			"a pool that uses counters it does not have", requests("", "name: nic, exactly: {deviceClassName: nic.example.com}"), func(_ *testing.T, c *cluster) {
				c.nic().Spec.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "ports", Counters: map[string]resourceapi.Counter{"p": {Value: resource.MustParse("1")}}}}
			},
			[]string{
				"node-0: PoolInvalid Pool nics of driver nic.example.com is invalid, so its devices are not allocated: device nic-0 uses the counter p of counter set ports, which does not exist.",
				"node-0: ClassMatchesNothing Request nic of ResourceClaim large: none of the node's 8 devices (gpu.berth.dev) is of DeviceClass nic.example.com.",
			},
		},
		{
			"held devices beside an invalid pool", requests("", one), func(_ *testing.T, c *cluster) {
				all(c)
				nic := c.nic()
				nic.Spec.Devices = append(nic.Spec.Devices, nic.Spec.Devices[0])
			},
			[]string{hold},
		},
		{
			"capacity that a device does not have", requests("", "name: nic, exactly: {deviceClassName: nic.example.com, capacity: {requests: {bandwidth: 2G}}}"), func(_ *testing.T, c *cluster) {
				d := &c.nic().Spec.Devices[0]
				d.AllowMultipleAllocations = new(true)
				d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"bandwidth": {Value: resource.MustParse("1G")}}
			},
			[]string{"node-0: Together Request nic of ResourceClaim large: 1 device matches, but not 1 of them with the capacity that it requests."},
		},
		{"no nodes", requests("", one), func(_ *testing.T, c *cluster) { c.Nodes = nil }, []string{"*: NoNodes The cluster has no Node."}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clean.copy()
			if test.change != nil {
				test.change(t, c)
			}
			if diff := cmp.Diff(test.want, c.sentences(t, test.file)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestAdminAccessIsMarked: the devices say that they are not held.
func TestAdminAccessIsMarked(t *testing.T) {
	c := newCluster(t, false, "h100x8")
	items := c.check(t, requests("", "name: r0, exactly: {deviceClassName: gpu.berth.dev, adminAccess: true}", "name: r1, exactly: {deviceClassName: gpu.berth.dev}"))
	var got []string
	for _, d := range items[0].Nodes[0].Devices {
		got = append(got, fmt.Sprintf("%s %v", d.Request, d.AdminAccess))
	}
	if diff := cmp.Diff([]string{"r0 true", "r1 false"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestSharedCounters: a claim is in the way of the devices that need the counters it holds, and of no others of the same GPU.
func TestSharedCounters(t *testing.T) {
	c := newCluster(t, true, "h100x8")
	first := c.gpus["node-0"][0]
	ofFirst := fmt.Sprintf(`, selectors: [{cel: {expression: 'device.attributes["gpu.berth.dev"].parentUUID == "%s"'}}]`, *c.device(t, first+"-1g10gb-6").Attributes["parentUUID"].StringValue)
	mig := func(profile string, count int) string {
		return requests("", fmt.Sprintf("name: mig, exactly: {deviceClassName: mig-%s.gpu.berth.dev, count: %d%s}", profile, count, ofFirst))
	}
	for _, test := range []struct {
		name string
		file string
		held []string
		want []string
	}{
		{"the largest two", mig("3g.40gb", 2), nil, []string{"node-0: fits with 2"}},
		{"two that overlap", mig("4g.40gb", 1), []string{first + "-1g10gb-0"}, []string{"node-0: Held Other claims hold 1 of the 1 device that matches, or capacity that these need: ml/small."}},
		{"two of which one is held", mig("3g.40gb", 2), []string{first + "-1g10gb-6"}, []string{"node-0: Held Other claims hold 1 of the 2 devices that match, or capacity that these need: ml/small."}},
		{"the one beside it", mig("3g.40gb", 1), []string{first + "-1g10gb-6"}, []string{"node-0: fits with 1"}},
		{"the whole GPUs", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 8}"), []string{first + "-1g10gb-6"}, []string{"node-0: Held Other claims hold 1 of the 8 devices that match, or capacity that these need: ml/small."}},
		{"the other GPUs", requests("", "name: gpu, exactly: {deviceClassName: gpu.berth.dev, count: 7}"), []string{first + "-1g10gb-6"}, []string{"node-0: fits with 7"}},
		{"more than one GPU can have", mig("1g.10gb.me", 2), nil, []string{"node-0: Together Request mig of ResourceClaim large: 7 devices match, but not 2 of them at one time, since they share capacity."}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.Claims = nil
			if len(test.held) > 0 {
				c.allocate("small", "node-0", test.held...)
			}
			if diff := cmp.Diff(test.want, c.sentences(t, test.file)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestExistingClaims: what the cluster has under the names of the file decides.
func TestExistingClaims(t *testing.T) {
	clean := newCluster(t, false, "h100x8", "a100x8-80g")
	file := claimFile(2, "gpu.berth.dev", "", "")
	podOf := pod("  resourceClaims: [{name: a, resourceClaimName: large}, {name: b, resourceClaimName: more}]\n") +
		"---\n" + file + "---\n" + strings.Replace(claimFile(7, "gpu.berth.dev", "", ""), "name: large", "name: more", 1)
	// allocated stores the claim of the file, with two devices of a node.
	allocated := func(c *cluster, node string) *resourceapi.ResourceClaim {
		parsed, err := Parse("f", []byte(file), "default", Defaults())
		if err != nil {
			t.Fatal(err)
		}
		c.allocate("large", node, c.gpus[node][:2]...)
		claim := &c.Claims[len(c.Claims)-1]
		claim.Namespace, claim.UID, claim.Spec = "default", "1", parsed.claims[0].Spec
		return claim
	}
	for _, test := range []struct {
		name   string
		file   string
		change func(*cluster)
		want   []string
	}{
		{"allocated", file, func(c *cluster) { allocated(c, "node-1") }, []string{"node-0: ClaimElsewhere ResourceClaim large is allocated on another node.", "node-1: fits with 2"}},
		{
			"of another specification", file, func(c *cluster) { allocated(c, "node-1").Spec.Devices.Requests[0].Exactly.Count = 1 },
			[]string{"*: ClaimDiffers The cluster has a ResourceClaim large with other requests or constraints, and a claim cannot be changed: delete it first, or give this one another name."},
		},
		{
			"being deleted", file, func(c *cluster) { allocated(c, "node-1").DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			[]string{"*: ClaimDeleted ResourceClaim large of the cluster is being deleted."},
		},
		{
			"a pod with an allocated claim and another that does not fit beside it", podOf, func(c *cluster) { allocated(c, "node-1") },
			[]string{"node-0: ClaimElsewhere ResourceClaim large is allocated on another node.", "node-1: Held Other claims hold 2 of the 8 devices that match: default/large (GPU0)."},
		},
		{
			"a pod with an allocated claim and another that fits beside it", strings.Replace(podOf, "count: 7", "count: 6", 1), func(c *cluster) { allocated(c, "node-1") },
			[]string{"node-0: ClaimElsewhere ResourceClaim large is allocated on another node.", "node-1: fits with 8"},
		},
		{
			"used by too many pods", pod("  resourceClaims: [{name: a, resourceClaimName: large}]\n"), func(c *cluster) {
				claim := allocated(c, "node-1")
				for i := range resourceapi.ResourceClaimReservedForMaxSize {
					claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: types.UID(fmt.Sprint(i))})
				}
			},
			[]string{"*: ClaimInUse ResourceClaim large is used by 256 pods, which is the limit."},
		},
		{
			"used by too many pods of which it is one", strings.Replace(pod("  resourceClaims: [{name: a, resourceClaimName: large}]\n"), "name: train", `name: train, uid: "7"`, 1), func(c *cluster) {
				claim := allocated(c, "node-1")
				for i := range resourceapi.ResourceClaimReservedForMaxSize {
					claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: types.UID(fmt.Sprint(i))})
				}
			},
			[]string{"node-0: ClaimElsewhere ResourceClaim large is allocated on another node.", "node-1: fits with 2"},
		},
		{
			"not made on purpose", pod("  resourceClaims: [{name: a, resourceClaimTemplateName: none}, {name: b, resourceClaimName: large}]\nstatus: {resourceClaimStatuses: [{name: a}]}\n"),
			func(c *cluster) { allocated(c, "node-1") },
			[]string{"node-0: ClaimElsewhere ResourceClaim large is allocated on another node.", "node-1: fits with 2"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clean.copy()
			test.change(c)
			if diff := cmp.Diff(test.want, c.sentences(t, test.file)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestExtendedResources: a name is served by the device plugin where the Node has some of it, and through DRA elsewhere.
func TestExtendedResources(t *testing.T) {
	clean := newCluster(t, false, "h100x8")
	limits := func(list string) string {
		return pod("  containers: [{name: main, image: a, resources: {limits: {" + list + "}}}]\n")
	}
	node := func(c *cluster, list corev1.ResourceList) { c.Nodes[0].Status.Allocatable = list }
	plugin := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4"), "example.com/nic": resource.MustParse("2")}
	running := func(name string, gpus string) corev1.Pod {
		made := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
		made.Spec.NodeName = "node-0"
		made.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}}}}
		return made
	}
	for _, test := range []struct {
		name   string
		file   string
		change func(*cluster)
		want   []string
		served []v1alpha1.FitPluginResource
	}{
		{
			"served by the device plugin", limits("nvidia.com/gpu: 3"), func(c *cluster) { node(c, plugin) },
			[]string{"node-0: fits with 0"}, []v1alpha1.FitPluginResource{{Resource: "nvidia.com/gpu", Requested: 3, Free: 4}},
		},
		{
			"one name by each", limits("nvidia.com/gpu: 3, example.com/nic: 1"), func(c *cluster) { node(c, corev1.ResourceList{"example.com/nic": resource.MustParse("2")}) },
			[]string{"node-0: fits with 3"}, []v1alpha1.FitPluginResource{{Resource: "example.com/nic", Requested: 1, Free: 2}},
		},
		{
			"a claim beside the device plugin", pod("  resourceClaims: [{name: a, resourceClaimName: large}]\n  containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: 1}}}]\n") + "---\n" + claimFile(2, "gpu.berth.dev", "", ""),
			func(c *cluster) { node(c, plugin) },
			[]string{"node-0: Unbindable Kubernetes cannot bind a pod with ResourceClaims to a node whose device plugin offers nvidia.com/gpu while a DeviceClass serves it elsewhere."}, []v1alpha1.FitPluginResource{{Resource: "nvidia.com/gpu", Requested: 1, Free: 4}},
		},
		{
			"a device plugin that has stopped", limits("nvidia.com/gpu: 3"), func(c *cluster) { node(c, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}) },
			[]string{"node-0: fits with 3"}, nil,
		},
		{
			"a device plugin that has stopped, without a class", limits("example.com/nic: 1"), func(c *cluster) { node(c, corev1.ResourceList{"example.com/nic": resource.MustParse("0")}) },
			[]string{"node-0: ResourceHeld The node's device plugin serves example.com/nic: it has 0, the node's pods request 0, and this pod requests 1."},
			[]v1alpha1.FitPluginResource{{Resource: "example.com/nic", Requested: 1, Free: 0}},
		},
		{
			"the pod itself is no other", limits("nvidia.com/gpu: 3"), func(c *cluster) { node(c, plugin); c.Pods = []corev1.Pod{running("train", "3"), running("other", "1")} },
			[]string{"node-0: fits with 0"}, []v1alpha1.FitPluginResource{{Resource: "nvidia.com/gpu", Requested: 3, Free: 3}},
		},
		{
			"more than the node has", limits("nvidia.com/gpu: 9"), nil,
			[]string{"node-0: TooFewMatch The request for nvidia.com/gpu of container main: 8 of the node's 8 devices of DeviceClass gpu.berth.dev match, and it wants 9."}, nil,
		},
		{
			"more than a claim can have", limits("nvidia.com/gpu: 33"), nil,
			[]string{"*: AllocatorError The allocator returned an error for node node-0, and the scheduler then tries no other node: claim default/<extended-resources>, request container-0-request-0: adding 33 devices exceeds the claim limit of 32, with 0 already accounted for."}, nil,
		},
		{
			"a running pod has its devices", strings.Replace(limits("nvidia.com/gpu: 8"), "name: train", `name: train, uid: "7"`, 1) + "status: {extendedResourceClaimStatus: {resourceClaimName: train-extended}}\n",
			func(c *cluster) {
				c.allocate("train-extended", "node-0", c.gpus["node-0"]...)
				c.Claims[0].Namespace = "default"
				c.Claims[0].OwnerReferences = []metav1.OwnerReference{{UID: "7", Controller: new(true)}}
			},
			[]string{"node-0: fits with 8"}, nil,
		},
		{
			"another pod's claim is in the way", strings.Replace(limits("nvidia.com/gpu: 8"), "name: train", `name: train, uid: "7"`, 1) + "status: {extendedResourceClaimStatus: {resourceClaimName: train-extended}}\n",
			func(c *cluster) {
				c.allocate("train-extended", "node-0", c.gpus["node-0"]...)
				c.Claims[0].Namespace = "default"
				c.Claims[0].OwnerReferences = []metav1.OwnerReference{{UID: "8", Controller: new(true)}}
			},
			[]string{"node-0: Held Other claims hold 8 of the 8 devices that match: default/train-extended (GPU0)."}, nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clean.copy()
			if test.change != nil {
				test.change(c)
			}
			if diff := cmp.Diff(test.want, c.sentences(t, test.file)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(test.served, c.check(t, test.file)[0].Nodes[0].DevicePlugin); diff != "" {
				t.Errorf("by the device plugin: -want +got:\n%s", diff)
			}
		})
	}
}

// TestNotExplained: when the allocator does not say in time what is in the way, it is asked for three nodes and no more.
func TestNotExplained(t *testing.T) {
	c := newCluster(t, false, "h100x8", "h100x8", "h100x8", "h100x8", "h100x8")
	for i := range c.Nodes {
		c.allocate(fmt.Sprintf("train-%d", i), c.Nodes[i].Name, c.gpus[c.Nodes[i].Name]...)
	}
	settings := Defaults()
	settings.Explain = -time.Second
	const slow = "NotExplained The devices that are free do not fit, and the allocator did not say within -1s what is in the way."
	const skipped = "NotExplained The devices that are free do not fit, and what is in the way was not searched for, since 3 other nodes took too long."
	want := []string{"node-0: " + slow, "node-1: " + slow, "node-2: " + slow, "node-3: " + skipped, "node-4: " + skipped}
	if diff := cmp.Diff(want, summary(c.checkWith(t, settings, claimFile(1, "gpu.berth.dev", "", "")))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
