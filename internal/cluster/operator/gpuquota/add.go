package gpuquota

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

// Deps are what the controller works with.
type Deps struct {
	// Cached reads from the caches, Client writes.
	Cached client.Reader
	Client client.Client
	Events events.EventRecorder
	// Objects bounds the attempts for each ResourceQuota and status.
	Objects *attempts.Objects
	// Classes are the names of the DeviceClasses of Berth by the extended resource that each stands for.
	Classes map[string]string
	Clock   clock.Clock
	Log     *slog.Logger
}

// What the operator adds to each ResourceQuota.
const (
	fieldManager = "berth-operator"
	managedBy    = "app.kubernetes.io/managed-by"
	// ofQuota is the annotation with the name of the GPUQuota.
	ofQuota = v1alpha1.Group + "/gpu-quota"
)

// Cached are the objects that the caches keep besides GPUNodes, which all concerns share: of namespaces the metadata.
func Cached() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&v1alpha1.GPUQuota{}:    {},
		namespaceMetadata():     {},
		&corev1.ResourceQuota{}: {Label: labels.SelectorFromSet(labels.Set{managedBy: fieldManager})},
	}
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return object
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Add adds the controller to a manager.
func Add(m manager.Manager, deps Deps) error {
	deps.Cached = m.GetCache()
	c, err := controller.NewTyped("gpuquotas", m, controller.TypedOptions[reconcile.Request]{Reconciler: New(deps)})
	if err != nil {
		return err
	}
	all := func(ctx context.Context) []reconcile.Request {
		list := &v1alpha1.GPUQuotaList{}
		if err := deps.Cached.List(ctx, list); err != nil {
			return nil // Before the caches are synced; each GPUQuota then wakes the controller itself.
		}
		var requests []reconcile.Request
		for i := range list.Items {
			requests = append(requests, request(list.Items[i].Name))
		}
		return requests
	}
	watches := []source.Source{
		source.Kind(m.GetCache(), &v1alpha1.GPUQuota{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.GPUQuota]{},
			predicate.TypedGenerationChangedPredicate[*v1alpha1.GPUQuota]{}),
		source.Kind(m.GetCache(), &v1alpha1.GPUNode{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, _ *v1alpha1.GPUNode) []reconcile.Request {
			return all(ctx)
		}), predicate.TypedFuncs[*v1alpha1.GPUNode]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.GPUNode]) bool {
			return !sameNames(e.ObjectOld, e.ObjectNew)
		}}),
		source.Kind(m.GetCache(), namespaceMetadata(), handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, _ *metav1.PartialObjectMetadata) []reconcile.Request {
			return all(ctx)
		}), predicate.TypedLabelChangedPredicate[*metav1.PartialObjectMetadata]{}),
		source.Kind(m.GetCache(), &corev1.ResourceQuota{}, handler.TypedFuncs[*corev1.ResourceQuota, reconcile.Request]{
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.ResourceQuota], q queue) {
				wake(e.ObjectOld, q)
				wake(e.ObjectNew, q)
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.ResourceQuota], q queue) { wake(e.Object, q) },
		}, predicate.TypedFuncs[*corev1.ResourceQuota]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.ResourceQuota]) bool {
			// The API server writes the status with each pod.
			return !sameQuota(e.ObjectOld, e.ObjectNew)
		}}),
	}
	for _, watch := range watches {
		if err := c.Watch(watch); err != nil {
			return err
		}
	}
	return nil
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

func wake(rq *corev1.ResourceQuota, q queue) {
	if name := rq.Annotations[ofQuota]; name != "" {
		q.Add(request(name))
	}
}
