package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// documentCluster is the cluster on which the commands are run.
type documentCluster struct {
	*gated
	// since is when the programs of the release began that runs now.
	since time.Time
	// dir is the directory in which the commands are run.
	dir string
}

// checkRefused fails the test when the API server refused something to a program of the release.
func (g *documentCluster) checkRefused(t *testing.T) {
	t.Helper()
	if found, err := denials(g.Cluster, g.since); err != nil || len(found) > 0 {
		t.Errorf("the API server refused %d requests of Berth's programs, %v:\n%s", len(found), err, strings.Join(found, "\n"))
	}
}

// TestOperateDocs runs the commands of the documents as they are written there, with bash, on a cluster that has nothing of Berth.
func TestOperateDocs(t *testing.T) {
	onOwnCluster(t, 1)
	c := ownCluster(t, sandbox.Options{Nodes: 1, Profile: "a100x8-40g", NoAgent: true})
	api, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	g := &documentCluster{gated: &gated{&installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}, api}}
	before := g.everything(t)
	shell := newDocumentShell(t, g.gated)
	g.dir = shell.dir
	for _, section := range documentedSections() {
		for _, c := range section.commands {
			if c.skip != "" {
				t.Logf("not run: %s: %s", c.command, c.skip)
				continue
			}
			if c.before != nil {
				c.before(t, g)
			}
			shell.run(t, &section, &c)
		}
	}
	g.checkRefused(t)
	waitUntil(t, time.Minute, "everything of Berth is gone", func(context.Context) error {
		left := slices.DeleteFunc(more(before, g.everything(t)), func(name string) bool {
			return ofUsers(strings.Replace(name, quotaNamespace, agentNamespace, 1))
		})
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// documentShell runs commands as a user does in the repository, who has the programs in the PATH.
type documentShell struct {
	node sandbox.Node
	dir  string
	env  []string
}

// newDocumentShell makes a folder with what the commands name: the chart, the documents, and values files.
func newDocumentShell(t *testing.T, g *gated) *documentShell {
	t.Helper()
	s := &documentShell{node: g.Nodes()[0], dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{filepath.Join("bin", "kubectl"): self}
	for name, path := range map[string]string{"charts": "charts", "docs": "docs", "small.json": "internal/cluster/whatif/testdata/small.json"} {
		if links[name], err = filepath.Abs(repository(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"berth", "berth-agent", "helm"} {
		links[filepath.Join("bin", name)] = filepath.Join(g.State().Bin, name)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	machine, err := json.Marshal(g.MachineValues())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sandbox-values.yaml": string(machine),
		"nodes.csv":           "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,8,A100\nb,64000,262144,4,T4\n",
		"pods.csv":            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nwhole,8000,16384,1,1000\nshare,2000,4096,1,500\n",
		"my-values.yaml":      "operator:\n  labels: {example.com/team: a}\nconfigs:\n  default:\n    pollInterval: 7s\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(os.Environ(), "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"), "HOME="+s.dir, "KUBECONFIG="+g.KubeconfigPath(),
		"HELM_CACHE_HOME="+s.dir+"/helm", "HELM_CONFIG_HOME="+s.dir+"/helm", "HELM_DATA_HOME="+s.dir+"/helm", envKubectl+"="+g.Dir(),
		"SIM="+s.node.SimDir(), "INSIDE="+g.AdminKubeconfigInside())
	return s
}

// run runs a command of a document. Where it asks, the answer is yes.
func (s *documentShell) run(t *testing.T, section *documentedSection, c *documented) {
	t.Helper()
	began := time.Now()
	out, err := s.bash(timeout(t, 3*time.Minute), c.onNode, substitutions(s.dir).Replace(cmp.Or(c.as, c.command)))
	if err != nil {
		t.Fatalf("%s, %q: %s: %v\n%s", section.document, section.title, c.command, err, out)
	}
	if !regexp.MustCompile(c.want).MatchString(out) {
		t.Errorf("%s, %q: %s does not print %s:\n%s", section.document, section.title, c.command, c.want, out)
	}
	for _, line := range c.output {
		if !slices.Contains(strings.Split(out, "\n"), line) {
			t.Errorf("%s, %q: %s does not print the line\n%s\nof the document:\n%s", section.document, section.title, c.command, line, out)
		}
	}
	t.Logf("%5.1f s  %s\n%s", time.Since(began).Seconds(), c.command, out)
}

// bash runs a command line, if wanted as root of the node.
func (s *documentShell) bash(ctx context.Context, onNode bool, line string) (string, error) {
	var out bytes.Buffer
	if onNode {
		argv := append([]string{"env", "--chdir=" + s.dir}, s.env...)
		argv = pretendCgroup2(append(argv, "bash", "-c", line))
		err := s.node.RunInside(ctx, sandbox.Streams{In: strings.NewReader("y\n"), Out: &out, Err: &out}, argv...)
		return out.String(), err
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.dir, s.env, strings.NewReader("y\n"), &out, &out
	err := cmd.Run()
	return out.String(), err
}

// removeRelease removes the release, since the document shows two ways to install. Helm removes the rights of the programs before they have
// ended, so what the API server refuses then is no defect.
func removeRelease(t *testing.T, g *documentCluster) {
	t.Helper()
	g.checkRefused(t)
	if _, err := g.Helm(timeout(t, time.Minute), nil, "uninstall", "berth", "--namespace", agentNamespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the programs have ended", func(ctx context.Context) error {
		pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	g.since = time.Now()
}

func waitValidated(t *testing.T, g *documentCluster) {
	t.Helper()
	g.waitGate(t, g.Nodes()[0].Name(), v1alpha1.GateValidated, "", time.Minute)
}

// waitRestarted waits until an agent runs that uses all settings.
func waitRestarted(t *testing.T, g *documentCluster) {
	t.Helper()
	waitUntil(t, time.Minute, "no setting waits for a restart of the agent", func(ctx context.Context) error {
		node, err := g.gpuNode(ctx, g.Nodes()[0].Name())
		if err != nil {
			return err
		}
		for i := range node.Status.Problems {
			if p := &node.Status.Problems[i]; p.Code == "CONFIG_RESTART" {
				return errors.New(p.Message)
			}
		}
		return nil
	})
}

// removeCounters removes the list of DCGM's fields. It names some that the node's GPUs do not have, which berth doctor finds, with exit
// code 1, as soon as the agent has measured twice.
func removeCounters(t *testing.T, g *documentCluster) {
	t.Helper()
	if _, err := g.Helm(timeout(t, time.Minute), nil, "upgrade", "berth", g.ChartArchive(), "--namespace", agentNamespace, "--reuse-values", "--set", "agent.dcgmCounters="); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the agent runs without the list", func(ctx context.Context) error {
		pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-agent"})
		if err != nil {
			return err
		}
		set, err := g.Client().AppsV1().DaemonSets(agentNamespace).Get(ctx, "berth-agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != 1 || s.NumberAvailable != 1 || len(pods.Items) != 1 {
			return fmt.Errorf("%d pods, and the DaemonSet is %+v", len(pods.Items), s)
		}
		node, err := g.gpuNode(ctx, g.Nodes()[0].Name())
		if err != nil {
			return err
		}
		if len(node.Status.Problems) > 0 {
			return fmt.Errorf("problems: %+v", node.Status.Problems)
		}
		return nil
	})
}

// waitShared waits until the node offers shares of a GPU.
func waitShared(t *testing.T, g *documentCluster) {
	t.Helper()
	waitUntil(t, time.Minute, "the node offers shares", func(ctx context.Context) error {
		node, err := g.Client().CoreV1().Nodes().Get(ctx, g.Nodes()[0].Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if shares := node.Status.Allocatable["nvidia.com/gpu.shared"]; shares.Value() != 4 {
			return fmt.Errorf("it offers %s", shares.String())
		}
		return nil
	})
}

// waitRuns waits until a pod of an example runs.
func waitRuns(name string) func(*testing.T, *documentCluster) {
	return func(t *testing.T, g *documentCluster) {
		t.Helper()
		if _, err := g.WaitPhase(timeout(t, time.Minute), metav1.NamespaceDefault, name, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}
}

// endPod ends a pod of an example.
func endPod(name string) func(*testing.T, *documentCluster) {
	return func(t *testing.T, g *documentCluster) {
		t.Helper()
		if err := g.DeletePodAndWait(timeout(t, time.Minute), metav1.NamespaceDefault, name, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// removeDirectory removes a directory that commands before have made.
func removeDirectory(name string) func(*testing.T, *documentCluster) {
	return func(t *testing.T, g *documentCluster) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(g.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// unpartition has the node remove its MIG devices, and offer whole GPUs again.
func unpartition(t *testing.T, g *documentCluster) {
	t.Helper()
	node, nodes := g.Nodes()[0].Name(), g.Client().CoreV1().Nodes()
	for _, layout := range []string{`"all-disabled"`, "null"} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, labelMIG, layout)
		if _, err := nodes.Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, time.Minute, "the node offers whole GPUs", func(ctx context.Context) error {
			node, err := nodes.Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if whole := node.Status.Allocatable[gpuResource]; whole.Value() != g.gpus-1 {
				return fmt.Errorf("it offers %s", whole.String())
			}
			return nil
		})
	}
}

// trainNamespace is the namespace of the examples about pods that wait.
const trainNamespace = "ml"

// makeTrain makes what the examples about pods that wait name: a pod with a GPU, and a gang that needs more GPUs than are free, most of
// which belongs to a Job.
func makeTrain(t *testing.T, g *documentCluster) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trainNamespace}}
	if _, err := g.Client().CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	notebook := podWithGPUs("notebook-7", 1)
	notebook.Namespace = trainNamespace
	startPod(t, g.Cluster, notebook)
	member := podWithGPUs("train-0", 6)
	member.Namespace, member.Spec.SchedulerName = trainNamespace, "berth-scheduler"
	member.Labels = map[string]string{"berth.dev/pod-group": "train", "berth.dev/min-member": "3"}
	if _, err := g.CreatePod(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: trainNamespace},
		Spec: batchv1.JobSpec{
			Parallelism: new(int32(2)), Completions: new(int32(2)), CompletionMode: new(batchv1.IndexedCompletion),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: member.Labels}, Spec: member.Spec},
		},
	}
	if _, err := g.Client().BatchV1().Jobs(trainNamespace).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the members of the gang wait", func(ctx context.Context) error {
		pods, err := g.Client().CoreV1().Pods(trainNamespace).List(ctx, metav1.ListOptions{LabelSelector: "berth.dev/pod-group"})
		if err == nil && len(pods.Items) != 3 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

// removeTrain removes what makeTrain has made.
func removeTrain(t *testing.T, g *documentCluster) {
	t.Helper()
	namespaces := g.Client().CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), trainNamespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the namespace is gone", func(ctx context.Context) error {
		_, err := namespaces.Get(ctx, trainNamespace, metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is there")
		} else if apierrors.IsNotFound(err) {
			err = nil
		}
		return err
	})
}

// cordon keeps pods of users and of validations away from the node, or no longer.
func (g *documentCluster) cordon(t *testing.T, on bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on)
	if _, err := g.Client().CoreV1().Nodes().Patch(t.Context(), g.Nodes()[0].Name(), types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// holdNode makes the node wait for its validation, whose pod the scheduler binds to no node.
func holdNode(t *testing.T, g *documentCluster) {
	t.Helper()
	g.cordon(t, true)
	g.forget(t, g.Nodes()[0])
	waitUntil(t, time.Minute, "a validation pod waits", func(ctx context.Context) error {
		pods, err := g.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ValidationLabel})
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

// makeTeam opens the node and makes the namespace of the example.
func makeTeam(t *testing.T, g *documentCluster) {
	t.Helper()
	g.cordon(t, false)
	waitValidated(t, g)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: quotaNamespace}}
	if _, err := g.Client().CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// useQuota waits until the API server counts the names of the quota, and runs a pod with a GPU.
func useQuota(t *testing.T, g *documentCluster) {
	t.Helper()
	waitUntil(t, time.Minute, "the quota is counted", func(ctx context.Context) error {
		quota, err := g.Client().CoreV1().ResourceQuotas(quotaNamespace).Get(ctx, "gpu-quota-team-a", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, ok := quota.Status.Hard["requests."+gpuResource]; !ok {
			return fmt.Errorf("its status is %v", quota.Status)
		}
		return nil
	})
	pod := podWithGPUs("user", 1)
	pod.Namespace = quotaNamespace
	startPod(t, g.Cluster, pod)
}

// removeNamespace removes what both removals leave: the document goes on for a cluster that has no namespace of Berth.
func removeNamespace(t *testing.T, g *documentCluster) {
	t.Helper()
	namespaces := g.Client().CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), agentNamespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the namespace is gone", func(ctx context.Context) error {
		if _, err := namespaces.Get(ctx, agentNamespace, metav1.GetOptions{}); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if err := g.DeletePodAndWait(timeout(t, time.Minute), quotaNamespace, "user", 0); err != nil {
		t.Fatal(err)
	}
}
