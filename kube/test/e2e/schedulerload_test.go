package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// schedulerLoad creates and deletes pods on the node without containers while the schedulers end.
type schedulerLoad struct {
	*schedulerTest
	on     *rig // the node
	gpus   int
	random *rand.Rand
	number int
	live   map[string]*corev1.Pod
	bound  int
}

// testUnderLoad ends the leader of two schedulers in random ways at random moments while pods come and go: it is killed, its pod is
// deleted, or another client takes the Lease. No GPU is given twice, the kubelet refuses no pod, and each pod that fits runs in the
// end. BERTH_SOAK=1 runs 20 ends in place of 3.
func (s *schedulerTest) testUnderLoad(t *testing.T, node string) {
	ends, seed := 3, rand.Uint64()
	if os.Getenv(envSoak) != "" {
		ends = 20
	}
	t.Logf("seed %d, %d ends", seed, ends)
	on, err := s.Node(node)
	if err != nil {
		t.Fatal(err)
	}
	s.scale(t, 2)
	l := &schedulerLoad{schedulerTest: s, on: &rig{Cluster: s.Cluster, node: on}, gpus: len(hardware(t, on.SimDir()).GPUs),
		random: rand.New(rand.NewPCG(seed, 1)), live: map[string]*corev1.Pod{}}
	t.Cleanup(func() { l.cleanUp(t, l.pods()...) })
	kinds := l.random.Perm(3)
	for i := range ends {
		for range 5 + l.random.IntN(20) {
			l.step(t)
		}
		kind := kinds[i%3]
		if i >= 3 {
			kind = l.random.IntN(3)
		}
		began := time.Now()
		what, leader := l.end(t, kind)
		// While another client has the Lease, the leader goes on for up to 10 s.
		var taken time.Duration
		for before := l.bound; taken == 0 || l.bound < before+3; l.step(t) {
			if time.Since(began) > 2*takeOver {
				t.Fatalf("%s: no three pods were bound by the next leader in %v; the Lease: %+v", what, 2*takeOver, l.lease(t).Spec)
			}
			if holder := l.holder(t); taken == 0 && holder != "" && holder != leader && holder != otherClient {
				taken, before = time.Since(began), l.bound
			}
		}
		t.Logf("%s: the next has the Lease after %v, and three pods more are bound after %v", what, taken.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	l.checkEnd(t)
}

// scale sets the number of schedulers, and waits until they are ready.
func (s *schedulerTest) scale(t *testing.T, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	sets := s.Client().AppsV1().Deployments(agentNamespace)
	if _, err := sets.Patch(t.Context(), schedulerName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, takeOver, fmt.Sprintf("%d schedulers are ready", replicas), func(ctx context.Context) error {
		set, err := sets.Get(ctx, schedulerName, metav1.GetOptions{})
		if err == nil && int(set.Status.ReadyReplicas) != replicas {
			err = fmt.Errorf("%d are", set.Status.ReadyReplicas)
		}
		return err
	})
}

func (l *schedulerLoad) pods() (all []*corev1.Pod) {
	for _, pod := range l.live {
		all = append(all, pod)
	}
	return all
}

// step creates a pod while some wait or GPUs are free, or deletes bound ones, and looks at all of them.
func (l *schedulerLoad) step(t *testing.T) {
	t.Helper()
	time.Sleep(time.Duration(20+l.random.IntN(100)) * time.Millisecond)
	l.look(t)
	waiting := 0
	for _, name := range slices.Sorted(maps.Keys(l.live)) {
		pod := l.live[name]
		switch {
		case pod.Spec.NodeName == "":
			waiting++
		case pod.Status.Phase == corev1.PodRunning && l.random.IntN(4) == 0:
			l.cleanUp(t, pod)
			delete(l.live, name)
		}
	}
	if waiting < 6 {
		l.number++
		pod := l.podOf(fmt.Sprintf("load-%d", l.number), schedulerName)
		requestGPUs(&pod.Spec.Containers[0], 1+l.random.IntN(3))
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: l.on.node.Name()}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: sandbox.HollowLabel, Operator: corev1.TolerationOpExists}}
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		made, err := l.CreatePod(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		l.live[pod.Name] = made
	}
}

