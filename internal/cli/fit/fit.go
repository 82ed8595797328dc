// Package fit says whether claims and pods would get devices on the nodes of a cluster now, and what is in the way if not.
//
// It guarantees that the answer about devices is that of the Kubernetes scheduler's own allocator on the same objects, and that the same
// objects give the same answer, in the same order. What is in the way is found with the same allocator: by what it allocates when
// holdings, taints or constraints are left out. It reads no API and no file, and must be linked by no program but berth: the allocator
// brings CEL and parts of the API server.
package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Cluster has the objects that the scheduler reads.
type Cluster struct {
	Nodes      []corev1.Node
	Slices     []resourceapi.ResourceSlice
	Classes    []resourceapi.DeviceClass
	Claims     []resourceapi.ResourceClaim
	TaintRules []resourceapi.DeviceTaintRule
	// Pods are needed only for extended resources that a device plugin advertises.
	Pods []corev1.Pod
}

// Settings are those of the scheduler.
type Settings struct {
	Allocator structured.Features
	CEL       cel.Features
	// Timeout bounds one call of the allocator, for one node. Explain bounds each further call that finds what is in the way.
	Timeout time.Duration
	Explain time.Duration
}

// Defaults returns the settings of a scheduler of Kubernetes 1.37 with the default feature gates and configuration.
func Defaults() Settings {
	return Settings{
		Allocator: structured.Features{
			AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
			ConsumableCapacity: true,
		},
		CEL:     cel.Features{EnableConsumableCapacity: true},
		Timeout: 10 * time.Second, Explain: time.Second,
	}
}

// Checker answers questions about one cluster. It is not safe for concurrent use.
type Checker struct {
	settings Settings
	nodes    []*corev1.Node
	slices   []*resourceapi.ResourceSlice
	pools    map[poolKey][]*resourceapi.ResourceSlice
	order    []poolKey // of pools
	classes  classes
	// resources finds the class of an extended resource.
	resources *extendedresourcecache.ExtendedResourceCache
	claims    map[string]*resourceapi.ResourceClaim
	pods      map[string][]*corev1.Pod
	state     structured.AllocatedState
	// holders are the claims that hold a device, as NAMESPACE/NAME, sorted.
	holders    map[structured.DeviceID][]string
	cel        *cel.Cache
	allocators map[relaxed]structured.Allocator
	// unanswered is for how many nodes the allocator did not say what is in the way.
	unanswered int
}

// relaxed says what an allocator leaves out.
type relaxed struct {
	held   bool
	taints bool
}

// New returns a checker for a cluster's objects, which it does not change.
func New(cluster Cluster, settings Settings) *Checker {
	c := &Checker{
		settings: settings, classes: classes{}, claims: map[string]*resourceapi.ResourceClaim{}, pods: map[string][]*corev1.Pod{},
		resources: extendedresourcecache.NewExtendedResourceCache(logr.Discard()),
		cel:       cel.NewCache(200, settings.CEL), allocators: map[relaxed]structured.Allocator{},
	}
	for i := range cluster.Nodes {
		c.nodes = append(c.nodes, &cluster.Nodes[i])
	}
	slices.SortFunc(c.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range cluster.Slices {
		c.slices = append(c.slices, withRules(&cluster.Slices[i], cluster.TaintRules))
	}
	slices.SortFunc(c.slices, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	c.pools = poolsOf(c.slices)
	c.order = slices.SortedFunc(maps.Keys(c.pools), func(a, b poolKey) int {
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool))
	})
	for i := range cluster.Classes {
		class := &cluster.Classes[i]
		c.classes[class.Name] = class
		c.resources.OnAdd(class, true)
	}
	for i := range cluster.Pods {
		pod := &cluster.Pods[i]
		if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			c.pods[pod.Spec.NodeName] = append(c.pods[pod.Spec.NodeName], pod)
		}
	}
	c.hold(cluster.Claims)
	return c
}

