package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox/image"
)

// Names from deploy/agent.yaml.
const (
	agentNamespace = "berth-system"
	agentName      = "berth-agent"
	agentSelector  = "app.kubernetes.io/name=berth-agent"
)

// repository is the root of the repository as seen from this package.
func repository(path ...string) string {
	return filepath.Join(append([]string{"..", "..", ".."}, path...)...)
}

// podAgent runs the agent as a DaemonSet, deployed from the file that users apply and with the permissions in it. The
// test only adds what the sandbox needs.
type podAgent struct {
	r       *rig
	objects []*unstructured.Unstructured // the objects of the file without the DaemonSet
	set     *appsv1.DaemonSet
	version int
}

func newPodAgent(t testing.TB, r *rig) *podAgent {
	t.Helper()
	importAgentImage(t, r)
	if err := r.Apply(timeout(t, 30*time.Second), repository("charts", "berth", "crds")); err != nil {
		t.Fatal(err)
	}
	a := &podAgent{r: r}
	objects, err := decodeFile(repository("deploy", "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() != "DaemonSet" {
			a.objects = append(a.objects, o)
			continue
		}
		a.set = &appsv1.DaemonSet{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, a.set); err != nil {
			t.Fatal(err)
		}
	}
	if a.set == nil {
		t.Fatal("deploy/agent.yaml has no DaemonSet")
	}
	a.fitSandbox()
	return a
}

// fitSandbox adds what differs between a sandbox's node and a real one: simulated hardware, the cgroup below which the
// kubelet keeps its pods, and an /opt that belongs to the machine.
func (a *podAgent) fitSandbox() {
	node, spec := a.r.node, &a.set.Spec.Template.Spec
	agent := &spec.Containers[0]
	agent.Args = append(agent.Args, "--sim="+node.SimDir(), "--cgroup-root=/"+node.Cgroup(), "--hook-dir="+node.HookDir())
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "sim",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: node.SimDir()}}})
	agent.VolumeMounts = append(agent.VolumeMounts, corev1.VolumeMount{Name: "sim", MountPath: node.SimDir()})
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == "hooks" {
			spec.Volumes[i].HostPath.Path = node.HookDir()
		}
	}
	for i := range agent.VolumeMounts {
		if agent.VolumeMounts[i].Name == "hooks" {
			agent.VolumeMounts[i].MountPath = node.HookDir()
		}
	}
}

func decodeFile(path string) ([]*unstructured.Unstructured, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(f, 4096)
	var objects []*unstructured.Unstructured
	for {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case len(o.Object) > 0:
			objects = append(objects, &o)
		}
	}
}

// importAgentImage builds the agent's image and imports it into the node.
func importAgentImage(t testing.TB, r *rig) {
	t.Helper()
	spec, err := image.Agent(r.State().Bin)
	if err != nil {
		t.Fatal(err)
	}
	tarball, err := r.BuildImage(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ImportImage(timeout(t, time.Minute), tarball); err != nil {
		t.Fatal(err)
	}
}

func (a *podAgent) Name() string { return "DaemonSet" }

func (a *podAgent) Start(ctx context.Context) error {
	if err := a.r.ApplyObjects(ctx, a.objects...); err != nil {
		return err
	}
	return a.rollOut(ctx)
}

func (a *podAgent) Upgrade(ctx context.Context) error {
	a.version++
	return a.rollOut(ctx)
}

// rollOut applies the DaemonSet, and returns when the node has one agent, of this version.
func (a *podAgent) rollOut(ctx context.Context) error {
	set := a.set.DeepCopy()
	agent := &set.Spec.Template.Spec.Containers[0]
	agent.Env = append(agent.Env, corev1.EnvVar{Name: "BERTH_TEST_VERSION", Value: strconv.Itoa(a.version)})
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		return err
	}
	delete(object, "status")
	if err := a.r.ApplyObjects(ctx, &unstructured.Unstructured{Object: object}); err != nil {
		return err
	}
	return poll(ctx, "the agent's DaemonSet is rolled out", func() error { return a.rolledOut(ctx) })
}

