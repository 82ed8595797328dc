package live

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// bytesPerPod is what a list keeps of a pod, as measured.
const bytesPerPod = 2000

// podText is a pod as an API server sends it, one of the ten of a Job, with names in capitals in place of what differs between pods.
const podText = `
apiVersion: v1
kind: Pod
metadata:
  name: NAME
  generateName: JOBNAME-
  namespace: TEAM
  uid: 5b1c0f0e-0000-4000-8000-000000UID
  resourceVersion: "7UID"
  creationTimestamp: "2026-11-27T09:00:00Z"
  finalizers: [batch.kubernetes.io/job-tracking]
  labels:
    batch.kubernetes.io/controller-uid: 7a1c0f0e-0000-4000-8000-000000JOBUID
    batch.kubernetes.io/job-completion-index: "INDEX"
    batch.kubernetes.io/job-name: JOBNAME
    controller-uid: 7a1c0f0e-0000-4000-8000-000000JOBUID
    job-name: JOBNAME
    team: TEAM
  annotations:
    cni.projectcalico.org/containerID: 3f9d6c7d9e1c4b0a8f7e6d5c4b3a29181716151413121110
    cni.projectcalico.org/podIP: 10.1.2.3/32
    kubectl.kubernetes.io/last-applied-configuration: '{"apiVersion":"batch/v1","kind":"Job","metadata":{"annotations":{},"name":"train"}}'
    berth.dev/bandwidth: high
  ownerReferences:
  - {apiVersion: batch/v1, kind: Job, name: JOBNAME, uid: 7a1c0f0e-0000-4000-8000-000000JOBUID, controller: true, blockOwnerDeletion: true}
  managedFields:
  - manager: kube-controller-manager
    operation: Update
    apiVersion: v1
    time: "2026-11-27T09:00:00Z"
    fieldsType: FieldsV1
    fieldsV1:
      f:spec:
        f:restartPolicy: {}
        f:terminationGracePeriodSeconds: {}
spec:
  nodeName: NODE
  schedulerName: berth-scheduler
  priority: 1000
  restartPolicy: Never
  serviceAccountName: default
  terminationGracePeriodSeconds: 30
  dnsPolicy: ClusterFirst
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists}
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: shm, emptyDir: {medium: Memory}}
  - name: kube-api-access
    projected: {defaultMode: 420, sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}}]}
  containers:
  - name: main
    image: registry.example.com/team/train:2026.11
    command: [python, -m, torch.distributed.run, --nnodes=10, train.py]
    env:
    - {name: NCCL_DEBUG, value: INFO}
    - {name: JOB, value: JOBNAME}
    - {name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    ports: [{containerPort: 29500, protocol: TCP}]
    resources:
      limits: {nvidia.com/gpu: "8", cpu: "64", memory: 512Gi}
      requests: {nvidia.com/gpu: "8", cpu: "64", memory: 512Gi}
    volumeMounts: [{name: data, mountPath: /data}, {name: shm, mountPath: /dev/shm}]
  - name: sidecar
    image: registry.example.com/team/logs:1
    resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 128Mi}}
status:
  phase: Running
  hostIP: 192.0.2.1
  podIP: 10.1.2.3
  startTime: "2026-11-27T09:00:10Z"
  conditions:
  - {type: PodReadyToStartContainers, status: "True", lastTransitionTime: "2026-11-27T09:00:12Z"}
  - {type: Initialized, status: "True", lastTransitionTime: "2026-11-27T09:00:10Z"}
  - {type: Ready, status: "True", lastTransitionTime: "2026-11-27T09:00:20Z"}
  - {type: ContainersReady, status: "True", lastTransitionTime: "2026-11-27T09:00:20Z"}
  - {type: PodScheduled, status: "True", lastTransitionTime: "2026-11-27T09:00:09Z"}
  containerStatuses:
  - {name: main, ready: true, restartCount: 0, image: a, imageID: b, containerID: "containerd://3f9d6c7d9e1c4b0a8f7e6d5c4b3a2918"}
`

// podJSON is the same as JSON, with which a list is read.
var podJSON = sync.OnceValues(func() ([]byte, error) { return yaml.YAMLToJSON([]byte(podText)) })

// runningPod returns one of many pods.
func runningPod(t *testing.T, i int) *unstructured.Unstructured {
	t.Helper()
	text, err := podJSON()
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer("NAME", fmt.Sprintf("train-%05d-%d-abcde", i/10, i%10), "JOBNAME", fmt.Sprintf("train-%05d", i/10), "TEAM", fmt.Sprint("team-", i/10%40),
		"JOBUID", fmt.Sprintf("%06d", i/10), "UID", fmt.Sprintf("%06d", i), "INDEX", fmt.Sprint(i%10), "NODE", fmt.Sprint("node-", i%600)).Replace(string(text))
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(own)); err != nil {
		t.Fatal(err)
	}
	return object
}

