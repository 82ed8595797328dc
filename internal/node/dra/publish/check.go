package publish

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Checker reads the slices of a node's pool. Its Check is for Deps.
type Checker struct {
	Client             kubernetes.Interface
	Driver, Node, Pool string
}

// Check returns an error that says how the slices in the API server differ from those of the pool.
func (c Checker) Check(ctx context.Context, pool resourceslice.Pool) error {
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorDriver: c.Driver, resourceapi.ResourceSliceSelectorNodeName: c.Node,
	}.String()})
	if err != nil {
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	var newest int64
	for i := range list.Items {
		newest = max(newest, list.Items[i].Spec.Pool.Generation)
	}
	var published []*resourceapi.ResourceSlice
	for i := range list.Items {
		if spec := &list.Items[i].Spec; spec.Driver == c.Driver && spec.Pool.Name == c.Pool && spec.Pool.Generation == newest {
			published = append(published, &list.Items[i])
		}
	}
	if len(published) != len(pool.Slices) {
		return fmt.Errorf("the API server has %d of %d ResourceSlices of pool %s", len(published), len(pool.Slices), c.Pool)
	}
	for i := range pool.Slices {
		if !slices.ContainsFunc(published, func(s *resourceapi.ResourceSlice) bool { return same(&pool.Slices[i], &s.Spec) }) {
			return fmt.Errorf("ResourceSlice %d of pool %s is not in the API server with its present content", i, c.Pool)
		}
	}
	return nil
}

// same reports whether a published slice has what was wanted, besides the times of taints, which the API server sets.
func same(want *resourceslice.Slice, have *resourceapi.ResourceSliceSpec) bool {
	return apiequality.Semantic.DeepEqual(want.SharedCounters, have.SharedCounters) &&
		apiequality.Semantic.DeepEqual(timeless(want.Devices), timeless(have.Devices))
}

func timeless(devices []resourceapi.Device) []resourceapi.Device {
	devices = slices.Clone(devices)
	for i := range devices {
		if len(devices[i].Taints) == 0 {
			continue
		}
		devices[i].Taints = slices.Clone(devices[i].Taints)
		for k := range devices[i].Taints {
			devices[i].Taints[k].TimeAdded = nil
		}
	}
	return devices
}
