package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	completionIndex = "batch.kubernetes.io/job-completion-index"
	groupIndex      = "leaderworkerset.sigs.k8s.io/group-index"
	workerIndex     = "leaderworkerset.sigs.k8s.io/worker-index"
)

// exampleOf returns the object of docs/examples under another name, which is the gang's too, for API nodes, with changes.
func (l *gangLab) exampleOf(t *testing.T, c gangController, name string, change func(spec, template map[string]any)) *unstructured.Unstructured {
	t.Helper()
	objects, err := objectsOf(filepath.Join("../../../docs/examples", c.example))
	if err != nil || len(objects) != 1 {
		t.Fatalf("%s: %d objects: %v", c.example, len(objects), err)
	}
	o := objects[0]
	o.SetName(name)
	spec := o.Object["spec"].(map[string]any)
	template := templateOf(t, spec)
	set := func(value any, fields ...string) {
		if err := unstructured.SetNestedField(template, value, fields...); err != nil {
			t.Fatal(err)
		}
	}
	set(name, "metadata", "labels", "berth.dev/pod-group")
	set(sandbox.APINodeLabelValue, "spec", "nodeSelector", sandbox.APINodeLabel)
	set([]any{map[string]any{"key": v1alpha1.TaintNotValidated, "operator": "Exists"}}, "spec", "tolerations")
	if change != nil {
		change(spec, template)
	}
	return o
}

// templateOf returns the pods' template of the spec of a JobSet, that of its first replicated job, or of a LeaderWorkerSet.
func templateOf(t *testing.T, spec map[string]any) map[string]any {
	t.Helper()
	fields := []string{"leaderWorkerTemplate", "workerTemplate"}
	if jobs, ok := spec["replicatedJobs"].([]any); ok {
		spec, fields = jobs[0].(map[string]any), []string{"template", "spec", "template"}
	}
	for _, field := range fields {
		next, ok := spec[field].(map[string]any)
		if !ok {
			t.Fatalf("there is no %s", strings.Join(fields, "."))
		}
		spec = next
	}
	return spec
}

// createObject creates an object, and deletes it and its pods after the test.
func (l *gangLab) createObject(t *testing.T, c gangController, o *unstructured.Unstructured) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		foreground := metav1.DeletePropagationForeground
		if err := l.objects(t, c).Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
			t.Error(err)
		}
		if err := l.pollGone(ctx, o.GetName()); err != nil {
			t.Error(err)
		}
	})
	if _, err := l.objects(t, c).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pollGone waits until a gang has no pods.
func (l *gangLab) pollGone(ctx context.Context, gang string) error {
	return poll(ctx, "the pods of gang "+gang+" are gone", func() error {
		list, err := l.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + gang})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}

// ranks returns the pods of a gang by the values of labels, joined with dashes.
func (l *gangLab) ranks(ctx context.Context, gang string, labels ...string) (map[string]*corev1.Pod, error) {
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + gang})
	if err != nil {
		return nil, err
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		var values []string
		for _, label := range labels {
			values = append(values, list.Items[i].Labels[label])
		}
		rank := strings.Join(values, "-")
		if pods[rank] != nil {
			return nil, fmt.Errorf("pods %s and %s have the rank %s", pods[rank].Name, list.Items[i].Name, rank)
		}
		pods[rank] = &list.Items[i]
	}
	return pods, nil
}