// look reads the pods. A pod that has changed its node, or that the kubelet has refused, was bound twice or to GPUs that others have.
func (l *schedulerLoad) look(t *testing.T) {
	t.Helper()
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := int64(0)
	for i := range list.Items {
		pod := &list.Items[i]
		if !strings.HasPrefix(pod.Name, "load-") {
			continue
		}
		before := l.live[pod.Name]
		if before == nil {
			t.Fatalf("pod %s was deleted and is there", pod.Name)
		}
		switch {
		case pod.Status.Phase == corev1.PodFailed:
			t.Fatalf("the kubelet refused pod %s: %s: %s", pod.Name, pod.Status.Reason, pod.Status.Message)
		case before.Spec.NodeName != "" && before.Spec.NodeName != pod.Spec.NodeName:
			t.Fatalf("pod %s was on %s and is on %s", pod.Name, before.Spec.NodeName, pod.Spec.NodeName)
		case before.Spec.NodeName == "" && pod.Spec.NodeName != "":
			l.bound++
		}
		if pod.Spec.NodeName != "" {
			gpus := pod.Spec.Containers[0].Resources.Limits[gpuResource]
			asked += gpus.Value()
		}
		l.live[pod.Name] = pod
	}
	if asked > int64(l.gpus) {
		t.Fatalf("the bound pods request %d GPUs, and %s has %d", asked, l.on.node.Name(), l.gpus)
	}
}

