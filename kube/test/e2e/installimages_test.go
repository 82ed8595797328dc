package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// testRegistry is a registry that asks for a password, at a loopback address of the node. The images are pushed to it.
type testRegistry struct {
	cluster *sandbox.Cluster
	node    sandbox.Node
	// prefix is the part of a reference before the image's name.
	prefix string
	// config is a docker configuration with the password.
	config string
}

const registryAddress = "127.0.0.1:5000"

// TestInstallImages pushes the images to a registry that asks for a password. The kubelet pulls them with a pull secret, and
// not without one; each image runs as the user, and says the version, that it is documented to.
func TestInstallImages(t *testing.T) {
	onOwnCluster(t, 1)
	// Not the shared sandbox: after a pull with a secret the kubelet lets only pods with the secret use the image, under any name.
	c := ownCluster(t, sandbox.Options{Nodes: 1})
	r := &testRegistry{cluster: c, node: c.Nodes()[0], prefix: registryAddress + "/team",
		config: `{"auths":{"` + registryAddress + `":{"username":"puller","password":"secret"}}}`}
	r.start(t)
	references := r.push(t)
	r.createSecret(t)
	for _, program := range []string{"berth", "berth-agent", "berth-operator", "berth-scheduler"} {
		t.Run(program, func(t *testing.T) { r.testPull(t, program, references[program]) })
	}
	t.Run("NoSecret", func(t *testing.T) { r.testNoSecret(t, references["berth"]) })
	t.Run("NonRoot", func(t *testing.T) { r.testNonRoot(t, references) })
}

