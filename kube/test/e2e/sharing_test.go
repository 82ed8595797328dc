package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
	"github.com/berth-gpu/berth/kube/internal/workload"
)

// sharedResource is the resource name of replicas of whole GPUs with renameByDefault.
const sharedResource = gpuResource + ".shared"

// sharingRig is a node whose agent follows a file that the tests change.
type sharingRig struct {
	*rig
	file string
}

// TestSharing shares and partitions the GPUs of one node in every way, one after the other, by changes of the file that
// its agent follows.
func TestSharing(t *testing.T) {
	onOwnCluster(t, 1)
	s := &sharingRig{file: filepath.Join(t.TempDir(), "agent.yaml")}
	s.write(t, nvidiaFile)
	c := ownCluster(t, sandbox.Options{Profile: "a100x8-80g", Agent: configured(s.file)})
	s.rig = newRig(c)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *sharingRig)
	}{
		{"Lab", testSharingLab},
		{"TimeSlicing", testTimeSlicing},
		{"MPS", testMPS},
		{"MIG", testMIG},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, s) }) {
			t.FailNow()
		}
	}
}

// nvidiaFile is a file of NVIDIA's device plugin that shares nothing.
const nvidiaFile = "version: v1\n"

// write replaces the content of the agent's file.
func (s *sharingRig) write(t testing.TB, text string) {
	t.Helper()
	next := s.file + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, s.file); err != nil {
		t.Fatal(err)
	}
}

// configure writes a file in Berth's format for the agent.
func (s *sharingRig) configure(t testing.TB, settings string) {
	t.Helper()
	s.write(t, "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\n"+settings)
}

// offers are numbers of devices by the name of their resource.
type offers map[string]int

// waitOffers waits until these devices and no others are healthy in the kubelet, and until the scheduler sees the same:
// it reads the node's status, which is written every two seconds.
func (r *rig) waitOffers(t testing.TB, want offers) {
	t.Helper()
	r.waitHealthy(t, want)
	waitUntil(t, 30*time.Second, fmt.Sprintf("the node's status has %v", want), func(ctx context.Context) error {
		node, err := r.Client().CoreV1().Nodes().Get(ctx, r.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := offers{}
		for name, quantity := range node.Status.Allocatable {
			if strings.HasPrefix(string(name), "nvidia.com/") && !quantity.IsZero() {
				got[string(name)] = int(quantity.Value())
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("allocatable are %v", got)
		}
		return nil
	})
}

// waitCapacity waits for the capacity of the node's status. A device that is no longer advertised counts there as
// unhealthy for another quarter of a minute, for a kubelet that is just allocating it.
func (r *rig) waitCapacity(t testing.TB, name string, want int64) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the capacity of %s is %d", name, want), func(ctx context.Context) error {
		node, err := r.Client().CoreV1().Nodes().Get(ctx, r.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := node.Status.Capacity[corev1.ResourceName(name)]; got.Value() != want {
			return fmt.Errorf("it is %s", got.String())
		}
		return nil
	})
}

// waitHealthy waits for the kubelet alone.
func (r *rig) waitHealthy(t testing.TB, want offers) {
	t.Helper()
	waitUntil(t, 30*time.Second, fmt.Sprintf("the kubelet has %v", want), func(ctx context.Context) error {
		got, err := r.healthy(ctx)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("it has %v", got)
		}
		return err
	})
}

// healthy returns the devices that are healthy in the kubelet now.
func (r *rig) healthy(ctx context.Context) (offers, error) {
	devices, err := kubelet.NewPodResources(r.node.KubeletDir()).Allocatable(ctx)
	if err != nil {
		return nil, err
	}
	got := offers{}
	for _, d := range devices {
		if len(d.IDs) > 0 {
			got[d.Resource] += len(d.IDs)
		}
	}
	return got, nil
}

// podWith is a pod whose one container requests devices of a resource and, without a command, sleeps.
func podWith(name, resourceName string, count int64, args ...string) *corev1.Pod {
	if len(args) == 0 {
		args = []string{"sleep"}
	}
	pod := workloadPod(name, args...)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(resourceName): *resource.NewQuantity(count, resource.DecimalSI)}
	return pod
}

