package e2e

import (
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The documents whose commands are run.
const (
	installDocument = "docs/install.md"
	operateDocument = "docs/operate.md"
	howToDocument   = "docs/howto.md"
)

// documented is a command of a document.
type documented struct {
	command string
	// skip says why it is not run.
	skip string
	// before makes what the command needs, and the document does not make by a command.
	before func(*testing.T, *documentCluster)
	// want is a regular expression of what it prints.
	want string
}

// documentCluster is the cluster on which the commands are run.
type documentCluster struct {
	*gated
	// since is when the programs of the release began that runs now.
	since time.Time
}

// checkRefused fails the test when the API server refused something to a program of the release.
func (g *documentCluster) checkRefused(t *testing.T) {
	t.Helper()
	if found, err := denials(g.Cluster, g.since); err != nil || len(found) > 0 {
		t.Errorf("the API server refused %d requests of Berth's programs, %v:\n%s", len(found), err, strings.Join(found, "\n"))
	}
}

// documentedSection has the commands of a section of a document, in its order.
type documentedSection struct {
	document, title string
	commands        []documented
}

const (
	deployed  = `(?m)^STATUS: deployed$`
	validated = `(?m)^node-0 +Validated `
	rolled    = `Rollback was a success`
	noNodes   = `the nodes of the sandbox have the images`
)

// documentedSections are all commands of the documents, in the order in which they are run: that of the documents, but for the removal,
// which comes last.
func documentedSections() []documentedSection {
	return []documentedSection{
		{installDocument, "Images", []documented{
			{command: "docker login registry.example.com", skip: "needs a registry; TestInstallImages pushes and pulls with one"},
			{command: "make push REGISTRY=registry.example.com/berth", skip: "needs a registry; TestInstallImages pushes and pulls with one"},
			{command: "ctr -n k8s.io image import bin/images/berth-agent.tar", skip: noNodes + " by the same import"},
			{command: "kubectl -n berth-system create secret docker-registry registry --docker-server=registry.example.com " +
				"--docker-username=... --docker-password=...", skip: "needs a registry and its password"},
		}},
		{installDocument, "Releases", []documented{
			{command: "cd dist/VERSION && sha256sum --check SHA256SUMS", skip: "needs a release"},
		}},
		{installDocument, "The chart", []documented{
			{command: "helm install berth charts/berth --namespace berth-system --create-namespace --set image.registry=registry.example.com/berth", want: deployed},
			{command: "berth status --wait 10m", want: validated},
			{command: "berth values check my-values.yaml", want: `^the chart accepts these values\n$`},
			{command: "helm install berth charts/berth --namespace berth-system --create-namespace --values my-values.yaml", before: removeRelease, want: deployed},
		}},
		{installDocument, "Configure", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set configs.default.migStrategy=single", want: deployed},
		}},
		{installDocument, "The scheduler", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set scheduler.enabled=true", want: deployed},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set scheduler.replaceDefault=true --set scheduler.replicas=2",
				skip: "the scheduler of the sandbox cannot be stopped"},
		}},
		{installDocument, "Upgrade and downgrade", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values", want: deployed},
			{command: "helm rollback berth --namespace berth-system", want: rolled},
		}},
		{howToDocument, "Share a GPU", []documented{
			{command: "berth values check docs/examples/values-shared.yaml", before: waitValidated, want: `^the chart accepts these values\n$`},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --values docs/examples/values-shared.yaml", want: deployed},
			{command: "kubectl apply -f docs/examples/shared.yaml", before: waitShared},
			{command: "berth trace shared", before: waitRuns("shared"), want: `nvidia\.com/gpu\.shared`},
		}},
		{howToDocument, "Partition a GPU", []documented{
			{command: "berth mig layouts node-0", before: endPod("shared"), want: `(?m)^all-balanced `},
			{command: "berth mig plan node-0 all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply node-0 all-balanced", want: `1g\.5gb`},
			{command: "berth mig apply node-0 all-disabled", want: `all-disabled`},
			{command: "kubectl label node node-0 nvidia.com/mig.config-"},
		}},
		{howToDocument, "Scrape the metrics", []documented{
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set podMonitor.enabled=true --set alerts.enabled=true " +
				"--set dashboard.enabled=true", skip: "needs the definitions of the Prometheus operator"},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set configs.default.dcgmNames=true", want: deployed},
			{command: "kubectl -n berth-system rollout restart daemonset berth-agent", skip: "the test's kubectl has no rollout; the next command starts the agents again too"},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set-file agent.dcgmCounters=docs/examples/dcgm-counters.csv", want: deployed},
		}},
		{howToDocument, "See a large cluster on one screen", []documented{
			{command: "berth gpus --summary", before: waitRestarted, want: `(?m)^nvidia\.com/gpu +7 `},
			{command: "berth gpus --group-by namespace", want: `^(NAMESPACE |no namespace holds or requests GPUs\n$)`},
			{command: "berth gpus --free", want: `(?m)^node-0 .* Healthy `},
			{command: "berth gpus --unhealthy", want: `^all GPUs are healthy\n$`},
			{command: "berth top --sort-by util", want: `(?m)^0 +Healthy `},
		}},
		{howToDocument, "Look at a page", []documented{
			{command: "berth web", skip: "serves until it is interrupted; TestWebPage opens it"},
			{command: "berth web -o json", want: `"kind": "Board"`},
			{command: "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set web.enabled=true", want: deployed},
			{command: "kubectl -n berth-system port-forward deployment/berth-web 8088", skip: "serves until it is interrupted; TestWebPage forwards a port to the page"},
			{command: "kubectl create token default -n ml", skip: "the test's kubectl has no tokens; TestWebPage signs in with one"},
		}},
		{howToDocument, "Read the health of GPUs", []documented{
			{command: "berth gpus", want: `(?m)^node-0 .* Healthy `},
			{command: "berth doctor node-0", before: removeCounters, want: `no problem`},
			{command: "kubectl get gpunodes", want: `(?m)^node-0 `},
		}},
		{howToDocument, "Select, sort and print", []documented{
			{command: "berth gpus -n default -o wide", want: `(?m)^(NODE|no GPUs)`},
			{command: "berth gpus -l kubernetes.io/os=linux -o name", want: `(?m)^gpu/GPU-`},
			{command: "berth gpus --sort-by=.uuid -o custom-columns=NODE:.node,GPU:.uuid,HEALTH:.health.state", want: `(?m)^node-0 +GPU-.* Healthy$`},
		}},
		{howToDocument, "Reset a GPU", []documented{
			{command: "berth reset 3 --wait 10m", skip: "runs on the node as root; TestReset runs it"},
		}},
		{howToDocument, "Debug a pod that waits", []documented{
			{command: "kubectl apply -f docs/examples/nine-gpus.yaml"},
			{command: "berth why nine-gpus", want: `9`},
			{command: "berth status", want: `(?m)^node-0 `},
		}},
		{operateDocument, "The gate", []documented{
			{command: "berth status", before: endPod("nine-gpus"), want: validated},
			{command: "kubectl get nodeoperations", before: holdNode, want: `(?m)^validate-node-0 +node-0 `},
			{command: "kubectl -n berth-system get pods -l berth.dev/validation=node", want: `(?m)^berth-.* Pending `},
		}},
		{operateDocument, "Quotas", []documented{
			{command: "kubectl label namespace team-a example.com/team=a", before: makeTeam},
			{command: "kubectl apply -f docs/examples/gpuquota.yaml"},
			{command: "kubectl get gpuquotas", before: useQuota, want: `(?m)^team-a +1 +[1-9]\d* +True `},
			{command: "berth quota", want: quotaUsed},
			{command: "berth quota -n team-a", want: quotaUsed},
		}},
		{installDocument, "Uninstall", []documented{
			{command: "berth uninstall --all", want: `(?s)Go on\? \[y/N\].*\nBerth is removed; now run: helm uninstall berth -n berth-system\n$`},
			{command: "helm uninstall berth --namespace berth-system", want: `release "berth" uninstalled`},
		}},
		{installDocument, "Without Helm", []documented{
			{command: "helm template berth charts/berth --namespace berth-system > berth.yaml", before: removeNamespace},
			{command: "kubectl create namespace berth-system"},
			{command: "kubectl apply --server-side -f berth.yaml", want: `(?m)^daemonset.*/berth-agent serverside-applied$`},
			{command: "berth status --wait 10m", want: validated},
			{command: "berth uninstall --all", want: `(?s)Go on\? \[y/N\].*\nBerth is removed\n$`},
			{command: "kubectl delete --ignore-not-found -f berth.yaml"},
		}},
	}
}