func (l *schedulerLoad) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease, err := l.Client().CoordinationV1().Leases(agentNamespace).Get(t.Context(), schedulerName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// holder returns who has the Lease: the name of a pod and an identifier of its process. It is empty when nothing has it.
func (l *schedulerLoad) holder(t *testing.T) string {
	t.Helper()
	if holder := l.lease(t).Spec.HolderIdentity; holder != nil {
		return *holder
	}
	return ""
}

// otherClient is who takes the Lease from the schedulers.
const otherClient = "another-client"

// end ends the leader. It returns how, and who it was.
func (l *schedulerLoad) end(t *testing.T, kind int) (what, holder string) {
	t.Helper()
	var leader *corev1.Pod
	pid := 0
	waitUntil(t, takeOver, "a scheduler that runs has the Lease", func(ctx context.Context) (err error) {
		holder = l.holder(t)
		name, _, _ := strings.Cut(holder, "_")
		leader, err = l.Client().CoreV1().Pods(agentNamespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(leader.Status.ContainerStatuses) != 1 || leader.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%s does not run", name)
		}
		// The status says for a while that a process runs that was killed just now.
		processes, err := processesOf(leader.Status.ContainerStatuses[0].ContainerID)
		if err == nil && len(processes) != 1 {
			return fmt.Errorf("the processes of %s are %v", name, processes)
		}
		if err == nil {
			pid = processes[0].PID
		}
		return err
	})
	switch kind {
	case 0:
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return "leader killed", holder
	case 1:
		if err := l.Client().CoreV1().Pods(agentNamespace).Delete(t.Context(), leader.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		return "leader's pod deleted", holder
	}
	waitUntil(t, takeOver, "another client has the Lease", func(ctx context.Context) error {
		lease := l.lease(t) // Its holder writes it too; the conflict is tried again.
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.AcquireTime = new(otherClient), &now, &now
		_, err := l.Client().CoordinationV1().Leases(agentNamespace).Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
	return "Lease taken", holder
}

// checkEnd deletes running pods until all that are left run, and compares the GPUs that they have.
func (l *schedulerLoad) checkEnd(t *testing.T) {
	t.Helper()
	began := time.Now()
	for {
		l.look(t)
		running := 0
		for _, name := range slices.Sorted(maps.Keys(l.live)) {
			if l.live[name].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running == len(l.live) {
			break
		}
		if time.Since(began) > takeOver {
			t.Fatalf("after %v %d of %d pods run", takeOver, running, len(l.live))
		}
		for _, name := range slices.Sorted(maps.Keys(l.live)) {
			if pod := l.live[name]; pod.Status.Phase == corev1.PodRunning {
				l.cleanUp(t, pod)
				delete(l.live, name)
				break
			}
		}
		time.Sleep(300 * time.Millisecond)
	}
	holder := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(l.live)) {
		for _, uuid := range l.on.assignment(t, l.live[name]).uuids {
			if holder[uuid] != "" {
				t.Errorf("pods %s and %s have %s", holder[uuid], name, uuid)
			}
			holder[uuid] = name
		}
	}
	t.Logf("%d pods were created, %d bound; at the end %d have %d GPUs", l.number, l.bound, len(l.live), len(holder))
}

// testGated runs pods behind what stands in front of a scheduler: a gate, as Kueue and others set one, and a
// ResourceQuota. The scheduler says nothing of a gated pod, and runs each as soon as it may.
func (s *schedulerTest) testGated(t *testing.T) {
	for _, gate := range []string{"kueue.x-k8s.io/admission", "example.com/approval"} {
		t.Run(strings.ReplaceAll(gate, "/", "-"), func(t *testing.T) { s.testGate(t, gate) })
	}
	t.Run("Quota", func(t *testing.T) { s.testQuotaInFront(t) })
}

func (s *schedulerTest) testGate(t *testing.T, gate string) {
	pod := s.podOf("gated-"+strings.Split(gate, ".")[0], schedulerName)
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
	t.Cleanup(func() { s.cleanUp(t, pod) })
	if _, err := s.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// A pod that comes after it shows that the scheduler has seen it.
	startPod(t, s.Cluster, s.podOf("after-"+pod.Name, schedulerName))
	client := s.Client().CoreV1().Pods(pod.Namespace)
	got, err := client.Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Conditions) != 1 || got.Status.Conditions[0].Reason != corev1.PodReasonSchedulingGated || got.Status.Conditions[0].Type != corev1.PodScheduled {
		t.Errorf("the gated pod has the conditions %+v; want SchedulingGated alone", got.Status.Conditions)
	}
	events, err := s.Client().CoreV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("the gated pod has %d events (%v); want none", len(events.Items), err)
	}
	if _, err := client.Patch(t.Context(), pod.Name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPhase(timeout(t, takeOver), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
		t.Error(err)
	}
}

// testQuotaInFront: the API server refuses the pod that is above the quota, so the scheduler never sees it; with more quota it runs.
func (s *schedulerTest) testQuotaInFront(t *testing.T) {
	const namespace = "limited"
	if _, err := s.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quotas := s.Client().CoreV1().ResourceQuotas(namespace)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests." + gpuResource: resource.MustParse("2")}}}
	quota, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) *corev1.Pod {
		pod := s.podOf(name, schedulerName)
		pod.Namespace = namespace
		return pod
	}
	waitUntil(t, takeOver, "the quota is in force", func(ctx context.Context) error {
		quota, err = quotas.Get(ctx, "gpus", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = errors.New("its status is empty")
		}
		return err
	})
	startPod(t, s.Cluster, of("within"))
	above := of("above")
	if _, err := s.CreatePod(t.Context(), above); err == nil || !strings.Contains(err.Error(), "exceeded quota: gpus") {
		t.Fatalf("the pod above the quota: %v; want exceeded quota", err)
	}
	patch := []byte(`{"spec":{"hard":{"requests.nvidia.com/gpu":"4"}}}`)
	if _, err := quotas.Patch(t.Context(), "gpus", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, takeOver, "the larger quota is in force", func(ctx context.Context) error {
		quota, err = quotas.Get(ctx, "gpus", metav1.GetOptions{})
		if now := quota.Status.Hard["requests."+gpuResource]; err == nil && now.Value() != 4 {
			err = fmt.Errorf("it is %v", now.Value())
		}
		return err
	})
	startPod(t, s.Cluster, above)
}

// testPreempts fills the node without containers with a pod of 4 GPUs and four of 1 GPU. A pod of 4 GPUs with a higher priority ends the
// first, which is one pod less to end than three more, with the rights of the chart.
func (s *schedulerTest) testPreempts(t *testing.T, node string) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}
	if _, err := s.Client().SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := func(name string, gpus int) *corev1.Pod {
		pod := s.podOf(name, schedulerName)
		requestGPUs(&pod.Spec.Containers[0], gpus)
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: sandbox.HollowLabel, Operator: corev1.TolerationOpExists}}
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		return pod
	}
	large := startPod(t, s.Cluster, of("large", 4))
	var small []*corev1.Pod
	for i := range 4 {
		small = append(small, startPod(t, s.Cluster, of(fmt.Sprintf("small-%d", i), 1)))
	}
	urgent := of("urgent", 4)
	urgent.Spec.PriorityClassName = class.Name
	began := time.Now()
	startPod(t, s.Cluster, urgent)
	t.Logf("the urgent pod ran after %v", time.Since(began).Round(time.Millisecond))
	pods := s.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if got, err := pods.Get(t.Context(), large.Name, metav1.GetOptions{}); err == nil && got.UID == large.UID && got.DeletionTimestamp == nil {
		t.Errorf("the pod of 4 GPUs is there: %s", got.Status.Phase)
	}
	for _, pod := range small {
		if got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil || got.DeletionTimestamp != nil {
			t.Errorf("pod %s of 1 GPU has ended: %v", pod.Name, err)
		}
	}
}