// allEntries returns the entries of the kubelet's checkpoint.
func (r *rig) allEntries(t testing.TB) []checkpoint.PodDevicesEntry {
	t.Helper()
	blob, err := os.ReadFile(r.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := entries(blob)
	if err != nil {
		t.Fatalf("read checkpoint: %v", err)
	}
	return all
}

// idsOf returns the devices that the kubelet allocated to a pod's container, of any resource.
func (r *rig) idsOf(t testing.TB, pod *corev1.Pod) []string {
	t.Helper()
	var ids []string
	for _, e := range r.allEntries(t) {
		if e.PodUID == string(pod.UID) && e.ContainerName == "main" {
			ids = append(ids, e.DeviceIDs.Devices().UnsortedList()...)
		}
	}
	if len(ids) == 0 {
		t.Fatalf("the checkpoint has no device of pod %s (%s)", pod.Name, pod.UID)
	}
	slices.Sort(ids)
	return ids
}

// uuidOf returns the UUID in the kubelet's name of a device.
func uuidOf(id string) string {
	uuid, _, _ := strings.Cut(id, "::")
	return uuid
}

// mainProcess returns the first process of a pod's container, by its PID on the machine.
func mainProcess(t testing.TB, pod *corev1.Pod) kubelet.Process {
	t.Helper()
	found, err := processesOf(pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil || len(found) == 0 {
		t.Fatalf("processes of pod %s: %v, %v", pod.Name, found, err)
	}
	return found[0]
}

// inside is a path in a pod's container, as seen from the machine.
func inside(t testing.TB, pod *corev1.Pod, path string) string {
	t.Helper()
	return fmt.Sprintf("/proc/%d/root%s", mainProcess(t, pod).PID, path)
}

// nodesIn returns the NVIDIA device nodes in a pod's container.
func nodesIn(t testing.TB, pod *corev1.Pod) []workload.Device {
	t.Helper()
	root := inside(t, pod, "")
	found, err := workload.Devices(root + "/dev")
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i].Path = strings.TrimPrefix(found[i].Path, root)
	}
	return found
}

// machine describes the node's hardware.
func (r *rig) machine(t testing.TB) sim.Description {
	t.Helper()
	return hardware(t, r.node.SimDir())
}

// waitDevice waits until the GPUNode's entry of a GPU passes check.
func (r *rig) waitDevice(t testing.TB, uuid, what string, check func(v1alpha1.GPUDevice) error) v1alpha1.GPUDevice {
	t.Helper()
	var found v1alpha1.GPUDevice
	waitUntil(t, 15*time.Second, "the GPUNode shows of "+uuid+" "+what, func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(node.Status.Devices, func(d v1alpha1.GPUDevice) bool { return d.UUID == uuid })
		if i < 0 {
			return fmt.Errorf("it has no such device")
		}
		found = node.Status.Devices[i]
		return check(found)
	})
	return found
}

// advertisedAs checks one field of how a device is advertised.
func advertisedAs(want v1alpha1.DeviceOffer) func(v1alpha1.GPUDevice) error {
	return func(d v1alpha1.GPUDevice) error {
		if d.Offered == nil || *d.Offered != want {
			got, _ := json.Marshal(d.Offered)
			return fmt.Errorf("it is advertised as %s, want %+v", got, want)
		}
		return nil
	}
}

// labConfigMap is the ConfigMap of the lab in "How Kubernetes Assigns GPUs", unchanged.
const labConfigMap = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: time-slicing-config
  namespace: kube-system
data:
  any: |-
    version: v1
    sharing:
      timeSlicing:
        resources:
        - name: nvidia.com/gpu
          replicas: 3
