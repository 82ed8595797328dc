package placement

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
)

// hardwareSink gets what GPUNodes say.
type hardwareSink interface {
	SetHardware(*fleetview.Hardware)
	DropHardware(node string)
}

// follower follows the GPUNodes of a cluster. One that cannot be read, for example of a newer version, costs only its own node. A cluster
// without the definition of GPUNodes is a cluster without GPUNodes: it asks again.
type follower struct {
	client   dynamic.Interface
	sink     hardwareSink
	logger   *slog.Logger
	reader   *fleetview.Reader
	informer cache.SharedIndexInformer
	missing  atomic.Bool
	// logged is the error that was logged last.
	logged atomic.Pointer[string]
}

// item is what the informer keeps of a GPUNode.
type item struct {
	metav1.ObjectMeta
	hardware *fleetview.Hardware
}

// newFollower returns a follower that has not begun.
func newFollower(client dynamic.Interface, sink hardwareSink, logger *slog.Logger) (*follower, error) {
	f := &follower{client: client, sink: sink, logger: logger, reader: fleetview.NewReader()}
	f.informer = dynamicinformer.NewFilteredDynamicInformer(client, v1alpha1.GPUNodes(), metav1.NamespaceAll, 0, nil, nil).Informer()
	if err := f.informer.SetTransform(f.transform); err != nil {
		return nil, fmt.Errorf("follow GPUNodes: %w", err)
	}
	if err := f.informer.SetWatchErrorHandlerWithContext(f.failed); err != nil {
		return nil, fmt.Errorf("follow GPUNodes: %w", err)
	}
	_, err := f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { f.set(object) },
		UpdateFunc: func(_, object any) { f.set(object) },
		DeleteFunc: f.drop,
	})
	if err != nil {
		return nil, fmt.Errorf("follow GPUNodes: %w", err)
	}
	return f, nil
}

// run follows the GPUNodes until the context ends. It begins as soon as the API server serves them: an informer would ask less and less
// often for what is not defined yet.
func (f *follower) run(ctx context.Context) {
	wait.Until(func() {
		_, err := f.client.Resource(v1alpha1.GPUNodes()).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			f.failed(ctx, nil, err)
			return
		}
		f.informer.RunWithContext(ctx)
	}, askAgain, ctx.Done())
}

// askAgain is the time between two questions whether GPUNodes are served.
const askAgain = time.Second

// wait waits until all GPUNodes were read once, the cluster is known to have none, or the time is over; it returns false then.
func (f *follower) wait(ctx context.Context, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !f.informer.HasSynced() && !f.missing.Load() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// transform keeps what decisions need of an object.
func (f *follower) transform(object any) (any, error) {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil // It was transformed before.
	}
	kept := &item{ObjectMeta: metav1.ObjectMeta{Name: raw.GetName(), UID: raw.GetUID(), ResourceVersion: raw.GetResourceVersion()}}
	var node v1alpha1.GPUNode
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, &node); err != nil {
		kept.hardware = fleetview.Unreadable(raw.GetName(), err)
		return kept, nil
	}
	kept.hardware = f.reader.Read(&node)
	return kept, nil
}

// failed reports an error of the watch, the missing definition once.
func (f *follower) failed(_ context.Context, _ *cache.Reflector, err error) {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		if !f.missing.Swap(true) {
			f.logger.Warn("the API server does not serve GPUNodes: the counts of Nodes decide, and links do not count",
				"fix", "install Berth's chart, or its definitions from api/crds")
		}
		return
	}
	text := err.Error()
	if before := f.logged.Swap(&text); before == nil || *before != text {
		f.logger.Warn("cannot follow GPUNodes, what was read last stays in use", "error", err)
	}
}

func (f *follower) set(object any) {
	kept, ok := object.(*item)
	if !ok {
		return
	}
	f.missing.Store(false)
	if kept.hardware.Note != "" {
		f.logger.Warn("a GPUNode can only be used in part", "node", kept.Name, "reason", kept.hardware.Note)
	}
	f.sink.SetHardware(kept.hardware)
}

func (f *follower) drop(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if kept, ok := object.(*item); ok {
		f.sink.DropHardware(kept.Name)
	}
}