func (a *podAgent) rolledOut(ctx context.Context) error {
	set, err := a.r.Client().AppsV1().DaemonSets(agentNamespace).Get(ctx, agentName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != 1 || s.NumberAvailable != 1 {
		return fmt.Errorf("its status is %+v", s)
	}
	pods, err := a.pods(ctx)
	if err != nil {
		return err
	}
	if len(pods) != 1 {
		return fmt.Errorf("there are %d agents", len(pods))
	}
	return nil
}

func (a *podAgent) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := a.r.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Kill stops the process first, then deletes pod and DaemonSet, so that neither SIGTERM reaches the agent nor the
// kubelet restarts it, and then kills the process.
func (a *podAgent) Kill(ctx context.Context) error {
	pods, err := a.pods(ctx)
	if err != nil {
		return err
	}
	var processes []kubelet.Process
	for _, pod := range pods {
		for _, status := range pod.Status.ContainerStatuses {
			more, err := processesOf(status.ContainerID)
			if err != nil {
				return err
			}
			processes = append(processes, more...)
		}
	}
	if len(processes) == 0 {
		return errors.New("kill agent: it has no process")
	}
	if err := signalAll(processes, syscall.SIGSTOP); err != nil {
		return err
	}
	if err := a.deleteSet(ctx); err != nil {
		return err
	}
	none := int64(0)
	for _, pod := range pods {
		err := a.r.Client().CoreV1().Pods(agentNamespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &none})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return signalAll(processes, syscall.SIGKILL)
}

func (a *podAgent) deleteSet(ctx context.Context) error {
	err := a.r.Client().AppsV1().DaemonSets(agentNamespace).Delete(ctx, agentName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

func (a *podAgent) Remove(ctx context.Context) error {
	if err := a.deleteSet(ctx); err != nil {
		return err
	}
	pods, err := a.pods(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := a.r.DeletePodAndWait(ctx, agentNamespace, pod.Name, -1); err != nil {
			return err
		}
	}
	return nil
}

// log returns the logs of the agents that exist.
func (a *podAgent) log() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := a.pods(ctx)
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, pod := range pods {
		out, err := a.r.PodLogs(ctx, pod.Namespace, pod.Name, "agent")
		if err != nil {
			out = err.Error()
		}
		fmt.Fprintf(&text, "%s:\n%s\n", pod.Name, out)
	}
	return text.String()
}

// processesOf returns the processes of a container, given its name in the pod's status.
func processesOf(id string) ([]kubelet.Process, error) {
	containers := kubelet.NewContainers(kubelet.ContainersDeps{ProcRoot: "/proc"})
	running, err := containers.Live()
	if err != nil {
		return nil, err
	}
	var found []kubelet.Process
	for i := range running {
		if !strings.HasSuffix(id, "://"+running[i].ID) {
			continue
		}
		pids, err := containers.PIDs(&running[i])
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			process, err := kubelet.ProcessOf("/proc", pid)
			if err == nil {
				found = append(found, process)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	return found, nil
}

func signalAll(processes []kubelet.Process, sig syscall.Signal) error {
	for _, p := range processes {
		if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", p.PID, err)
		}
	}
	return nil
}

// testPermissions checks the permissions in deploy/agent.yaml: everything that the agent requests, and nothing that an
// intruder would want.
func testPermissions(t *testing.T, r *rig) {
	tests := map[string]struct {
		group, resource, verb, name, namespace string
		want                                   bool
	}{
		"read its GPUNode":                       {"berth.dev", "gpunodes", "get", r.node.Name(), "", true},
		"create its GPUNode":                     {"berth.dev", "gpunodes", "create", "", "", true},
		"change its GPUNode":                     {"berth.dev", "gpunodes", "patch", r.node.Name(), "", true},
		"read its node's UID":                    {"", "nodes", "get", r.node.Name(), "", true},
		"follow its node's labels":               {"", "nodes", "watch", "", "", true},
		"label its node":                         {"", "nodes", "patch", r.node.Name(), "", true},
		"follow configurations":                  {"", "configmaps", "watch", "", agentNamespace, true},
		"list configurations":                    {"", "configmaps", "list", "", agentNamespace, true},
		"record an event about a configuration":  {"events.k8s.io", "events", "create", "", "default", true},
		"read whether an orphan's pod has ended": {"", "pods", "get", "any", "", true},
		"read the definition":                    {"apiextensions.k8s.io", "customresourcedefinitions", "get", "gpunodes.berth.dev", "", true},
		"change the definition":                  {"apiextensions.k8s.io", "customresourcedefinitions", "update", "gpunodes.berth.dev", "", false},
		"read another definition":                {"apiextensions.k8s.io", "customresourcedefinitions", "get", "others.example.com", "", false},
		"follow its node's pods":                 {"", "pods", "watch", "", "", true},
		"record events about other objects":      {"events.k8s.io", "events", "create", "", "kube-system", false},
		"start a pod":                            {"", "pods", "create", "", "", false},
		"evict a pod":                            {"", "pods/eviction", "create", "any", "default", false},
		"read secrets":                           {"", "secrets", "get", "any", "", false},
		"read others' ConfigMaps":                {"", "configmaps", "get", "any", "default", false},
		"change a configuration":                 {"", "configmaps", "patch", "any", agentNamespace, false},
		"report the health of its GPUs":          {"", "nodes/status", "patch", r.node.Name(), "", true},
		"write NodeFeatures":                     {"nfd.k8s-sigs.io", "nodefeatures", "create", "", agentNamespace, true},
		"write others' NodeFeatures":             {"nfd.k8s-sigs.io", "nodefeatures", "create", "", "default", false},
		"delete a node":                          {"", "nodes", "delete", r.node.Name(), "", false},
		"remove its GPUNode":                     {"berth.dev", "gpunodes", "delete", r.node.Name(), "", true}, // the policy restricts this further
		"create tokens for other accounts":       {"", "serviceaccounts/token", "create", "any", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			resource, sub, _ := strings.Cut(tc.resource, "/")
			review, err := r.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authv1.SubjectAccessReview{
				Spec: authv1.SubjectAccessReviewSpec{
					User:   "system:serviceaccount:" + agentNamespace + ":" + agentName,
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + agentNamespace, "system:authenticated"},
					ResourceAttributes: &authv1.ResourceAttributes{
						Group: tc.group, Resource: resource, Subresource: sub, Verb: tc.verb, Name: tc.name, Namespace: tc.namespace,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != tc.want {
				t.Errorf("allowed: %v, want %v (%s)", review.Status.Allowed, tc.want, review.Status.Reason)
			}
		})
	}
}

// testNothingForbidden checks that the API server granted every request of the agent in the earlier tests: "forbidden"
// is the API server's word for a refusal.
func testNothingForbidden(t *testing.T, a *podAgent) {
	log := a.log()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") {
			t.Errorf("the API server refused the agent something: %s", line)
		}
	}
	if !strings.Contains(log, "Registered with the kubelet") {
		t.Errorf("this is not the agent's log:\n%s", log)
	}
}
