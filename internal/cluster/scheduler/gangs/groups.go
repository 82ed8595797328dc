package gangs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// askAgain is the time between two questions whether a kind of PodGroups is served.
const askAgain = 15 * time.Second

// followGroups follows the PodGroups of scheduler-plugins and Volcano, as soon as the API server serves them.
func followGroups(ctx context.Context, handle fwk.Handle, r *registry, wake func([]*v1.Pod)) error {
	logger := slog.New(logr.ToSlogHandler(klog.FromContext(ctx).WithName(Name)))
	config := handle.KubeConfig()
	if config == nil {
		return nil
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, source := range []gangplan.Source{gangplan.SchedulerPlugins, gangplan.Volcano} {
		f := &follower{
			source: source,
			client: client,
			gangs:  r,
			wake:   wake,
			logger: logger,
		}
		go f.run(ctx)
	}
	return nil
}

// follower follows one kind of PodGroups.
type follower struct {
	source gangplan.Source
	client dynamic.Interface
	gangs  *registry
	wake   func([]*v1.Pod)
	logger *slog.Logger
	failed atomic.Pointer[string] // the error that was logged last
}

// item is what is kept of a PodGroup.
type item struct {
	metav1.ObjectMeta
	group *gangplan.Group
}

func (f *follower) run(ctx context.Context) {
	resource, _ := f.source.Resource()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if _, err := f.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			f.log(err)
			return
		}
		informer := dynamicinformer.NewFilteredDynamicInformer(f.client, resource, metav1.NamespaceAll, 0, nil, nil).Informer()
		if err := informer.SetTransform(f.transform); err != nil {
			f.log(err)
			return
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: f.set, UpdateFunc: func(_, object any) { f.set(object) }, DeleteFunc: f.drop,
		}); err != nil {
			f.log(err)
			return
		}
		informer.RunWithContext(ctx)
	}, askAgain)
}

// log logs an error unless it did so last; that a kind of PodGroups is not served is none.
func (f *follower) log(err error) {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return
	}
	text := err.Error()
	if last := f.failed.Swap(&text); last == nil || *last != text {
		f.logger.Warn("cannot follow PodGroups: gangs that need them wait", "apiGroup", f.source.String(), "error", err)
	}
}

// transform keeps what a gang needs of an object.
func (f *follower) transform(object any) (any, error) {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil // It was transformed before.
	}
	return &item{
		ObjectMeta: metav1.ObjectMeta{Namespace: raw.GetNamespace(), Name: raw.GetName(), UID: raw.GetUID(), ResourceVersion: raw.GetResourceVersion()},
		group:      gangplan.ParseGroup(f.source, raw),
	}, nil
}

func (f *follower) set(object any) {
	if kept, ok := object.(*item); ok {
		f.wake(f.gangs.setGroup(f.key(kept), kept.group))
	}
}

func (f *follower) drop(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if kept, ok := object.(*item); ok {
		f.wake(f.gangs.setGroup(f.key(kept), nil))
	}
}

func (f *follower) key(kept *item) gangplan.Key {
	return gangplan.Key{Source: f.source, Namespace: kept.Namespace, Name: kept.Name}
}