// waitPlaced waits until so many pods of a gang exist and all run.
func (l *gangLab) waitPlaced(t *testing.T, gang string, want int, labels ...string) map[string]*corev1.Pod {
	t.Helper()
	var pods map[string]*corev1.Pod
	began := time.Now()
	waitUntil(t, time.Minute, "the pods of gang "+gang+" run", func(ctx context.Context) (err error) {
		if pods, err = l.ranks(ctx, gang, labels...); err != nil {
			return err
		}
		running := 0
		for _, pod := range pods {
			if pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != want || len(pods) != want {
			return fmt.Errorf("%d of %d pods run, and there have to be %d", running, len(pods), want)
		}
		return nil
	})
	t.Logf("the %d pods run after %v", want, time.Since(began).Round(time.Millisecond))
	return pods
}

// waitPods waits until so many pods of a gang exist. None has a node, after a pod was scheduled that was created later, and the scheduler
// calls none unschedulable.
func (l *gangLab) waitPods(t *testing.T, gang string, want int, single string) {
	t.Helper()
	waitUntil(t, time.Minute, fmt.Sprintf("%d pods of gang %s exist", want, gang), func(ctx context.Context) error {
		list, err := l.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + gang})
		if err == nil && len(list.Items) != want {
			err = fmt.Errorf("%d do", len(list.Items))
		}
		return err
	})
	l.run1(t, single)
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + gang})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != want {
		t.Errorf("there are %d pods; want %d", len(list.Items), want)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != "" {
			t.Errorf("pod %s is on %s; want on none", pod.Name, pod.Spec.NodeName)
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Reason == corev1.PodReasonUnschedulable {
				t.Errorf("pod %s is unschedulable: %s; want it left alone", pod.Name, condition.Message)
			}
		}
	}
}

// checkRacks checks that the pods of each list of ranks are in one rack.
func checkRacks(t *testing.T, pods map[string]*corev1.Pod, segments ...[]string) {
	t.Helper()
	for _, segment := range segments {
		racks := map[string]bool{}
		for _, rank := range segment {
			if pods[rank] == nil {
				t.Fatalf("there is no pod of rank %s", rank)
			}
			racks[rackOf(pods[rank].Spec.NodeName)] = true
		}
		if len(racks) != 1 {
			t.Errorf("the pods of the ranks %v are in %d racks; want one", segment, len(racks))
		}
	}
}

// whyGang asks berth why about what created pods of a gang.
func (l *gangLab) whyGang(t *testing.T, subject, namespace string) *v1alpha1.Why {
	t.Helper()
	result := l.berth(t, "why", subject, "-n", namespace, "--kubeconfig", l.KubeconfigPath(), "-o", "json")
	why := &v1alpha1.Why{}
	if err := json.Unmarshal([]byte(result.out), why); err != nil || result.code != 0 {
		t.Fatalf("berth why %s: exit code %d, %v\n%s%s", subject, result.code, err, result.out, result.err)
	}
	if why.Gang == nil {
		t.Fatalf("berth why %s is not about a gang: %s", subject, result.out)
	}
	t.Logf("berth why %s: %s: %s %v", subject, why.Code, why.Sentence, why.Notes)
	return why
}

// leave cordons all API nodes but those with these indexes, until the end of the test.
func (l *gangLab) leave(t *testing.T, indexes ...int) {
	t.Helper()
	set := func(ctx context.Context, cordoned func(int) bool) {
		for i, node := range l.APINodeNames() {
			patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, cordoned(i))
			if _, err := l.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	set(t.Context(), func(i int) bool { return !slices.Contains(indexes, i) })
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), func(int) bool { return false }) })
}

// waitRefused waits until the scheduler has said of so many pods of a gang that it waits as a whole. None has a node.
func (l *gangLab) waitRefused(t *testing.T, gang string, want int, labels ...string) {
	t.Helper()
	waitUntil(t, time.Minute, "the pods of gang "+gang+" are unschedulable", func(ctx context.Context) error {
		pods, err := l.ranks(ctx, gang, labels...)
		if err != nil {
			return err
		}
		waiting := 0
		for _, pod := range pods {
			if pod.Spec.NodeName != "" {
				t.Fatalf("pod %s is on %s; want on none", pod.Name, pod.Spec.NodeName)
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Reason == corev1.PodReasonUnschedulable && strings.Contains(condition.Message, "gang default/"+gang+" waits as a whole") {
					waiting++
				}
			}
		}
		if waiting != want {
			return fmt.Errorf("%d of %d pods are, and there have to be %d", waiting, len(pods), want)
		}
		return nil
	})
}