// start starts the registry in the node, and ends it with the test.
func (r *testRegistry) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var out bytes.Buffer
	go func() {
		defer close(ended)
		_ = r.node.RunInside(ctx, sandbox.Streams{Out: &out, Err: &out}, r.program(), "registry", "--address", registryAddress, "--user", "puller", "--password", "secret")
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if t.Failed() {
			t.Logf("the registry said: %s", out.String())
		}
	})
	waitUntil(t, 10*time.Second, "the registry answers", func(ctx context.Context) error {
		conn, err := r.cluster.DialInside(ctx, "tcp", registryAddress)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (r *testRegistry) program() string { return filepath.Join(r.cluster.State().Bin, "berth-images") }

// push pushes the images as `make push` does, and returns the reference of each with its digest.
func (r *testRegistry) push(t *testing.T) map[string]string {
	t.Helper()
	if out, err := r.pushWith(t, t.TempDir()); err == nil || !strings.Contains(out, "401") || !strings.Contains(out, "docker login "+registryAddress) {
		t.Errorf("push without the password: %v, %s", err, out)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(r.config), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, err := r.pushWith(t, dir)
	if err != nil {
		t.Fatalf("push: %v, %s", err, out)
	}
	t.Logf("pushed in %v", time.Since(began).Round(time.Millisecond))
	references := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\S+/([a-z-]+):\S+@sha256:[0-9a-f]{64}$`).FindAllStringSubmatch(out, -1) {
		references[m[1]] = m[0]
	}
	if len(references) != 4 {
		t.Fatalf("push printed %s, want the references of four images", out)
	}
	return references
}

// pushWith pushes with the credentials in a directory of docker's configuration, and returns what is printed.
func (r *testRegistry) pushWith(t *testing.T, config string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := r.node.RunInside(timeout(t, time.Minute), sandbox.Streams{Out: &out, Err: &out}, "/usr/bin/env", "DOCKER_CONFIG="+config,
		r.program(), "push", "--images", filepath.Join(r.cluster.State().Bin, "images"), r.prefix)
	return out.String(), err
}

const pullSecret = "registry"

func (r *testRegistry) createSecret(t *testing.T) {
	t.Helper()
	secrets := r.cluster.Client().CoreV1().Secrets(metav1.NamespaceDefault)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: pullSecret}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(r.config)}}
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := secrets.Delete(context.Background(), pullSecret, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// podOf is a pod that runs a program with --version.
func podOf(name, program, reference string, secrets ...corev1.LocalObjectReference) *corev1.Pod {
	pod := workloadPod(name)
	pod.Spec.ImagePullSecrets = secrets
	pod.Spec.Containers[0] = corev1.Container{Name: "main", Image: reference, ImagePullPolicy: corev1.PullAlways, Command: []string{"/" + program},
		Args: []string{"--version"}}
	return pod
}

// run runs a pod to its end and returns what it prints.
func (r *testRegistry) run(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	ctx := timeout(t, time.Minute)
	if _, err := r.cluster.CreatePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	defer r.cluster.DeletePodAndWait(context.WithoutCancel(ctx), pod.Namespace, pod.Name, 0)
	if _, err := r.cluster.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	out, err := r.cluster.PodLogs(ctx, pod.Namespace, pod.Name, "main")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// testPull checks that the program in the image that was pulled says the version of the label of the image, and that its bill of
// materials names the modules that the go command finds in it.
func (r *testRegistry) testPull(t *testing.T, program, reference string) {
	out := r.run(t, podOf("pulled-"+program, program, reference, corev1.LocalObjectReference{Name: pullSecret}))
	bin := r.cluster.State().Bin
	want, err := exec.Command(filepath.Join(bin, program), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if out != string(want) {
		t.Errorf("the pod says %q, the program %q", out, want)
	}
	labels := imageLabels(t, filepath.Join(bin, "images", program))
	if text := fmt.Sprintf("%s %s (commit %s,", program, labels["org.opencontainers.image.version"], labels["org.opencontainers.image.revision"]); !strings.HasPrefix(out, text) {
		t.Errorf("the pod says %q, the labels of its image %q", out, text)
	}
	checkModules(t, filepath.Join(bin, program), filepath.Join(bin, "images", program+".cdx.json"))
}

// checkModules compares a bill of materials with the modules that the go command finds in a program.
func checkModules(t *testing.T, program, bill string) {
	t.Helper()
	text, err := os.ReadFile(bill)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Components []struct{ Purl string }
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, c := range got.Components {
		named[c.Purl] = true
	}
	out, err := exec.Command("go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	// Of a replaced module the line below has what was compiled, unless that is a directory of Berth.
	modules := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)[^\n]*(?:\n\t=>\t([^.\s]\S*)\t(\S+))?`).FindAllStringSubmatch(string(out), -1)
	for _, m := range modules {
		path, version := cmp.Or(m[3], m[1]), cmp.Or(m[4], m[2])
		if !named["pkg:golang/"+path+"@"+version] {
			t.Errorf("the bill of materials does not name %s %s", path, version)
		}
	}
	if len(modules) < 20 {
		t.Errorf("the go command finds %d modules in %s", len(modules), program)
	}
}

// testNoSecret checks that the registry's refusal is in the state of a pod without the pull secret.
func (r *testRegistry) testNoSecret(t *testing.T, reference string) {
	pod := podOf("no-secret", "berth", reference)
	if _, err := r.cluster.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	defer r.cluster.DeletePodAndWait(context.Background(), pod.Namespace, pod.Name, 0)
	waitUntil(t, 30*time.Second, "the pod waits for its image", func(ctx context.Context) error {
		state, err := r.cluster.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range state.Status.ContainerStatuses {
			if s.State.Waiting != nil && strings.Contains(s.State.Waiting.Message, "authorization failed") {
				return nil
			}
		}
		return fmt.Errorf("state %+v", state.Status.ContainerStatuses)
	})
}

// testNonRoot checks with runAsNonRoot, which the kubelet compares with the user of the image, that only the agent's is root.
func (r *testRegistry) testNonRoot(t *testing.T, references map[string]string) {
	yes := true
	pod := func(program string) *corev1.Pod {
		p := podOf("non-root-"+program, program, references[program], corev1.LocalObjectReference{Name: pullSecret})
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes}
		return p
	}
	r.run(t, pod("berth"))
	r.run(t, pod("berth-operator"))
	r.run(t, pod("berth-scheduler"))
	root := pod("berth-agent")
	if _, err := r.cluster.CreatePod(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	defer r.cluster.DeletePodAndWait(context.Background(), root.Namespace, root.Name, 0)
	waitUntil(t, 30*time.Second, "the kubelet refuses to run the agent as another user than root", func(ctx context.Context) error {
		state, err := r.cluster.Client().CoreV1().Pods(root.Namespace).Get(ctx, root.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range state.Status.ContainerStatuses {
			if s.State.Waiting != nil && strings.Contains(s.State.Waiting.Message, "image will run as root") {
				return nil
			}
		}
		return fmt.Errorf("state %+v", state.Status.ContainerStatuses)
	})
}
