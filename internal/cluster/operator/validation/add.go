package validation

import (
	"context"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	// Cached reads from the caches; Client reads from the API server itself and writes.
	Cached client.Reader
	Client client.Client
	Events events.EventRecorder
	// Objects bounds the attempts for each operation.
	Objects *attempts.Objects
	// Namespace gets the pods.
	Namespace string
	// Classes are the names of the DeviceClasses of Berth by the extended resource that each stands for, and Driver is the DRA driver whose
	// devices they select.
	Classes map[string]string
	Driver  string
	Clock   clock.Clock
	Log     *slog.Logger
}

// PodName is the value of the label app.kubernetes.io/name of validation pods.
const PodName = "berth-validate"

// Cached are the objects that the caches keep besides GPUNodes, the GPUStack and pods, which concerns share: NodeOperations.
func Cached() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&v1alpha1.NodeOperation{}: {}}
}

// workers is how many nodes are served beside one another.
const workers = 4

// Add adds the controller to a manager.
func Add(m manager.Manager, deps Deps) error {
	deps.Cached = m.GetCache()
	c, err := controller.NewTyped("validations", m, controller.TypedOptions[reconcile.Request]{Reconciler: New(deps), MaxConcurrentReconciles: workers})
	if err != nil {
		return err
	}
	watches := []source.Source{
		source.Kind(m.GetCache(), &v1alpha1.GPUNode{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.GPUNode]{},
			predicate.TypedFuncs[*v1alpha1.GPUNode]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.GPUNode]) bool {
				return nodeWakes(e.ObjectOld, e.ObjectNew)
			}}),
		source.Kind(m.GetCache(), &v1alpha1.NodeOperation{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, op *v1alpha1.NodeOperation) []reconcile.Request {
			return []reconcile.Request{request(op.Spec.Node)}
		}), predicate.TypedFuncs[*v1alpha1.NodeOperation]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.NodeOperation]) bool {
			return operationWakes(e.ObjectOld, e.ObjectNew)
		}}),
		source.Kind(m.GetCache(), &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
			op := &v1alpha1.NodeOperation{}
			if err := deps.Cached.Get(ctx, client.ObjectKey{Name: strings.TrimPrefix(pod.Name, podPrefix)}, op); err != nil {
				return nil // No operation waits for it.
			}
			return []reconcile.Request{request(op.Spec.Node)}
		}), predicate.TypedFuncs[*corev1.Pod]{
			CreateFunc: func(e event.TypedCreateEvent[*corev1.Pod]) bool { return newPodWakes(e.Object) },
			UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool { return podWakes(e.ObjectOld, e.ObjectNew) },
		}),
		source.Kind(m.GetCache(), &v1alpha1.GPUStack{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, _ *v1alpha1.GPUStack) []reconcile.Request {
			ops := &v1alpha1.NodeOperationList{}
			if err := deps.Cached.List(ctx, ops); err != nil {
				return nil // Before the caches are synced; each operation then wakes the controller itself.
			}
			var requests []reconcile.Request
			for i := range ops.Items {
				requests = append(requests, request(ops.Items[i].Spec.Node))
			}
			return requests
		}), predicate.TypedGenerationChangedPredicate[*v1alpha1.GPUStack]{}),
	}
	for _, watch := range watches {
		if err := c.Watch(watch); err != nil {
			return err
		}
	}
	return nil
}

func request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}
