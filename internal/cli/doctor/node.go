package doctor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

const (
	checkGPUNode        = "GPUNode"
	checkNodeConditions = "node conditions"
	checkKubeletVersion = "kubelet version"
	// oldestKubelet is the first minor version whose device manager accepts CDI devices by default.
	oldestKubelet = 31
)

// api compares the API objects of this node with the node itself.
func (c *checker) api(ctx context.Context) {
	if c.deps.API == nil {
		c.notChecked(checkGPUNode, "%s", cmp.Or(c.deps.NoAPI, "no API server"))
		return
	}
	if c.out.Node == "" {
		c.notChecked(checkGPUNode, "the name of this node is unknown; give --node-name")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := c.deps.API.Node(ctx, c.out.Node)
	if err != nil {
		c.unknown(checkNodeConditions, "nodes/%s: %v", c.out.Node, err)
	} else {
		c.kubeletVersion(node)
	}
	gpuNode := c.gpuNode(ctx, c.deps.API)
	if node != nil {
		c.quotas(ctx, c.deps.API, node) // Last of the requests: tenants write the quotas, and the requests share a limit of time.
	}
	if gpuNode == nil {
		return
	}
	var api, here []string
	for _, device := range gpuNode.Status.Devices {
		if !c.agentOnly(device.UUID) {
			api = append(api, device.UUID)
		}
	}
	for _, g := range c.gpus {
		here = append(here, g.uuid)
	}
	path := v1alpha1.GPUNodeResource + "/" + gpuNode.Name
	switch driver := gpuNode.Status.Driver.Version; {
	case driver != c.version:
		c.problem(checkGPUNode, "GPUNODE_STALE", "%s has driver %s, the node %s", path, cmp.Or(driver, "none"), cmp.Or(c.version, "none"))
	case uuids(api) != uuids(here):
		c.problem(checkGPUNode, "GPUNODE_STALE", "%s has the GPUs %s; the driver lists %s", path,
			cmp.Or(uuids(api), "none"), cmp.Or(uuids(here), "none"))
	default:
		c.ok(checkGPUNode, "%s has the node's %s", path, phrase.Count(len(here), "GPU"))
	}
}

// agentOnly reports whether a GPU is of a vendor whose driver only the agent asks: no GPU that was read here is that vendor's.
func (c *checker) agentOnly(id string) bool {
	inventory := c.agentSays.Inventory
	if inventory == nil || len(c.gpus) == 0 {
		return false
	}
	device := inventory.GPU(gpu.UUID(id))
	return device != nil && !slices.ContainsFunc(c.gpus, func(here procGPU) bool {
		same := inventory.GPU(gpu.UUID(here.uuid))
		return same != nil && same.Vendor == device.Vendor
	})
}

func (r *report) gpuNode(ctx context.Context, api API) *v1alpha1.GPUNode {
	name := r.out.Node
	node, err := api.GPUNode(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		r.problem(checkGPUNode, "GPUNODE_MISSING", "%s/%s: %v", v1alpha1.GPUNodeResource, name, err)
		return nil
	case err != nil:
		r.unknown(checkGPUNode, "%s/%s: %v", v1alpha1.GPUNodeResource, name, err)
		return nil
	}
	return node
}

func (r *report) kubeletVersion(node *corev1.Node) {
	version := node.Status.NodeInfo.KubeletVersion
	_, rest, ok := strings.Cut(version, "1.")
	digits, _, _ := strings.Cut(rest, ".")
	minor, err := strconv.Atoi(digits)
	switch {
	case !ok || err != nil:
		r.unknown(checkKubeletVersion, "nodes/%s has kubelet version %q", node.Name, version)
	case minor < oldestKubelet:
		r.problem(checkKubeletVersion, "KUBELET_OLD", "nodes/%s has kubelet %s", node.Name, version)
	default:
		r.ok(checkKubeletVersion, "%s", version)
	}
}

// nodeConditions reports conditions with a bad status: Ready should be true, most others false.
func (r *report) nodeConditions(node *corev1.Node) {
	bad := 0
	for _, condition := range node.Status.Conditions {
		text := "nodes/" + node.Name + ", condition " + string(condition.Type) + " is " + string(condition.Status) +
			": " + cmp.Or(condition.Message, condition.Reason, "no reason given")
		switch {
		case condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
			bad++
			r.problem(checkNodeConditions, "NODE_NOT_READY", "%s", text)
		case condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue && !good(string(condition.Type)):
			bad++
			r.problem(checkNodeConditions, "NODE_PRESSURE", "%s", text)
		}
	}
	if bad == 0 {
		r.ok(checkNodeConditions, "%s of nodes/%s", phrase.Count(len(node.Status.Conditions), "condition"), node.Name)
	}
}

// good reports whether True is the good status of a condition, as it is for Ready.
func good(kind string) bool {
	return strings.HasSuffix(kind, "Ready") || strings.HasSuffix(kind, "Healthy")
}

// status reports the problems that the agent has published.
func (r *report) status(node *v1alpha1.GPUNode) {
	before := len(r.out.Findings)
	path := v1alpha1.GPUNodeResource + "/" + node.Name
	for _, cause := range node.Status.Problems {
		r.problem(checkGPUNode, cause.Code, "%s", cause.Message)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Status == metav1.ConditionFalse {
			r.problem(checkGPUNode, "CONDITION_FALSE", "%s, condition %s: %s", path, condition.Type,
				cmp.Or(condition.Message, condition.Reason))
		}
	}
	for _, device := range node.Status.Devices {
		for _, cause := range device.Health.Causes {
			text := cause.Message
			if held := holders(device); len(held) > 0 {
				text += "; held by " + phrase.Some(held, mostNames)
			}
			r.problem(checkGPUs, cause.Code, "GPU %d (%s) is %s: %s", device.Index, device.UUID, device.Health.State, text)
		}
		r.partStatus(&device)
	}
	if len(r.out.Findings) == before {
		r.ok(checkGPUNode, "%s: %s, driver %s, no problem", path, phrase.Count(len(node.Status.Devices), "GPU"),
			cmp.Or(node.Status.Driver.Version, "none"))
	}
}

// partStatus reports the problems of a GPU's MIG devices that are not problems of the whole GPU.
func (r *report) partStatus(device *v1alpha1.GPUDevice) {
	for _, mig := range device.MIGDevices {
		if mig.Health == nil {
			continue
		}
		for _, cause := range mig.Health.Causes {
			if slices.ContainsFunc(device.Health.Causes, func(whole v1alpha1.Cause) bool { return whole.Code == cause.Code }) {
				continue // a fault of the whole GPU is listed in both
			}
			text := cause.Message
			if held := holders(v1alpha1.GPUDevice{Holders: mig.Holders}); len(held) > 0 {
				text += "; held by " + phrase.Some(held, mostNames)
			}
			r.problem(checkGPUs, cause.Code, "MIG device %d:%d (%s) is %s: %s", device.Index, mig.Index, mig.UUID, mig.Health.State, text)
		}
	}
}

// holders returns the pods that hold a GPU or a part of it, without duplicates.
func holders(device v1alpha1.GPUDevice) []string {
	var pods []string
	add := func(list []v1alpha1.Holder) {
		for _, holder := range list {
			name := gpunode.HolderOf(&holder).String()
			if !slices.Contains(pods, name) {
				pods = append(pods, name)
			}
		}
	}
	add(device.Holders)
	for _, mig := range device.MIGDevices {
		add(mig.Holders)
	}
	slices.Sort(pods)
	return pods
}