// testJobSet runs the JobSet of the documentation, at first with too few nodes, then with one rack of which only one node is left.
func (l *gangLab) testJobSet(t *testing.T) {
	c := jobSetController()
	l.leave(t, 0, 1, 2)
	l.createObject(t, c, l.exampleOf(t, c, "train", nil))
	l.waitRefused(t, "train", 4, "jobset.sigs.k8s.io/job-index", completionIndex)
	if why := l.whyGang(t, "jobset/train", metav1.NamespaceDefault); why.Gang.Key != "default/train" || why.Gang.Members != 4 || why.Gang.Placed != 0 {
		t.Errorf("berth why jobset/train: %s, %+v; want none of 4 members of default/train placed", why.Code, why.Gang)
	}
	l.leave(t, 0, 2, 3, 4, 5)
	pods := l.waitPlaced(t, "train", 4, "jobset.sigs.k8s.io/job-index", completionIndex)
	checkRacks(t, pods, []string{"0-0", "0-1"}, []string{"1-0", "1-1"})
	if why := l.whyGang(t, "jobset/train", metav1.NamespaceDefault); why.Code != "GangPlaced" || why.Gang.Members != 4 || why.Gang.Min != 4 {
		t.Errorf("berth why jobset/train: %s, %+v; want GangPlaced, 4 members", why.Code, why.Gang)
	}
}

// testJobSetSuspended suspends a JobSet of two replicated jobs, the first with one pod. Their names are in the other order.
func (l *gangLab) testJobSetSuspended(t *testing.T) {
	c := jobSetController()
	o := l.exampleOf(t, c, "train-suspended", func(spec, _ map[string]any) {
		var jobs []any
		for i, name := range []string{"z-first", "workers"} {
			job := runtime.DeepCopyJSON(spec["replicatedJobs"].([]any)[0].(map[string]any))
			job["name"], job["replicas"] = name, int64(1)
			of := job["template"].(map[string]any)["spec"].(map[string]any)
			of["parallelism"], of["completions"] = int64(1+2*i), int64(1+2*i)
			jobs = append(jobs, job)
		}
		spec["replicatedJobs"], spec["suspend"] = jobs, true
	})
	l.createObject(t, c, o)
	waitUntil(t, 20*time.Second, "the Jobs of the JobSet exist", func(ctx context.Context) error {
		jobs, err := l.Client().BatchV1().Jobs(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "jobset.sigs.k8s.io/jobset-name=" + o.GetName()})
		if err == nil && len(jobs.Items) != 2 {
			err = fmt.Errorf("%d do", len(jobs.Items))
		}
		return err
	})
	l.waitPods(t, o.GetName(), 0, "beside-suspended")
	if _, err := l.objects(t, c).Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := l.waitPlaced(t, o.GetName(), 4, "jobset.sigs.k8s.io/replicatedjob-name", completionIndex)
	checkRacks(t, pods, []string{"z-first-0", "workers-0"}, []string{"workers-1", "workers-2"})
}

// testLeaderWorkerSet runs the LeaderWorkerSet of the documentation: the leader waits until the workers exist.
func (l *gangLab) testLeaderWorkerSet(t *testing.T) {
	c := leaderWorkerSetController()
	l.createObject(t, c, l.exampleOf(t, c, "serve", nil))
	pods := l.waitPlaced(t, "serve", 4, groupIndex, workerIndex)
	checkRacks(t, pods, []string{"0-0", "0-1"}, []string{"0-2", "0-3"})
	if why := l.whyGang(t, "lws/serve", metav1.NamespaceDefault); why.Code != "GangPlaced" || why.Gang.Key != "default/serve[serve-0]" || why.Gang.Members != 4 || why.Gang.Min != 4 {
		t.Errorf("berth why lws/serve: %s, %+v; want GangPlaced, 4 members of default/serve[serve-0]", why.Code, why.Gang)
	}
}

// testLeaderReady: the workers are created only when the leader is ready, which it never is. The gang waits, and berth why says for what.
func (l *gangLab) testLeaderReady(t *testing.T) {
	c := leaderWorkerSetController()
	o := l.exampleOf(t, c, "serve-ready", func(spec, _ map[string]any) { spec["startupPolicy"] = "LeaderReady" })
	l.createObject(t, c, o)
	l.waitPods(t, o.GetName(), 1, "beside-ready")
	const want = "1 of 4 members of gang default/serve-ready[serve-ready-0] exist"
	if why := l.whyGang(t, "lws/serve-ready", metav1.NamespaceDefault); why.Code != "GangIncomplete" || !strings.Contains(why.Sentence, want) {
		t.Errorf("berth why: %s: %s; want GangIncomplete: %s", why.Code, why.Sentence, want)
	}
}

