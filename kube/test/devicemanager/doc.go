// Package devicemanager tests Berth's front ends, ledger and reconciliation against the kubelet's own device manager,
// PodResources server and DRA manager.
//
// Real are: k8s.io/kubernetes/pkg/kubelet/cm/devicemanager with its checkpoint file and its registration socket,
// pkg/kubelet/apis/podresources on its socket, the whole Berth agent on simulated hardware, and for each container a
// process in its own cgroups. In the tests with claims (newMixed), also k8s.io/kubernetes/pkg/kubelet/cm/dra with its
// record of prepared claims, the kubelet's registration of drivers, kube-scheduler's allocator of claims, and the
// library that injects CDI devices into containers.
//
// Simulated are: the rest of the kubelet (sequential admission, a worker per pod, the list of active pods, restarts),
// the scheduler (which counts the pods in the API), the container runtime, and an API server for pods, ResourceClaims
// and ResourceSlices.
//
// The harness keeps its own record of which pod got which device and whether that pod still runs (see truth),
// independently of Berth. It counts
//
// - double offers: the kubelet requests a device that another running pod has;
// - double holders: such an Allocate was granted while the other pod still ran;
// - refusals, and among them false ones: no running pod had any of the devices.
//
// The tests need root, for the cgroups and device nodes. BERTH_SEED repeats a run, and BERTH_SOAK=1 runs 10,000 pods
// instead of 300, and 20,000 random steps with both APIs instead of 1,000; BERTH_STEPS is another number of steps.
package devicemanager