// hold takes what claims have allocated, as the scheduler does: devices for admin access are not held.
func (c *Checker) hold(claims []resourceapi.ResourceClaim) {
	c.state, c.holders = nothingHeld(), map[structured.DeviceID][]string{}
	for i := range claims {
		claim := &claims[i]
		name := claim.Namespace + "/" + claim.Name
		c.claims[name] = claim
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if value(result.AdminAccess) {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			c.holders[id] = append(c.holders[id], name)
			if !c.settings.Allocator.ConsumableCapacity || result.ShareID == nil {
				c.state.AllocatedDevices.Insert(id)
				continue
			}
			c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	for id, names := range c.holders {
		slices.Sort(names)
		c.holders[id] = slices.Compact(names)
	}
}

func nothingHeld() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
}

// withRules returns a slice with the taints of DeviceTaintRules on its devices.
func withRules(slice *resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) *resourceapi.ResourceSlice {
	changed := slice
	for i := range rules {
		selector := rules[i].Spec.DeviceSelector
		if selector == nil || selector.Driver != nil && *selector.Driver != slice.Spec.Driver ||
			selector.Pool != nil && *selector.Pool != slice.Spec.Pool.Name {
			continue
		}
		for d := range slice.Spec.Devices {
			if selector.Device != nil && *selector.Device != slice.Spec.Devices[d].Name {
				continue
			}
			if changed == slice {
				changed = slice.DeepCopy()
			}
			changed.Spec.Devices[d].Taints = append(changed.Spec.Devices[d].Taints, rules[i].Spec.Taint)
		}
	}
	return changed
}

// classes is the lister of the allocator.
type classes map[string]*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("DeviceClass %s does not exist", name)
}

func (c classes) List() (list []*resourceapi.DeviceClass, _ error) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		list = append(list, c[name])
	}
	return list, nil
}

// allocator returns the scheduler's allocator for the cluster, with something left out.
func (c *Checker) allocator(ctx context.Context, without relaxed) (structured.Allocator, error) {
	if made := c.allocators[without]; made != nil {
		return made, nil
	}
	features, state := c.settings.Allocator, c.state
	if without.taints {
		features.DeviceTaints = false
	}
	if without.held {
		state = nothingHeld()
	}
	made, err := structured.NewAllocator(ctx, features, state, c.classes, c.slices, c.cel)
	if err != nil {
		return nil, fmt.Errorf("make the scheduler's allocator: %w", err)
	}
	c.allocators[without] = made
	return made, nil
}

// allocate calls the scheduler's allocator for one node. It returns nil when the claims do not fit.
func (c *Checker) allocate(ctx context.Context, timeout time.Duration, without relaxed, node *corev1.Node, claims []*resourceapi.ResourceClaim) (
	[]resourceapi.AllocationResult, error,
) {
	allocator, err := c.allocator(ctx, without)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, logr.Discard()), timeout)
	defer cancel()
	return allocator.Allocate(ctx, node, claims)
}

// Check returns whether a workload fits, for each node of the cluster or, with a name, for that one. It returns an error when ctx ends.
func (c *Checker) Check(ctx context.Context, w *Workload, only string) (v1alpha1.FitItem, error) {
	item := v1alpha1.FitItem{Kind: w.Kind, Namespace: w.Namespace, Name: w.Name}
	claims := c.current(w)
	item.Reasons = c.missing(w, claims)
	if len(c.nodes) == 0 {
		item.Reasons = append(item.Reasons, v1alpha1.FitReason{Code: v1alpha1.FitNoNodes, Message: "The cluster has no Node."})
	}
	stopped := len(item.Reasons) > 0
	for _, node := range c.nodes {
		if only != "" && node.Name != only {
			continue
		}
		answer := v1alpha1.FitNode{Name: node.Name}
		if !stopped {
			var err error
			if answer, err = c.onNode(ctx, w, claims, node); ctx.Err() != nil {
				return item, ctx.Err()
			} else if err != nil {
				item.Reasons, stopped = append(item.Reasons, failed(node.Name, err)), true
			}
		}
		item.Nodes = append(item.Nodes, answer)
	}
	// After an error for one node the scheduler tries no other.
	for i := range item.Nodes {
		item.Nodes[i].Fits = item.Nodes[i].Fits && len(item.Reasons) == 0
		item.Fits = item.Fits || item.Nodes[i].Fits
	}
	return item, nil
}

