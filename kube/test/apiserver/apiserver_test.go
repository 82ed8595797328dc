package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
)

const (
	nodeName = "node-a"
	podName  = "berth-agent-a"
	// podNamespace has a pod that waits.
	podNamespace = "kube-public"
	// absent is what the condition of the GPUStack says of an API server without the feature.
	absent = "the API server drops spec.extendedResourceName, since its feature gate DRAExtendedResource is off"
)

// TestVersions installs the chart with Helm on an API server of each version, and runs the operator, an agent of a simulated machine and
// the command line there, with the rights that the chart gives them. At rest nothing is written, and no error is logged; a feature that
// the API server does not have is absent, and the GPUStack says so. 1.35 and 1.36 run with BERTH_SOAK=1, and rest for a minute there.
func TestVersions(t *testing.T) {
	bin := programs(t)
	alone := func(version string) []string { return []string{filepath.Join(bin, "kube-apiserver-"+version)} }
	newest := []string{filepath.Join(bin, "hyperkube"), "kube-apiserver"}
	const off = "DRAExtendedResource=false" // 1.37 locks it to true.
	for _, v := range []struct {
		name   string
		argv   []string
		gates  string
		absent bool
		soak   bool
	}{
		{name: "1.34", argv: alone("1.34"), absent: true},
		{name: "1.35", argv: alone("1.35"), absent: true, soak: true},
		{name: "1.36", argv: alone("1.36"), soak: true},
		{name: "1.36WithoutTheGate", argv: alone("1.36"), gates: off, absent: true, soak: true},
		{name: "1.37", argv: newest},
	} {
		t.Run(v.name, func(t *testing.T) {
			if v.soak && os.Getenv("BERTH_SOAK") != "1" {
				t.Skip("runs with BERTH_SOAK=1")
			}
			t.Parallel()
			testVersion(t, start(t, bin, v.argv, v.gates), v.absent)
		})
	}
}

func testVersion(t *testing.T, s *server, isAbsent bool) {
	// 1. Install the chart, and start the operator and an agent. Without a kubelet no node can be validated.
	s.command("helm", "install", "berth", filepath.Join(s.bin, "chart", "berth-0.0.0-dev.tgz"), "--namespace", namespace, "--create-namespace",
		"--set", "rights.dra=true,gate.mode=disabled")
	operator := s.run("berth-operator", filepath.Join(s.bin, "berth-operator"), "--kubeconfig", s.account("berth-operator", ""), "--namespace", namespace,
		"--probe-listen", "", "--metrics-listen", "")
	agent := s.startAgent()
	// 2. The objects of both, and a quota.
	s.wait(time.Minute, "the GPUNode", agent, func(ctx context.Context) error {
		node, err := s.objects.Resource(v1alpha1.GPUNodes()).Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if devices, _, _ := unstructured.NestedSlice(node.Object, "status", "devices"); len(devices) != 8 {
			return fmt.Errorf("it has %d GPUs", len(devices))
		}
		return nil
	})
	s.limit(operator)
	s.wait(time.Minute, "the GPUStack", operator, func(ctx context.Context) error { return s.reconciled(ctx, isAbsent) })
	// 3. The command line.
	for command, want := range map[string]string{"status": "1 of 1 nodes are validated; Reconciled", "gpus": nodeName + "   7 ", "quota": "requests.example.com/gpu",
		"doctor " + nodeName: "nodes/" + nodeName, "why " + podNamespace + "/waits": nodeName + ": "} {
		out := s.command("berth", strings.Fields(command)...)
		if !strings.Contains(out, want) || command == "status" && strings.Contains(out, absent) != isAbsent {
			t.Errorf("berth %s prints\n%swant %q in it", command, out, want)
		}
	}
	// 4. Rest: the operator renews its Lease every 2 s, and nothing else is written in between.
	renewals := 4
	if os.Getenv("BERTH_SOAK") == "1" {
		renewals = 31
	}
	logged := s.errors()
	s.wait(time.Duration(renewals)*2*time.Second+time.Minute, "rest", operator, func(context.Context) error {
		n, others, err := s.writes()
		if err != nil || n >= renewals {
			return err
		}
		return fmt.Errorf("%d renewals of the Lease since the last of %d writes: %v", n, len(others), others[max(0, len(others)-5):])
	})
	_, others, err := s.writes()
	t.Logf("%d writes in all, then none in %d s", len(others), 2*(renewals-1))
	for _, r := range others {
		if code := r.ResponseStatus.Code; err == nil && code >= 400 && code != 404 && code != 409 {
			err = fmt.Errorf("refused: %s", r)
		}
	}
	if now := s.errors(); err != nil || len(now) > len(logged) {
		t.Errorf("%v; errors logged meanwhile: %q", err, now[len(logged):])
	}
}

