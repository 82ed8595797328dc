package stack

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

// Deps are what the controller works with.
type Deps struct {
	// Cached reads from the caches; Client reads from the API server itself and writes.
	Cached client.Reader
	Client client.Client
	Events events.EventRecorder
	// Objects has the objects of all concerns that cannot be brought in line; the status names them.
	Objects *attempts.Objects
	// Namespace has the ConfigMap.
	Namespace string
	Clock     clock.Clock
	Log       *slog.Logger
}

// Cached are the objects that the caches keep besides GPUNodes, which all concerns share: the GPUStack, and one ConfigMap.
func Cached(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&v1alpha1.GPUStack{}: {},
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
			namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", v1alpha1.GPUStackConfigMap)},
		}},
	}
}

// nodesDelay joins the changes of many GPUNodes, such as those of an upgrade of the agents.
const nodesDelay = time.Second

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Add adds the controller to a manager.
func Add(m manager.Manager, deps Deps) error {
	deps.Cached = m.GetCache()
	c, err := controller.NewTyped("gpustacks", m, controller.TypedOptions[reconcile.Request]{Reconciler: New(deps)})
	if err != nil {
		return err
	}
	only := reconcile.Request{NamespacedName: types.NamespacedName{Name: v1alpha1.GPUStackName}}
	later := func(q queue) { q.AddAfter(only, nodesDelay) }
	watches := []source.Source{
		source.Kind(m.GetCache(), &v1alpha1.GPUStack{}, handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, *v1alpha1.GPUStack) []reconcile.Request {
			return []reconcile.Request{only}
		})),
		source.Kind(m.GetCache(), &corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, *corev1.ConfigMap) []reconcile.Request {
			return []reconcile.Request{only}
		})),
		source.Kind(m.GetCache(), &v1alpha1.GPUNode{}, handler.TypedFuncs[*v1alpha1.GPUNode, reconcile.Request]{
			CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*v1alpha1.GPUNode], q queue) { later(q) },
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.GPUNode], q queue) {
				if factsOf(e.ObjectOld) != factsOf(e.ObjectNew) {
					later(q)
				}
			},
			DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[*v1alpha1.GPUNode], q queue) { later(q) },
		}),
		source.Func(func(ctx context.Context, q queue) error {
			go func() {
				for {
					select {
					case <-ctx.Done():
						return
					case <-deps.Objects.Changed():
						later(q)
					}
				}
			}()
			return nil
		}),
	}
	for _, watch := range watches {
		if err := c.Watch(watch); err != nil {
			return err
		}
	}
	return nil
}