`

// labelNode sets a label of the Node to a JSON value; null removes it.
func (s *sharingRig) labelNode(t *testing.T, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
	if _, err := s.Client().CoreV1().Nodes().Patch(t.Context(), s.node.Name(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// letAgentRead gives the agent the right to read ConfigMaps in another namespace, as the chart does in its own.
func (s *sharingRig) letAgentRead(t *testing.T, namespace string) {
	t.Helper()
	objects := rendered(t, s.Cluster, "berth-agent-config-map")
	for _, o := range objects {
		o.SetNamespace(namespace)
	}
	if err := s.ApplyObjects(timeout(t, 30*time.Second), objects...); err != nil {
		t.Fatal(err)
	}
}

// testSharingLab repeats that lab on a machine with one GPU: the GPU is advertised as one device, and as three once the
// ConfigMap exists; three pods share it, a fourth waits, and with the label for the agent's own configuration it is one
// device again.
func testSharingLab(t *testing.T, s *sharingRig) {
	machine, err := sim.Open(s.node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, time.Minute)
	if err := s.node.StopAgent(ctx); err != nil {
		t.Fatal(err)
	}
	gpuInfos := s.machine(t).GPUs
	for _, gpuInfo := range gpuInfos[1:] {
		if err := machine.Inject(sim.Fault{GPU: gpuInfo.UUID, Remove: true}); err != nil {
			t.Fatal(err)
		}
	}
	s.letAgentRead(t, "kube-system")
	another := sandbox.AgentOptions{Args: []string{"--config-map=kube-system/time-slicing-config"}}
	if err := s.mode.(*podAgent).startWith(ctx, another); err != nil {
		t.Fatal(err)
	}
	s.waitOffers(t, offers{gpuResource: 1})
	s.waitCapacity(t, gpuResource, 1)

	lab := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict([]byte(labConfigMap), lab); err != nil {
		t.Fatal(err)
	}
	configMaps := s.Client().CoreV1().ConfigMaps(lab.Namespace)
	start := time.Now()
	if _, err := configMaps.Create(ctx, lab, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.waitHealthy(t, offers{gpuResource: 3})
	t.Logf("the kubelet has 3 GPUs instead of 1 %s after the ConfigMap was created", ms(time.Since(start)))
	s.waitOffers(t, offers{gpuResource: 3})

	pods := s.run(t, podWith("ts-pod-1", gpuResource, 1), podWith("ts-pod-2", gpuResource, 1), podWith("ts-pod-3", gpuResource, 1))
	var ids []string
	for _, pod := range pods {
		own := s.idsOf(t, pod)
		ids = append(ids, own...)
		if got := s.gpusIn(t, pod, "main"); !slices.Equal(got, []uint32{uint32(gpuInfos[0].Minor)}) {
			t.Errorf("pod %s has the nodes of GPUs %v, want the node's only one", pod.Name, got)
		}
		keys, err := kubelet.ParseKeys(s.envIn(t, pod)[kubelet.DevicesEnv(gpuResource)])
		if err != nil || len(keys) != 1 || keys[0].GPU != gpu.UUID(gpuInfos[0].UUID) ||
			own[0] != fmt.Sprintf("%s::%d", keys[0].GPU, keys[0].Share-1) {
			t.Errorf("the environment of pod %s names %v (%v), the kubelet allocated %v", pod.Name, keys, err, own)
		}
	}
	slices.Sort(ids)
	if want := []string{gpuInfos[0].UUID + "::0", gpuInfos[0].UUID + "::1", gpuInfos[0].UUID + "::2"}; !slices.Equal(ids, want) {
		t.Errorf("the pods got %v, want %v", ids, want)
	}
	for i, pod := range pods {
		s.checkShown(t, pod, shown{
			index: "0", replica: s.replicaOf(t, pod, 3), sharing: "time-slicing: not limited, not isolated", column: "time-slicing x3, 3 held",
			with: slices.Concat(pods[:i], pods[i+1:]),
		})
	}

	fourth := podWith("ts-pod-4", gpuResource, 1)
	t.Cleanup(func() { s.cleanUp(t, fourth) })
	if _, err := s.CreatePod(ctx, fourth); err != nil {
		t.Fatal(err)
	}
	s.waitUnschedulable(t, fourth)
	if err := s.remove(ctx, pods[0]); err != nil {
		t.Fatal(err)
	}
	fourth, err = s.WaitPhase(ctx, fourth.Namespace, fourth.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.idsOf(t, fourth); uuidOf(got[0]) != gpuInfos[0].UUID {
		t.Errorf("the pod that waited got %v", got)
	}

	s.waitCapacity(t, gpuResource, 3)

	if err := s.remove(ctx, append(pods, fourth)...); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Delete(ctx, lab.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Without the ConfigMap the last valid configuration stays in force; the label selects the agent's own.
	s.labelNode(t, labelConfig, `"default"`)
	s.waitOffers(t, offers{gpuResource: 1})
	s.labelNode(t, labelConfig, "null")

	// Later tests need all GPUs, and an agent that reads its file only.
	if err := machine.Clear(sim.ClearAll); err != nil {
		t.Fatal(err)
	}
	if err := s.node.StopAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.mode.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.waitHealthy(t, offers{gpuResource: len(gpuInfos)})
}

// testTimeSlicing checks replicas of two GPUs under a resource name of their own beside six whole GPUs; several
// replicas of one container come from different GPUs, and an event reports when that is not possible.
func testTimeSlicing(t *testing.T, s *sharingRig) {
	s.write(t, `
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - name: nvidia.com/gpu
      devices: ["0", "1"]
      replicas: 3
