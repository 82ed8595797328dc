package operator

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// leaseTimeout ends a request about the Lease early enough for another one before the operator has to stop, which is 10 s after it renewed
// the Lease.
const leaseTimeout = 5 * time.Second

// newLock returns the Lease by which one of several operators is chosen, under the operator's own name: controller-runtime would add a
// random part to it, so that a container that was killed and started again would wait 15 s until its own Lease expires. The function that
// it returns ends the writing of Events.
func newLock(deps Deps, known *runtime.Scheme) (resourcelock.Interface, func(), error) {
	to := rest.AddUserAgent(rest.CopyConfig(deps.API), "leader-election")
	to.Timeout = leaseTimeout
	client, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server: %w", err)
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events(deps.Namespace)})
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Name: Name, Namespace: deps.Namespace},
		Client:    client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: deps.Identity,
			EventRecorder: events.NewRecorder(known, corev1.EventSource{Component: deps.Identity})},
	}, events.Shutdown, nil
}
