package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/fit"
	"github.com/berth-gpu/berth/internal/core/why"
)

// whyClaims evaluates the claims of a pod with the scheduler's allocator, for clusters without some of the pods that there are.
type whyClaims struct {
	ctx      context.Context
	pod      *corev1.Pod
	cluster  fit.Cluster
	workload fit.Workload
	checkers map[string]*fit.Checker
	known    map[string][]why.Block
	notes    []string
	classes  []string
}

// whyClaimsOf returns what evaluates the claims of a pod, and the extended resources that claims serve; nil for a pod that needs neither.
func whyClaimsOf(ctx context.Context, o *whyObjects, pod *corev1.Pod) (*whyClaims, []string, error) {
	classes, err := listOf[resourceapi.DeviceClass](ctx, o.client, resourceapi.SchemeGroupVersion.WithResource("deviceclasses"))
	if err != nil && len(pod.Spec.ResourceClaims) == 0 {
		return nil, nil, o.withoutClasses(pod, err)
	}
	served := servedByClaims(pod, classes)
	if len(pod.Spec.ResourceClaims) == 0 && !o.bySlices(ctx, served) {
		return nil, nil, nil
	}
	bare := pod.DeepCopy()
	bare.Status, bare.ManagedFields = corev1.PodStatus{}, nil
	bare.Spec.NodeName = ""
	data, err := yaml.Marshal(bare)
	if err != nil {
		return nil, nil, fmt.Errorf("why: write pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	data = append([]byte("apiVersion: v1\nkind: Pod\n"), dropHead(data)...)
	file, err := fit.Parse("the pod", data, pod.Namespace, fit.Defaults())
	if err != nil {
		return nil, nil, fmt.Errorf("why: %w", err)
	}
	objects, err := readFit(ctx, o.client, file)
	if apierrors.IsForbidden(err) {
		o.hidden = append(o.hidden, why.Stop{Code: why.Hidden, Names: []string{"what its ResourceClaims need"}, Text: denied(err)})
		return nil, served, nil
	}
	if err != nil {
		return nil, nil, apiError(fmt.Errorf("why: %w", err), "")
	}
	objects.Pods = o.Pods
	c := &whyClaims{ctx: ctx, pod: pod, cluster: objects.Cluster, checkers: map[string]*fit.Checker{}, known: map[string][]why.Block{}}
	workloads, err := file.Workloads(objects.Claims, objects.templates)
	if err != nil {
		// A claim or template that does not exist keeps the pod waiting, wherever it could go.
		o.hidden = append(o.hidden, why.Stop{Code: why.NoClaim, Text: oneLineOf(err)})
		return nil, served, nil
	}
	c.workload = workloads[0]
	for i := range classes {
		c.classes = append(c.classes, classes[i].Name)
	}
	slices.Sort(c.classes)
	return c, served, nil
}

// bySlices reports whether slices may serve some extended resources. What no slice can serve is served by device plugins alone, as in a
// cluster without classes. Slices that cannot be read may.
func (o *whyObjects) bySlices(ctx context.Context, served []string) bool {
	if len(served) == 0 {
		return false
	}
	found, err := listOf[resourceapi.ResourceSlice](ctx, o.client, resourceapi.SchemeGroupVersion.WithResource("resourceslices"))
	return err != nil || anySlice(o.Nodes, found, served)
}

// servedOfGang returns the extended resources of the members of a gang that claims may serve.
func servedOfGang(ctx context.Context, o *whyObjects, members []*corev1.Pod) ([]string, error) {
	if !slices.ContainsFunc(members, func(pod *corev1.Pod) bool { return len(fit.ExtendedNames(pod)) > 0 }) {
		return nil, nil
	}
	classes, err := listOf[resourceapi.DeviceClass](ctx, o.client, resourceapi.SchemeGroupVersion.WithResource("deviceclasses"))
	if err != nil {
		return nil, o.withoutClasses(members[0], err)
	}
	var served []string
	for _, pod := range members {
		served = append(served, servedByClaims(pod, classes)...)
	}
	slices.Sort(served)
	if served = slices.Compact(served); !o.bySlices(ctx, served) {
		return nil, nil
	}
	return served, nil
}

// withoutClasses takes an error of the list of DeviceClasses, for a pod without ResourceClaims. Without classes, claims serve no extended
// resource. Classes that may not be read hide the answer only where a device plugin of no node has what the pod requests.
func (o *whyObjects) withoutClasses(pod *corev1.Pod, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsForbidden(err):
		return apiError(fmt.Errorf("why: %w", err), "")
	}
	if len(o.Nodes) > 0 && slices.ContainsFunc(fit.ExtendedNames(pod), o.onNoNode) {
		o.hidden = append(o.hidden, why.Stop{Code: why.Hidden, Names: []string{"DeviceClasses"}, Text: denied(err)})
	}
	return nil
}

// onNoNode reports whether no node has an allocatable device of a resource.
func (o *whyObjects) onNoNode(name corev1.ResourceName) bool {
	return !slices.ContainsFunc(o.Nodes, func(node corev1.Node) bool {
		quantity := node.Status.Allocatable[name]
		return !quantity.IsZero()
	})
}

func oneLineOf(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// dropHead removes the kind and version of an object that was written, which may be empty.
func dropHead(data []byte) []byte {
	lines := strings.SplitAfter(string(data), "\n")
	return []byte(strings.Join(slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "apiVersion:") || strings.HasPrefix(l, "kind:")
	}), ""))
}