`)
	s.waitOffers(t, offers{gpuResource: 6, sharedResource: 6})
	gpuInfos := s.machine(t).GPUs
	both := []string{gpuInfos[0].UUID, gpuInfos[1].UUID}

	two := s.run(t, podWith("two-a", sharedResource, 2), podWith("two-b", sharedResource, 2))
	for _, pod := range two {
		var uuids []string
		for _, id := range s.idsOf(t, pod) {
			uuids = append(uuids, uuidOf(id))
		}
		if slices.Sort(uuids); !slices.Equal(uuids, slices.Sorted(slices.Values(both))) {
			t.Errorf("pod %s requested two replicas and has them of %v, want one each of %v", pod.Name, uuids, both)
		}
		if got := s.gpusIn(t, pod, "main"); !slices.Equal(got, minorsOf(t, s.machine(t), both)) {
			t.Errorf("pod %s has the nodes of GPUs %v", pod.Name, got)
		}
	}
	if err := s.remove(timeout(t, 30*time.Second), two[1]); err != nil {
		t.Fatal(err)
	}
	// Four are left, two of each GPU.
	crowd := s.run(t, podWith("crowd", sharedResource, 4))[0]
	if got := s.gpusIn(t, crowd, "main"); len(got) != 2 {
		t.Errorf("pod crowd has the GPUs %v, want two", got)
	}
	s.waitNodeEvent(t, "SharesOfOneGPU", sharedResource)
	if err := s.remove(timeout(t, 30*time.Second), two[0], crowd); err != nil {
		t.Fatal(err)
	}

	s.configure(t, `
gpus:
- select: {index: [0]}
  sharing: {mode: timeSlicing, replicas: 4, renameByDefault: true, timeSlice: long, failRequestsGreaterThanOne: true}
`)
	s.waitOffers(t, offers{gpuResource: 7, sharedResource: 4})
	if got := gpuOf(t, s.machine(t), gpuInfos[0].UUID).TimeSlice; !strings.EqualFold(got, "long") {
		t.Errorf("the time slice of GPU 0 is %q, want long", got)
	}
	s.waitDevice(t, gpuInfos[0].UUID, "how it is shared", advertisedAs(v1alpha1.DeviceOffer{
		Resource: sharedResource, Sharing: "timeSlicing", Replicas: 4, TimeSlice: "long", RefusesMany: true,
	}))
	s.checkRefused(t, podWith("greedy", sharedResource, 2), "maximum request size for shared resources is 1")

	s.configure(t, "")
	s.waitOffers(t, offers{gpuResource: 8})
	waitUntil(t, 5*time.Second, "the time slice of GPU 0 is the default", func(context.Context) error {
		if got := gpuOf(t, s.machine(t), gpuInfos[0].UUID).TimeSlice; got != "" {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// checkRefused checks that the kubelet does not admit a pod, and that the pod's status has the reason.
func (r *rig) checkRefused(t testing.TB, pod *corev1.Pod, why string) {
	t.Helper()
	t.Cleanup(func() { r.cleanUp(t, pod) })
	ctx := timeout(t, 30*time.Second)
	if _, err := r.CreatePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	refused, err := r.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodFailed)
	if err != nil {
		t.Fatal(err)
	}
	if refused.Status.Reason != "UnexpectedAdmissionError" || !strings.Contains(refused.Status.Message, why) {
		t.Errorf("pod %s was refused: %s: %s; want %q", pod.Name, refused.Status.Reason, refused.Status.Message, why)
	}
}

// waitNodeEvent waits for an event about the node.
func (r *rig) waitNodeEvent(t testing.TB, reason, text string) {
	t.Helper()
	waitUntil(t, 15*time.Second, "the node has an event "+reason, func(ctx context.Context) error {
		events, err := r.Client().CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + r.node.Name() + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, text) }) {
			return fmt.Errorf("of %d such events none has %q", len(events.Items), text)
		}
		return nil
	})
}