// quotaUsed is the row of the pod of useQuota.
const quotaUsed = `(?m)^team-a +gpu-quota-team-a +team-a +requests\.nvidia\.com/gpu +1 +4 +user \(1\)$`

// substitutions are what is written in place of something in the commands of the documents: the sandbox has no registry, and its nodes need
// values of their own since they are not machines.
func substitutions() *strings.Replacer {
	return strings.NewReplacer(
		" --set image.registry=registry.example.com/berth", " --set image.registry=berth.dev",
		" berth charts/berth ", " berth charts/berth --values sandbox-values.yaml ",
	)
}

// TestOperateDocsCommands compares the commands of the documents with those that TestOperateDocs runs or leaves out: a command that is
// written to a document has to be put here too.
func TestOperateDocsCommands(t *testing.T) {
	for _, document := range []string{installDocument, operateDocument, howToDocument} {
		text, err := os.ReadFile(repository(document))
		if err != nil {
			t.Fatal(err)
		}
		found := commandsOf(string(text))
		if len(found) < 2 {
			t.Errorf("%s: only %d sections with commands", document, len(found))
		}
		for _, section := range documentedSections() {
			if section.document != document {
				continue
			}
			var listed []string
			for _, c := range section.commands {
				listed = append(listed, c.command)
			}
			if got := found[section.title]; !slices.Equal(got, listed) {
				t.Errorf("%s, %q has the commands\n%s\nand the table of TestOperateDocs\n%s", document, section.title, strings.Join(got, "\n"), strings.Join(listed, "\n"))
			}
			delete(found, section.title)
		}
		for title, commands := range found {
			t.Errorf("%s, %q: the table of TestOperateDocs does not have the commands\n%s", document, title, strings.Join(commands, "\n"))
		}
	}
}