// testLeaderWorkerSetGroups runs two groups on six nodes, each a gang of its own since the minimum is their size: one runs, and the other
// one has no node until there are more.
func (l *gangLab) testLeaderWorkerSetGroups(t *testing.T) {
	c := leaderWorkerSetController()
	l.leave(t, 0, 1, 2, 3, 4, 5)
	o := l.exampleOf(t, c, "serve-groups", func(spec, _ map[string]any) { spec["replicas"] = int64(2) })
	l.createObject(t, c, o)
	first := ""
	waitUntil(t, time.Minute, "one group runs, and the other one waits", func(ctx context.Context) error {
		pods, err := l.ranks(ctx, o.GetName(), groupIndex, workerIndex)
		if err != nil {
			return err
		}
		on, refused := map[string]int{}, map[string]int{}
		for _, pod := range pods {
			group := pod.Labels[groupIndex]
			if pod.Spec.NodeName != "" {
				on[group]++
			}
			for _, condition := range pod.Status.Conditions {
				if strings.Contains(condition.Message, fmt.Sprintf("gang default/serve-groups[serve-groups-%s] waits as a whole", group)) {
					refused[group]++
				}
			}
		}
		for group, other := range map[string]string{"0": "1", "1": "0"} {
			if on[group] == 4 && on[other] == 0 && refused[other] == 4 {
				first = group
				return nil
			}
		}
		return fmt.Errorf("members on nodes %v, refused %v", on, refused)
	})
	why := l.whyGang(t, "lws/serve-groups", metav1.NamespaceDefault)
	if want := fmt.Sprintf("default/serve-groups[serve-groups-%d]", 1-int(first[0]-'0')); why.Gang.Key != want || why.Gang.Members != 4 || why.Gang.Placed != 0 || why.Gang.Fit != 2 {
		t.Errorf("berth why: %+v; want %s, 4 members of which 2 fit", why.Gang, want)
	}
	l.leave(t, 0, 1, 2, 3, 4, 5, 6, 7)
	l.waitPlaced(t, o.GetName(), 8, groupIndex, workerIndex)
}

// testLeaderWorkerSetReplicas runs two groups, which are one gang, because the minimum is that of all pods: they start together.
func (l *gangLab) testLeaderWorkerSetReplicas(t *testing.T) {
	c := leaderWorkerSetController()
	l.leave(t, 0, 1, 2, 3, 4, 5, 6)
	o := l.exampleOf(t, c, "serve-twice", func(spec, template map[string]any) {
		spec["replicas"] = int64(2)
		template["metadata"].(map[string]any)["labels"].(map[string]any)["berth.dev/min-member"] = "8"
	})
	l.createObject(t, c, o)
	l.waitRefused(t, o.GetName(), 8, groupIndex, workerIndex)
	if why := l.whyGang(t, "lws/serve-twice", metav1.NamespaceDefault); why.Gang.Members != 8 || why.Gang.Placed != 0 || why.Gang.Fit != 7 {
		t.Errorf("berth why: %+v; want 8 members of which 7 fit", why.Gang)
	}
	l.leave(t, 0, 1, 2, 3, 4, 5, 6, 7)
	pods := l.waitPlaced(t, o.GetName(), 8, groupIndex, workerIndex)
	checkRacks(t, pods, []string{"0-0", "0-1"}, []string{"0-2", "0-3"}, []string{"1-0", "1-1"}, []string{"1-2", "1-3"})
}