// failed returns the reason of an error of the allocator.
func failed(node string, err error) v1alpha1.FitReason {
	if errors.Is(err, context.DeadlineExceeded) {
		return v1alpha1.FitReason{Code: v1alpha1.FitTimeout, Message: fmt.Sprintf(
			"The allocator found no answer for node %s within the scheduler's timeout, and the scheduler then tries no other node.", node)}
	}
	return v1alpha1.FitReason{Code: v1alpha1.FitError, Message: fmt.Sprintf(
		"The allocator returned an error for node %s, and the scheduler then tries no other node: %s.", node, strings.TrimSuffix(err.Error(), "."))}
}

// onNode returns whether a workload fits on one node. An error is one of the allocator, and stops the scheduler.
func (c *Checker) onNode(ctx context.Context, w *Workload, claims []*resourceapi.ResourceClaim, node *corev1.Node) (v1alpha1.FitNode, error) {
	answer := v1alpha1.FitNode{Name: node.Name}
	q := question{node: node}
	if w.Pod != nil {
		answer.Reasons = refusals(w.Pod, node)
	}
	if w.Pod != nil && len(answer.Reasons) == 0 && c.ownExtended(w.Pod) == nil {
		answer.Reasons = c.extended(w.Pod, &q, &answer)
	}
	if len(answer.Reasons) > 0 {
		return answer, nil
	}
	wanted, devices, elsewhere := split(claims, node)
	if len(elsewhere) > 0 {
		answer.Reasons = elsewhere
		return answer, nil
	}
	q.claims = append(wanted, q.claims...)
	var results []resourceapi.AllocationResult
	var err error
	if len(q.claims) > 0 {
		results, err = c.allocate(ctx, c.settings.Timeout, relaxed{}, node, q.claims)
	}
	switch {
	case err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode):
		return answer, err
	case err != nil || len(results) != len(q.claims):
		answer.Reasons, err = c.explain(ctx, &q)
		return answer, err
	}
	answer.Fits = true
	for i := range results {
		devices = append(devices, devicesOf(q.claims[i].Name, &results[i])...)
	}
	answer.Devices = devices
	return answer, nil
}

// split returns the claims that have to be allocated, the devices of the others, and which of these are allocated on another node.
func split(claims []*resourceapi.ResourceClaim, node *corev1.Node) (wanted []*resourceapi.ResourceClaim, devices []v1alpha1.FitDevice, elsewhere []v1alpha1.FitReason) {
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			wanted = append(wanted, claim)
			continue
		}
		if !availableOn(claim.Status.Allocation.NodeSelector, node) {
			elsewhere = append(elsewhere, v1alpha1.FitReason{Code: v1alpha1.FitClaimElsewhere, Message: fmt.Sprintf(
				"ResourceClaim %s is allocated on another node.", claim.Name)})
		}
		devices = append(devices, devicesOf(claim.Name, claim.Status.Allocation)...)
	}
	return wanted, devices, elsewhere
}

// devicesOf returns the devices of an allocation. The claim for extended resources has no name.
func devicesOf(claim string, allocation *resourceapi.AllocationResult) (devices []v1alpha1.FitDevice) {
	if claim == extendedClaim {
		claim = ""
	}
	for _, result := range allocation.Devices.Results {
		devices = append(devices, v1alpha1.FitDevice{
			Claim: claim, Request: result.Request, Driver: result.Driver, Pool: result.Pool, Device: result.Device,
			AdminAccess: value(result.AdminAccess),
		})
	}
	return devices
}