// servedByClaims returns the extended resources of a pod that a DeviceClass serves.
func servedByClaims(pod *corev1.Pod, classes []resourceapi.DeviceClass) []string {
	var names []string
	for i := range classes {
		implicit := resourceapi.ResourceDeviceClassPrefix + classes[i].Name
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for name := range c.Resources.Limits {
				text := string(name)
				if (text == implicit || classes[i].Spec.ExtendedResourceName != nil && text == *classes[i].Spec.ExtendedResourceName) && !slices.Contains(names, text) {
					names = append(names, text)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// anySlice reports whether a ResourceSlice may serve an extended resource: it is of a node that has no allocatable device of that resource,
// or of no node. A device plugin comes first wherever the Node has an allocatable device (kube-scheduler 1.37).
func anySlice(nodes []corev1.Node, found []resourceapi.ResourceSlice, resources []string) bool {
	owners := map[string]bool{}
	for i := range found {
		if found[i].Spec.NodeName == nil {
			return true
		}
		owners[*found[i].Spec.NodeName] = true
	}
	for i := range nodes {
		if !owners[nodes[i].Name] {
			continue
		}
		for _, name := range resources {
			if allocatable := nodes[i].Status.Allocatable[corev1.ResourceName(name)]; allocatable.IsZero() {
				return true
			}
		}
	}
	return false
}

// Lacks implements why.Claims.
func (c *whyClaims) Lacks(node string, gone, relaxed []string) []why.Block {
	gone = slices.Clone(gone)
	slices.Sort(gone)
	key := strings.Join(gone, " ")
	ask := node + "|" + key + "|" + strings.Join(relaxed, " ")
	if blocks, ok := c.known[ask]; ok {
		return blocks
	}
	checker := c.checkers[key]
	if checker == nil {
		checker = fit.New(c.without(gone), fit.Defaults())
		c.checkers[key] = checker
	}
	var blocks []why.Block
	if strings.HasSuffix(node, newNodeSuffix) {
		blocks = []why.Block{{Code: why.NoDevices, Text: "no ResourceSlice has devices of a node that is not there"}}
	} else {
		blocks = c.ask(checker, c.relaxed(relaxed), node)
	}
	c.known[ask] = blocks
	return blocks
}

// newNodeSuffix ends the names of nodes that internal/core/why adds. No slice has devices for such a node, and nothing is known about it.
const newNodeSuffix = " (new)"

func (c *whyClaims) ask(checker *fit.Checker, workload *fit.Workload, node string) []why.Block {
	item, err := checker.Check(c.ctx, workload, node)
	if err != nil {
		return []why.Block{{Code: why.ClaimPool, Text: oneLineOf(err)}}
	}
	if item.Fits {
		return nil
	}
	var blocks []why.Block
	add := func(reasons []v1alpha1.FitReason) {
		for i := range reasons {
			if code, ok := claimCodes()[reasons[i].Code]; ok {
				blocks = append(blocks, why.Block{Code: code, Text: reasons[i].Message})
			}
		}
	}
	add(item.Reasons)
	for i := range item.Nodes {
		add(item.Nodes[i].Reasons)
	}
	return blocks
}

// claimCodes are the reasons of berth fit as reasons why a pod waits. What is evaluated elsewhere is left out.
func claimCodes() map[v1alpha1.FitReasonCode]why.Code {
	return map[v1alpha1.FitReasonCode]why.Code{
		v1alpha1.FitClassMissing: why.NoSuchClass, v1alpha1.FitClaimInUse: why.ClaimInUse, v1alpha1.FitClaimDeleted: why.ClaimInUse,
		v1alpha1.FitError: why.ClaimPool, v1alpha1.FitTimeout: why.ClaimPool, v1alpha1.FitClaimElsewhere: why.ClaimPlace, v1alpha1.FitResourceMissing: why.NoDevices,
		v1alpha1.FitResourceHeld: why.ClaimInUse, v1alpha1.FitNoDevices: why.NoDevices, v1alpha1.FitPoolIncomplete: why.ClaimPool, v1alpha1.FitPoolInvalid: why.ClaimPool,
		v1alpha1.FitClassMatchesNothing: why.NoDevices, v1alpha1.FitTooFewMatch: why.ClaimRule, v1alpha1.FitHeld: why.ClaimInUse, v1alpha1.FitTainted: why.ClaimTaint,
		v1alpha1.FitConstraint: why.ClaimLink, v1alpha1.FitTogether: why.ClaimInUse, v1alpha1.FitUnbindable: why.ClaimPlace, v1alpha1.FitNotExplained: why.ClaimPool,
	}
}

// without returns the cluster after pods have ended: their own claims are gone, and what they share with others stays.
func (c *whyClaims) without(gone []string) fit.Cluster {
	if len(gone) == 0 {
		return c.cluster
	}
	next := c.cluster
	next.Pods = slices.DeleteFunc(slices.Clone(c.cluster.Pods), func(p corev1.Pod) bool { return slices.Contains(gone, p.Namespace+"/"+p.Name) })
	next.Claims = slices.Clone(c.cluster.Claims)
	for i := range next.Claims {
		claim := next.Claims[i].DeepCopy()
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
			return r.APIGroup == "" && r.Resource == "pods" && slices.Contains(gone, claim.Namespace+"/"+r.Name)
		})
		if len(next.Claims[i].Status.ReservedFor) > 0 && len(claim.Status.ReservedFor) == 0 {
			claim.Status = resourceapi.ResourceClaimStatus{}
		}
		next.Claims[i] = *claim
	}
	return next
}