// testGangGated runs a LeaderWorkerSet whose pods have the gate that Kueue's webhook sets on them, and removes as Kueue does when it admits
// them. Until the last one is removed the pods are left alone.
func (l *gangLab) testGangGated(t *testing.T) {
	c := leaderWorkerSetController()
	o := l.exampleOf(t, c, "serve-gated", func(_, template map[string]any) {
		template["spec"].(map[string]any)["schedulingGates"] = []any{map[string]any{"name": "kueue.x-k8s.io/admission"}}
	})
	l.createObject(t, c, o)
	l.waitPods(t, o.GetName(), 4, "beside-gated")
	pods, err := l.ranks(t.Context(), o.GetName(), workerIndex)
	if err != nil {
		t.Fatal(err)
	}
	admit := func(ranks ...string) {
		for _, rank := range ranks {
			if _, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).Patch(t.Context(), pods[rank].Name, types.JSONPatchType,
				[]byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	admit("0", "1", "2")
	l.waitPods(t, o.GetName(), 4, "beside-gated-in-part")
	const want = `3 of 4 members of gang default/serve-gated[serve-gated-0] have no scheduling gates; pod serve-gated-0-3 has "kueue.x-k8s.io/admission"`
	if why := l.whyGang(t, "lws/serve-gated", metav1.NamespaceDefault); why.Code != "GangGated" || !strings.Contains(why.Sentence, want) {
		t.Errorf("berth why: %s: %s; want GangGated: %s", why.Code, why.Sentence, want)
	}
	admit("3")
	l.waitPlaced(t, o.GetName(), 4, workerIndex)
}

// gangQuota is the namespace with a ResourceQuota, and the name of its Job and gang.
const gangQuota = "kind-quota"

// createAboveQuota creates a Job of four pods where the quota allows two.
func (l *gangLab) createAboveQuota(t *testing.T) *batchv1.Job {
	t.Helper()
	if _, err := l.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gangQuota}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quotas := l.Client().CoreV1().ResourceQuotas(gangQuota)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests." + gpuResource: resource.MustParse("16")}}}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 30*time.Second, "the quota is in force", func(ctx context.Context) error {
		quota, err := quotas.Get(ctx, "gpus", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = errors.New("its status is empty")
		}
		return err
	})
	job := l.gangJob(gangQuota, false)
	job, err := l.Client().BatchV1().Jobs(gangQuota).Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// testAboveQuota checks that no pod of the Job has a node, what is said of it, and that it runs with more quota.
func (l *gangLab) testAboveQuota(t *testing.T, job *batchv1.Job) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		background := metav1.DeletePropagationBackground
		err := l.Client().BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: &background})
		if err = errors.Join(err, l.pollGone(ctx, job.Name)); err != nil {
			t.Error(err)
		}
	})
	l.waitPods(t, job.Name, 2, "beside-quota")
	const want = "2 of 4 members of gang kind-quota/kind-quota exist"
	why := l.whyGang(t, "job/"+job.Name, gangQuota)
	if notes := strings.Join(why.Notes, " "); why.Code != "GangIncomplete" || !strings.Contains(why.Sentence, want) || !strings.Contains(notes, "exceeded quota: gpus") {
		t.Errorf("berth why: %s: %s %s; want GangIncomplete: %s, and that the quota is exceeded", why.Code, why.Sentence, notes, want)
	}
	waitUntil(t, 40*time.Second, "an event says what the gang waits for", func(ctx context.Context) error {
		events, err := l.Client().EventsV1().Events(gangQuota).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range events.Items {
			if events.Items[i].Reason == "GangWaiting" && strings.Contains(events.Items[i].Note, want) {
				return nil
			}
		}
		return fmt.Errorf("none of %d does", len(events.Items))
	})
	if _, err := l.Client().CoreV1().ResourceQuotas(gangQuota).Patch(t.Context(), "gpus", types.MergePatchType,
		[]byte(`{"spec":{"hard":{"requests.nvidia.com/gpu":"32"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 20*time.Second, "the larger quota is in force", func(ctx context.Context) error {
		quota, err := l.Client().CoreV1().ResourceQuotas(gangQuota).Get(ctx, "gpus", metav1.GetOptions{})
		if now := quota.Status.Hard["requests."+gpuResource]; err == nil && now.Value() != 32 {
			err = fmt.Errorf("it is %d", now.Value())
		}
		return err
	})
	// The Job controller tries again by itself after up to a minute; a change of the Job makes it try at once.
	if _, err := l.Client().BatchV1().Jobs(gangQuota).Patch(t.Context(), job.Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"example.com/changed":"now"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.waitPlaced(t, job.Name, 4, completionIndex)
}
