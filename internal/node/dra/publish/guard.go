package publish

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// Guard returns a client with which a ResourceSlice is created or updated only while begin permits it: the library for DRA drivers writes
// slices in the background, perhaps after they are outdated. begin is called before each such write, and its end after it. wrote is called
// after each write and deletion of a slice; it must not block.
func Guard(client kubernetes.Interface, begin func(*resourceapi.ResourceSlice) (end func(), err error), wrote func()) kubernetes.Interface {
	return &guarded{Interface: client, begin: begin, wrote: wrote}
}

type guarded struct {
	kubernetes.Interface
	begin func(*resourceapi.ResourceSlice) (end func(), err error)
	wrote func()
}

func (g *guarded) ResourceV1() resourceclient.ResourceV1Interface {
	return &guardedGroup{ResourceV1Interface: g.Interface.ResourceV1(), guarded: g}
}

type guardedGroup struct {
	resourceclient.ResourceV1Interface
	guarded *guarded
}

func (g *guardedGroup) ResourceSlices() resourceclient.ResourceSliceInterface {
	return &guardedSlices{ResourceSliceInterface: g.ResourceV1Interface.ResourceSlices(), guarded: g.guarded}
}

type guardedSlices struct {
	resourceclient.ResourceSliceInterface
	guarded *guarded
}

func (g *guardedSlices) Create(ctx context.Context, slice *resourceapi.ResourceSlice, options metav1.CreateOptions) (*resourceapi.ResourceSlice, error) {
	end, err := g.guarded.begin(slice)
	if err != nil {
		return nil, fmt.Errorf("create ResourceSlice: %w", err)
	}
	defer g.guarded.wrote()
	defer end()
	return g.ResourceSliceInterface.Create(ctx, slice, options)
}

func (g *guardedSlices) Update(ctx context.Context, slice *resourceapi.ResourceSlice, options metav1.UpdateOptions) (*resourceapi.ResourceSlice, error) {
	end, err := g.guarded.begin(slice)
	if err != nil {
		return nil, fmt.Errorf("update ResourceSlice %s: %w", slice.Name, err)
	}
	defer g.guarded.wrote()
	defer end()
	return g.ResourceSliceInterface.Update(ctx, slice, options)
}

func (g *guardedSlices) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	defer g.guarded.wrote()
	return g.ResourceSliceInterface.Delete(ctx, name, options)
}