// TestPodBytes measures what a list keeps of a pod, and prints it.
func TestPodBytes(t *testing.T) {
	const pods = 1500
	l := New(t.Context(), nil, nil, schema.GroupVersionResource{}, (&PodKeeper{}).Keep)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	for i := range pods {
		object, err := l.decode(runningPod(t, i))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / pods
	t.Logf("%d bytes are kept of a pod", each)
	if each > 2*bytesPerPod {
		t.Errorf("%d bytes are kept of a pod, want about %d", each, bytesPerPod)
	}
	runtime.KeepAlive(store)
	runtime.KeepAlive(l)
}

// TestKeptPod checks what is kept of pods, and that those of a workload share it without having one another's names.
func TestKeptPod(t *testing.T) {
	l := New(t.Context(), nil, nil, schema.GroupVersionResource{}, (&PodKeeper{}).Keep)
	decoded := func(i int, change func(map[string]any)) *corev1.Pod {
		from := runningPod(t, i)
		if change != nil {
			change(from.Object)
		}
		object, err := l.decode(from)
		if err != nil {
			t.Fatal(err)
		}
		return object.(*corev1.Pod)
	}
	first, second := decoded(1, nil), decoded(2, nil)
	if first.Name == second.Name || first.UID == second.UID || first.Spec.NodeName == second.Spec.NodeName || first.Labels["batch.kubernetes.io/job-completion-index"] == second.Labels["batch.kubernetes.io/job-completion-index"] {
		t.Errorf("two pods are %v and %v", first, second)
	}
	if &first.Spec.Containers[0] != &second.Spec.Containers[0] {
		t.Error("the pods of a Job do not share their containers")
	}
	gpus := first.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]
	bound := first.Status.Conditions[0]
	if gpus.Value() != 8 || len(first.Spec.Containers) != 2 || len(first.Spec.Volumes) != 1 || first.Spec.Containers[0].Env != nil || first.ManagedFields != nil ||
		len(first.Annotations) != 1 || first.OwnerReferences[0].Name != "train-00000" || first.Spec.NodeSelector == nil || first.Status.Phase != corev1.PodRunning ||
		len(first.Status.Conditions) != 1 || bound.Type != corev1.PodScheduled || bound.LastTransitionTime.UTC() != time.Date(2026, 11, 27, 9, 0, 9, 0, time.UTC) {
		t.Errorf("kept is %+v", first)
	}
	agent := decoded(3, func(o map[string]any) {
		o["metadata"].(map[string]any)["labels"] = map[string]any{"app.kubernetes.io/name": "berth-agent"}
	})
	if len(agent.Status.Conditions) != 2 {
		t.Errorf("the conditions of the agent's pod are %v", agent.Status.Conditions)
	}
	waiting := decoded(4, func(o map[string]any) { delete(o["spec"].(map[string]any), "nodeName") })
	if len(waiting.Status.Conditions) != 5 {
		t.Errorf("the conditions of a pod without a node are %v", waiting.Status.Conditions)
	}
}

// TestKeptAnnotations checks that a pod is of the same gang as before, and says as much about where it has to be.
func TestKeptAnnotations(t *testing.T) {
	for _, name := range []string{
		gangplan.PodGroup, gangplan.MinMember, gangplan.AnnotationRequired, gangplan.AnnotationPreferred, gangplan.AnnotationSegment, gangplan.AnnotationSegmentSize,
		"scheduling.k8s.io/group-name", "volcano.sh/job-name", "leaderworkerset.sigs.k8s.io/size", "kueue.x-k8s.io/podset-required-topology",
		"kueue.x-k8s.io/podset-slice-required-topology-constraints", "kai.scheduler/topology-required-placement", "kai.scheduler/segment-size",
		corev1.MirrorPodAnnotationKey,
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Annotations: map[string]string{name: "4", "example.com/other": "x"}}}
		before, gang := gangplan.KeyOf(pod)
		(&PodKeeper{}).Keep(pod)
		if after, still := gangplan.KeyOf(pod); len(pod.Annotations) != 1 || pod.Annotations[name] != "4" || after != before || still != gang {
			t.Errorf("%s: kept are %v; the gang is %v, was %v", name, pod.Annotations, after, before)
		}
	}
}
