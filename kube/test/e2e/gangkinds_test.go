package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

// testKinds runs gangs of the kinds that users have: a Job, a Job that is suspended at first, and the PodGroups of scheduler-plugins and
// Volcano in the form of their documentation.
func (l *gangLab) testKinds(t *testing.T) {
	t.Run("Job", func(t *testing.T) { l.testJob(t, false) })
	t.Run("Suspended", func(t *testing.T) { l.testJob(t, true) })
	t.Run("SchedulerPlugins", func(t *testing.T) {
		dir := downloadedModule(t, "sigs.k8s.io/scheduler-plugins@v0.34.7", "h1:GENSA4rKpCKBrPvNSo2AV2QHU7j3a6LT14kNlHhXfeg=")
		definitions, err := objectsOf(filepath.Join(dir, "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"))
		if err != nil || len(definitions) != 1 {
			t.Fatalf("%d definitions of PodGroups: %v", len(definitions), err)
		}
		l.testPodGroup(t, gangplan.SchedulerPlugins, definitions[0], func(pod *corev1.Pod) { pod.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "kind-group"} })
	})
	t.Run("Volcano", func(t *testing.T) {
		definition := &unstructured.Unstructured{}
		resource, _ := gangplan.Volcano.Resource()
		if err := definition.UnmarshalJSON(fmt.Appendf(nil, podGroupDefinition, resource.Group, resource.Version)); err != nil {
			t.Fatal(err)
		}
		l.testPodGroup(t, gangplan.Volcano, definition, func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"scheduling.k8s.io/group-name": "kind-group"}
		})
	})
}

// template returns a pod with 8 GPUs for API nodes.
func (l *gangLab) template(name string) *corev1.Pod {
	pod := podWithGPUs(name, 8)
	pod.Spec.SchedulerName = schedulerName
	onAPINodes(pod)
	return pod
}

// testJob runs an indexed Job of four pods with 8 GPUs as a gang in one rack pair: all have a node, those of consecutive index in one rack.
func (l *gangLab) testJob(t *testing.T, suspended bool) {
	name := "kind-job"
	if suspended {
		name = "kind-suspended"
	}
	job := l.gangJob(name, suspended)
	jobs := l.Client().BatchV1().Jobs(metav1.NamespaceDefault)
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		background := metav1.DeletePropagationForeground
		if err := jobs.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: new(int64)}); err != nil {
			t.Error(err)
		}
	})
	if suspended {
		l.run1(t, "kind-single")
		if nodes := l.nodesByIndex(t, name); len(nodes) > 0 {
			t.Errorf("the pods of a suspended Job are on %v", nodes)
		}
		if _, err := jobs.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var nodes map[string]string
	waitUntil(t, time.Minute, "the pods of the Job have nodes", func(context.Context) error {
		if nodes = l.nodesByIndex(t, name); len(nodes) != 4 {
			return fmt.Errorf("%v have", nodes)
		}
		return nil
	})
	for _, pair := range [][2]string{{"0", "1"}, {"2", "3"}} {
		if rackOf(nodes[pair[0]]) != rackOf(nodes[pair[1]]) {
			t.Errorf("indexes %s and %s are on %s and %s; want one rack", pair[0], pair[1], nodes[pair[0]], nodes[pair[1]])
		}
	}
}

// gangJob returns an indexed Job of four pods with 8 GPUs, a gang of the same name of which two members each are in one rack.
func (l *gangLab) gangJob(name string, suspended bool) *batchv1.Job {
	template := l.template("")
	template.Labels = map[string]string{"berth.dev/pod-group": name, "berth.dev/min-member": "4"}
	template.Annotations = map[string]string{"berth.dev/topology-segment": "rack", "berth.dev/topology-segment-size": "2"}
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	four := int32(4)
	mode := batchv1.IndexedCompletion
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Parallelism: &four, Completions: &four, CompletionMode: &mode, Suspend: &suspended,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec}}}
}

