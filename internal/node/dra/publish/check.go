package publish

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Checker reads the slices of a node's pool. Its Check is for Deps.
type Checker struct {
	Client kubernetes.Interface
	Driver string
	Node   string
	Pool   string
	// Read is called before each reading of the slices, and seen with what was read.
	Read func() (seen func([]resourceapi.ResourceSlice))
}

// list returns the slices of the driver on the node, of all pools and generations.
func (c Checker) list(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	seen := c.Read()
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorDriver: c.Driver, resourceapi.ResourceSliceSelectorNodeName: c.Node,
	}.String()})
	if apierrors.IsNotFound(err) { // The API server does not have the API, so there are none.
		seen(nil)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	own := slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool {
		return s.Spec.Driver != c.Driver || s.Spec.NodeName != nil && *s.Spec.NodeName != c.Node
	})
	seen(own)
	return own, nil
}

// Check returns an error that says how the slices in the API server differ from those of the pool.
func (c Checker) Check(ctx context.Context, pool resourceslice.Pool) error {
	list, err := c.list(ctx)
	if err != nil {
		return err
	}
	var newest int64
	for i := range list {
		newest = max(newest, list[i].Spec.Pool.Generation)
	}
	var published []*resourceapi.ResourceSlice
	for i := range list {
		if spec := &list[i].Spec; spec.Pool.Name == c.Pool && spec.Pool.Generation == newest {
			published = append(published, &list[i])
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