// startAgent starts the agent of a simulated machine with eight GPUs, of which it offers half through each API.
func (s *server) startAgent() *process.Process {
	s.t.Helper()
	ctx := s.t.Context()
	if _, err := s.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	// Its pod. The policies of the chart let nobody else create one with the agent's account.
	as := rest.CopyConfig(s.config)
	as.Impersonate.UserName = "system:serviceaccount:kube-system:daemon-set-controller"
	controller, err := kubernetes.NewForConfig(as)
	if err != nil {
		s.t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName}, Spec: corev1.PodSpec{NodeName: nodeName, ServiceAccountName: "berth-agent",
		Containers: []corev1.Container{{Name: "agent", Image: "berth-agent"}}}}
	if _, err := controller.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.command("berth", "sim", "create", s.path("machine"), "--profile", "a100x8-40g")
	for _, dir := range []string{"kubelet/device-plugins", "kubelet/plugins", "kubelet/plugins_registry"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	s.write("agent.yaml", []byte(`apiVersion: berth.dev/v1alpha1
kind: AgentConfig
gpus:
- select: {index: [0, 1, 2, 3]}
  allocation: {api: dra}
  dynamicMIG: true
- {resourceName: example.com/gpu}
`))
	return s.run("berth-agent", filepath.Join(s.bin, "berth-agent"), "--config", s.path("agent.yaml"), "--sim", s.path("machine"), "--kubeconfig", s.account("berth-agent", podName),
		"--node-name", nodeName, "--instance", podName, "--kubelet-dir", s.path("kubelet"), "--cdi-dir", s.path("cdi"), "--hook-dir", s.path("hooks"),
		"--state-dir", s.path("state"), "--persistent-dir", s.path("persistent"), "--mps-root", s.path("mps"))
}

// limit makes a GPUQuota, and waits until the API server has taken all names of its ResourceQuota; and a pod that waits.
func (s *server) limit(operator *process.Process) {
	s.t.Helper()
	quota := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindGPUQuota, "metadata": map[string]any{"name": "team"},
		"spec": map[string]any{"namespaces": []any{"default"}, "limits": []any{map[string]any{"max": int64(2)}}}}}
	s.wait(time.Minute, "the GPUQuota", operator, func(ctx context.Context) error {
		_, err := s.objects.Resource(v1alpha1.GroupVersion().WithResource("gpuquotas")).Create(ctx, quota, metav1.CreateOptions{})
		return err
	})
	s.wait(time.Minute, "the ResourceQuota", operator, func(ctx context.Context) error {
		made, err := s.client.CoreV1().ResourceQuotas("default").Get(ctx, "gpu-quota-team", metav1.GetOptions{})
		if err == nil && len(made.Spec.Hard) < 300 {
			err = fmt.Errorf("it limits %d names", len(made.Spec.Hard))
		}
		return err
	})
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "main", Image: "x",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}}
	// In another namespace: there is no controller that would say how much of the quota is used.
	if _, err := s.client.CoreV1().ServiceAccounts(podNamespace).Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Pods(podNamespace).Create(s.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// reconciled returns an error unless the GPUStack says that all is well, and what is absent.
func (s *server) reconciled(ctx context.Context, isAbsent bool) error {
	stack, err := s.objects.Resource(v1alpha1.GPUStacks()).Get(ctx, v1alpha1.GPUStackName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(stack.Object, "status", "conditions")
	text := fmt.Sprint(conditions...)
	if !strings.Contains(text, "reason:"+v1alpha1.StackReconciled) || !strings.Contains(text, "1 of 1 nodes") || strings.Contains(text, absent+": GPUs that are allocated through DRA are for claims only (85 objects") != isAbsent {
		return fmt.Errorf("its conditions are %s", text)
	}
	return nil
}

// command runs a program of Berth, or Helm, as an administrator, and returns what it prints. berth doctor ends with 1 when it finds
// something.
func (s *server) command(name string, args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), filepath.Join(s.bin, name), args...)
	home := s.path("helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.path("admin.conf"), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil && (args[0] != "doctor" || cmd.ProcessState.ExitCode() != 1) {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// errors returns the lines of errors that the operator and the agent have logged.
func (s *server) errors() (lines []string) {
	for _, name := range []string{"berth-operator.log", "berth-agent.log"} {
		text, err := os.ReadFile(s.path(name))
		if err != nil {
			s.t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, "E") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
