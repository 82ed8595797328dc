package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authv1 "k8s.io/api/authorization/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	coregate "github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/gate"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// TestMain lets the test binary replace the driver's programs.
func TestMain(m *testing.M) {
	simtest.Main()
	os.Exit(m.Run())
}

// lab is a node with simulated GPUs on which commands run.
type lab struct {
	t       *testing.T
	dir     string
	machine *sim.Machine
}

func newLab(t *testing.T, profile string) *lab {
	t.Helper()
	// A short name: the address of a Unix socket has at most 108 bytes.
	dir, err := os.MkdirTemp("", "bc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	machine, err := sim.Create(filepath.Join(dir, "sim"), profile)
	if err != nil {
		t.Fatal(err)
	}
	return &lab{t: t, dir: dir, machine: machine}
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// configure writes the configuration. The strategy envvar needs neither CDI nor root.
func (l *lab) configure(text string) {
	l.t.Helper()
	text = "standalone: true\ndeviceListStrategy: [envvar]\n" + text
	if err := os.WriteFile(l.path("agent.yaml"), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// run runs a command of berth-agent and returns its output.
func (l *lab) run(ctx context.Context, args ...string) (out, errOut string, err error) {
	l.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newRoot(Deps{Out: &stdout, Err: &stderr}, l.open)
	for flag, name := range map[string]string{
		"--sim": "sim", "--kubelet-dir": "k", "--cdi-dir": "cdi", "--hook-dir": "hooks", "--state-dir": "state",
		"--persistent-dir": "persistent", "--mps-root": "mps",
	} {
		args = append(args, flag, l.path(name))
	}
	if _, err := os.Stat(l.path("agent.yaml")); err == nil {
		args = append(args, "--config", l.path("agent.yaml"))
	}
	cmd.SetArgs(append(args, "--node-name", "node-0", "--instance", "one"))
	err = cmd.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

// open opens the machine within this process; the end-to-end tests cover the agent's own way.
func (l *lab) open(simDir string, config *v1alpha1.AgentConfig) (hardware.Machine, error) {
	opened, err := hardware.Open(simDir, config)
	opened.Library, opened.SMI, opened.MPSControl = l.machine.NVML(), simtest.SMI(l.machine), simtest.MPSControl(l.machine)
	return opened, err
}

// start runs the agent until stop is called.
func (l *lab) start() (stop func()) {
	l.t.Helper()
	kubelet, err := fakekubelet.Start(l.path("k"), fakekubelet.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() {
		_, log, err := l.run(ctx)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log)
		}
		ended <- err
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("the agent ended with %v", err)
		}
		kubelet.Stop()
	}
}

func (l *lab) await(what string, is func() bool) {
	l.t.Helper()
	for range 2000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.t.Fatalf("no %s within 20 s", what)
}

// left lists the content of a folder; nothing when there is no folder.
func (l *lab) left(name string) []string {
	var names []string
	entries, _ := os.ReadDir(l.path(name))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestUninstallLeavesNothing checks that, after an agent that has set a time slice, uninstall leaves nothing in the
// folders of its state, and that a second uninstall is not an error. Files of other programs stay.
func TestUninstallLeavesNothing(t *testing.T) {
	l := newLab(t, "t4x4")
	l.configure("gpus: [{select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 2, timeSlice: long}}]\n")
	stop := l.start()
	l.await("time slice", func() bool {
		shown, err := l.machine.Show()
		if err != nil {
			t.Fatal(err)
		}
		return shown.GPUs[1].TimeSlice == "Long"
	})
	l.await("ready agent", func() bool {
		_, _, err := l.run(t.Context(), "probe", "ready")
		return err == nil
	})
	stop()
	for _, dir := range []string{"state", "persistent"} {
		if len(l.left(dir)) == 0 {
			t.Fatalf("the agent has left nothing in %s, so this test shows nothing", dir)
		}
	}
	for range 2 {
		if out, _, err := l.run(t.Context(), "uninstall"); err != nil || !strings.Contains(out, "removed ledger in "+l.path("state")) {
			t.Fatalf("uninstall: %v, and the output\n%s", err, out)
		}
	}
	for _, dir := range []string{"state", "persistent"} {
		if left := l.left(dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}

	if err := os.MkdirAll(l.path("state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.path("state/other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.run(t.Context(), "uninstall"); err != nil {
		t.Error(err)
	}
	if left := l.left("state"); len(left) != 1 {
		t.Errorf("left in state: %v, want the file of another program", left)
	}
}

// TestUninstallOnHost checks that what an agent of a pod made is removed through a mount of the node's root, with the folders, and that
// the probe of the pod sees it.
func TestUninstallOnHost(t *testing.T) {
	root := t.TempDir()
	files := []string{"var/lib/kubelet/plugins/gpu.berth.dev/other", "run/cdi/k8s.berth.dev-gpu.json", "opt/berth/bin/berth-cdi-hook-0123456789ab", "run/berth/ledger",
		"run/berth/units.json", "var/lib/berth/config.last-good", "run/berth/mps/state.json"}
	for _, file := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755), os.WriteFile(filepath.Join(root, file), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	validations := filepath.Join(root, gate.FilesDir)
	if err := errors.Join(os.MkdirAll(validations, 0o755), os.WriteFile(filepath.Join(validations, "toolkit-ready"), nil, 0o600),
		gate.BringFiles(validations, "/", coregate.Validated)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	command := func(args ...string) error {
		root := New(Deps{Out: io.Discard, Err: io.Discard})
		root.SetArgs(args)
		return root.ExecuteContext(ctx)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- command("uninstall", "--standalone", "--host-root", root, "--on-host", "--hold", "--node-name", "node-0")
	}()
	for deadline := time.Now().Add(20 * time.Second); command("probe", "clean") != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the node is not clean")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(validations, "toolkit-ready")); err != nil {
		t.Errorf("the file of another program: %v", err)
	}
	for _, gone := range []string{"run/nvidia/validations/cuda-ready", "run/cdi/k8s.berth.dev-gpu.json", "opt/berth", "run/berth", "var/lib/berth"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, files[0])); err != nil {
		t.Errorf("the file of another program: %v", err)
	}
}

// TestUninstallContinuesAfterAnError checks that a failed step is reported with what could not be removed, and that the steps after it
// are done.
func TestUninstallContinuesAfterAnError(t *testing.T) {
	l := newLab(t, "t4x4")
	l.configure("")
	if err := os.MkdirAll(l.path("state/ledger/file"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, _, err := l.run(t.Context(), "uninstall")
	if err == nil || !strings.Contains(err.Error(), "remove ledger in "+l.path("state")) {
		t.Errorf("uninstall: %v, want what could not be removed", err)
	}
	if !strings.Contains(out, "removed journals") {
		t.Errorf("the steps after the failed one were not done:\n%s", out)
	}
}

// TestProbe checks that the error of a probe is the agent's response.
func TestProbe(t *testing.T) {
	l := newLab(t, "t4x4")
	l.configure("")
	if _, _, err := l.run(t.Context(), "probe", "healthy"); err == nil || !strings.Contains(err.Error(), "probe agent") {
		t.Errorf("without an agent: %v", err)
	}
	if _, _, err := l.run(t.Context(), "probe", "well"); err == nil || !strings.Contains(err.Error(), "well") {
		t.Errorf("an unknown argument: %v", err)
	}
	stop := l.start()
	defer stop()
	for _, page := range []string{"healthy", "ready"} {
		l.await(page+" agent", func() bool {
			_, _, err := l.run(t.Context(), "probe", page)
			return err == nil
		})
	}
}

// TestInspect checks that each view prints its content, and that inspect writes nothing.
func TestInspect(t *testing.T) {
	l := newLab(t, "t4x4")
	l.configure("dcgmNames: true\n")
	tests := map[string]struct{ table, json string }{
		"gpus":    {"MODEL", `"kind": "Inventory"`},
		"devices": {"nvidia.com/gpu", `"kind": "Offers"`},
		"cdi":     {`"kind": "k8s.berth.dev/gpu"`, `"kind": "k8s.berth.dev/gpu"`},
		"labels":  {"nvidia.com/gpu.count=4\n", `"nvidia.com/gpu.count": "4"`},
		"metrics": {"DCGM_FI_DEV_", `"kind": "Samples"`},
	}
	for view, want := range tests {
		t.Run(view, func(t *testing.T) {
			for format, want := range map[string]string{"table": want.table, "json": want.json} {
				out, errOut, err := l.run(t.Context(), "inspect", view, "-o", format)
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("inspect %s -o %s: %v, want %q in\n%s", view, format, err, want, out)
				}
				if hooks := strings.Contains(errOut, "without its hooks"); hooks != (view == "cdi") {
					t.Errorf("inspect %s prints to standard error: %s", view, errOut)
				}
			}
		})
	}
	for _, dir := range []string{"k", "cdi", "hooks", "state", "persistent", "mps"} {
		if _, err := os.Stat(l.path(dir)); err == nil {
			t.Errorf("inspect has created %s", dir)
		}
	}
}

// TestRefusals checks that errors of the command line name the accepted values.
func TestRefusals(t *testing.T) {
	l := newLab(t, "t4x4")
	tests := map[string]struct {
		args []string
		want string
	}{
		"a view that does not exist":   {[]string{"inspect", "cards"}, "want one of gpus, devices, cdi, labels, metrics"},
		"a format that does not exist": {[]string{"inspect", "gpus", "-o", "xml"}, "use -o table or -o json"},
		"a file that does not exist":   {[]string{"inspect", "gpus", "--config", "/nowhere.yaml"}, "/nowhere.yaml"},
		"an argument of the agent":     {[]string{"gpus"}, "gpus"},
		"no API server":                {[]string{"uninstall"}, "--standalone removes only"},
		"no kubeconfig":                {[]string{"uninstall", "--kubeconfig", "/nowhere"}, "/nowhere"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := l.run(t.Context(), tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
			}
		})
	}
}

// TestUninstallFromTheAPI checks that the objects, the label, the condition and the taint of the agent are removed, and
// those of others are not.
func TestUninstallFromTheAPI(t *testing.T) {
	l := newLab(t, "t4x4")
	api := fakeapi.New(t)
	config := &v1alpha1.AgentConfig{
		NodeName: fakeapi.NodeName, KubeletDir: l.path("k"), CDIDir: l.path("cdi"), HookDir: l.path("hooks"), StateDir: l.path("state"),
		PersistentDir: l.path("persistent"), DRADriverName: "gpu.example.com", Labels: v1alpha1.Labels{Output: v1alpha1.LabelsNode, Dir: l.path("features")},
	}
	before := api.Node()
	socket := l.path("k/plugins/gpu.example.com/dra.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	published := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "GPUNode", "metadata": map[string]any{"name": fakeapi.NodeName},
	}}
	if _, err := api.Resource(v1alpha1.GPUNodes()).Create(t.Context(), published, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourceapi.ResourceSliceSpec{Driver: config.DRADriverName, NodeName: new(fakeapi.NodeName)}}
	kube := fake.NewClientset(slice)
	allowed := true
	kube.PrependReactor("create", "selfsubjectaccessreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authv1.SelfSubjectAccessReview{Status: authv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil
	})
	for range 2 {
		var out bytes.Buffer
		if err := uninstall(t.Context(), config, config.KubeletDir, api, kube, &out); err != nil || !strings.Contains(out.String(), "removed GPUNode "+fakeapi.NodeName) {
			t.Fatalf("uninstall: %v, and the output\n%s", err, out.String())
		}
		if _, err := api.Resource(v1alpha1.GPUNodes()).Get(t.Context(), fakeapi.NodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the GPUNode is left: %v", err)
		}
		if list, err := kube.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Errorf("%d ResourceSlices are left (%v)", len(list.Items), err)
		}
		if _, err := os.Stat(socket); err == nil {
			t.Error("the driver's socket is left")
		}
	}
	after := api.Node()
	if diff := cmp.Diff(before.GetLabels(), after.GetLabels()); diff != "" {
		t.Errorf("labels of others (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" {
		t.Errorf("taints of others (-before +after):\n%s", diff)
	}

	api.Intercept(func(fakeapi.Request) error { return errors.New("the API server does not respond") })
	var out bytes.Buffer
	err = uninstall(t.Context(), config, config.KubeletDir, api, kube, &out)
	if err == nil || !strings.Contains(err.Error(), "remove GPUNode") || !strings.Contains(out.String(), "removed ledger") {
		t.Errorf("without an API server: %v, and the output\n%s", err, out.String())
	}
	// The agent's own account may not delete the GPUNode, and does not try.
	allowed = false
	api.Intercept(func(r fakeapi.Request) error {
		if r.Verb == "delete" && r.Resource == "gpunodes" {
			t.Error("the GPUNode was to be deleted")
		}
		return nil
	})
	out.Reset()
	if err := uninstall(t.Context(), config, config.KubeletDir, api, kube, &out); err != nil || !strings.Contains(out.String(), "kubectl delete gpunode "+fakeapi.NodeName) {
		t.Errorf("without the right to delete the GPUNode: %v, and the output\n%s", err, out.String())
	}
}

// TestMPS checks that the supervisor serves its socket until it is stopped, without an error.
func TestMPS(t *testing.T) {
	l := newLab(t, "t4x4")
	l.configure("")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, _, err := l.run(ctx, "mps")
		ended <- err
	}()
	client := mps.Client{Socket: mps.SocketPath(l.path("mps"))}
	l.await("supervisor", func() bool {
		_, err := client.Status(t.Context())
		return err == nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("mps ended with %v", err)
	}
}