// rackOf returns the rack of an API node.
func rackOf(node string) string {
	if node == "" {
		return ""
	}
	return fmt.Sprint((node[len(node)-1] - '0') / 2)
}

// nodesByIndex returns the nodes of the pods of a gang that have one, by completion index.
func (l *gangLab) nodesByIndex(t *testing.T, gang string) map[string]string {
	t.Helper()
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: "berth.dev/pod-group=" + gang})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]string{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName != "" {
			nodes[pod.Labels["batch.kubernetes.io/job-completion-index"]] = pod.Spec.NodeName
		}
	}
	return nodes
}

// run1 runs a single pod to show that the scheduler has seen what was created before it.
func (l *gangLab) run1(t *testing.T, name string) {
	t.Helper()
	pod := l.template(name)
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	l.run(t, pod)
}

// podGroupDefinition is a definition of PodGroups, as far as a scheduler reads it: Volcano's own file is in no module that can be had
// here.
const podGroupDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"podgroups.%[1]s","annotations":{"api-approved.kubernetes.io":"unapproved, for a test"}},
"spec":{"group":%[1]q,"scope":"Namespaced","names":{"kind":"PodGroup","plural":"podgroups","singular":"podgroup"},"versions":[{"name":%[2]q,"served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// downloadedModule returns the folder of a module with a checksum, which is downloaded if need be.
func downloadedModule(t *testing.T, module, sum string) string {
	t.Helper()
	var problem bytes.Buffer
	download := exec.CommandContext(timeout(t, 2*time.Minute), "go", "mod", "download", "-json", module)
	download.Dir, download.Stderr = t.TempDir(), &problem
	out, err := download.Output()
	var made struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &made); err != nil || jsonErr != nil || made.Sum != sum {
		t.Fatalf("download %s: %v, %v; it has the checksum %q, want %q; %s%s", module, err, jsonErr, made.Sum, sum, made.Error, problem.String())
	}
	return made.Dir
}

// testPodGroup runs pods that name a PodGroup of another project: they wait until it exists and its minimum is reached, and then all run.
func (l *gangLab) testPodGroup(t *testing.T, source gangplan.Source, definition *unstructured.Unstructured, join func(*corev1.Pod)) {
	client, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	resource, _ := source.Resource()
	if _, err := client.Resource(definitions()).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range 3 {
		pod := l.template(fmt.Sprintf("kind-%s-%d", strings.ReplaceAll(source.String(), ".", "-"), i))
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		join(pod)
		pods = append(pods, pod)
	}
	t.Cleanup(func() { l.cleanUp(t, pods...) })
	for _, pod := range pods {
		if _, err := l.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	l.run1(t, "kind-before-"+strings.ReplaceAll(source.String(), ".", "-"))
	waiting := func(ctx context.Context) error {
		for _, pod := range pods {
			got, err := l.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got.Spec.NodeName != "" {
				return fmt.Errorf("%s is on %s", pod.Name, got.Spec.NodeName)
			}
		}
		return nil
	}
	if err := waiting(t.Context()); err != nil {
		t.Errorf("before the PodGroup exists: %v", err)
	}
	group := podGroup(resource, 3)
	if source == gangplan.SchedulerPlugins {
		group.Object["spec"].(map[string]any)["scheduleTimeoutSeconds"] = int64(10)
	}
	waitUntil(t, 20*time.Second, "the API server serves PodGroups", func(ctx context.Context) error {
		_, err := client.Resource(resource).Namespace(metav1.NamespaceDefault).Create(ctx, group, metav1.CreateOptions{})
		return err
	})
	for _, pod := range pods {
		if _, err := l.WaitPhase(timeout(t, time.Minute), pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
			t.Fatal(errors.Join(err, waiting(t.Context())))
		}
	}
}

// podGroup returns a PodGroup as the documentation of both projects has it.
func podGroup(resource schema.GroupVersionResource, least int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "PodGroup", "metadata": map[string]any{"name": "kind-group"}, "spec": map[string]any{"minMember": least},
	}}
}