// commandsOf returns the lines of the indented blocks of a document by the title of their section.
func commandsOf(text string) map[string][]string {
	found := map[string][]string{}
	title := ""
	for line := range strings.Lines(text) {
		if m := regexp.MustCompile(`^#+ (.+)\n$`).FindStringSubmatch(line); m != nil {
			title = m[1]
		}
		if command, ok := strings.CutPrefix(line, "    "); ok {
			found[title] = append(found[title], strings.TrimSpace(command))
		}
	}
	return found
}

// TestOperateDocs runs the commands of the documents as they are written there, with bash, on a cluster that has nothing of Berth.
func TestOperateDocs(t *testing.T) {
	c := ownCluster(t, sandbox.Options{Nodes: 1, Profile: "a100x8-40g", NoAgent: true})
	api, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	g := &documentCluster{gated: &gated{&installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}, api}}
	before := g.everything(t)
	shell := newDocumentShell(t, g.gated)
	for _, section := range documentedSections() {
		for _, c := range section.commands {
			if c.skip != "" {
				t.Logf("not run: %s: %s", c.command, c.skip)
				continue
			}
			if c.before != nil {
				c.before(t, g)
			}
			shell.run(t, section, c)
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
	dir string
	env []string
}

// newDocumentShell makes a folder with what the commands name: the chart, the documents, and values files.
func newDocumentShell(t *testing.T, g *gated) *documentShell {
	t.Helper()
	s := &documentShell{dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{filepath.Join("bin", "kubectl"): self}
	for _, name := range []string{"charts", "docs"} {
		if links[name], err = filepath.Abs(repository(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"berth", "helm"} {
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
		"my-values.yaml":      "operator:\n  labels: {example.com/team: a}\nconfigs:\n  default:\n    pollInterval: 7s\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(os.Environ(), "PATH="+filepath.Join(s.dir, "bin")+":/usr/bin:/bin", "HOME="+s.dir, "KUBECONFIG="+g.KubeconfigPath(),
		"HELM_CACHE_HOME="+s.dir+"/helm", "HELM_CONFIG_HOME="+s.dir+"/helm", "HELM_DATA_HOME="+s.dir+"/helm", envKubectl+"="+g.Dir())
	return s
}

// run runs a command of a document. Where it asks, the answer is yes.
func (s *documentShell) run(t *testing.T, section documentedSection, c documented) {
	t.Helper()
	began := time.Now()
	cmd := exec.CommandContext(timeout(t, 3*time.Minute), "bash", "-c", substitutions().Replace(c.command))
	cmd.Dir, cmd.Env, cmd.Stdin = s.dir, s.env, strings.NewReader("y\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s, %q: %s: %v\n%s", section.document, section.title, c.command, err, out)
	}
	if !regexp.MustCompile(c.want).Match(out) {
		t.Errorf("%s, %q: %s does not print %s:\n%s", section.document, section.title, c.command, c.want, out)
	}
	t.Logf("%5.1f s  %s\n%s", time.Since(began).Seconds(), c.command, out)
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
