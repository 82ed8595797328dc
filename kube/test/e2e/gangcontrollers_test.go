package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// gangController is a controller that makes pods of its own kind of objects.
type gangController struct {
	program string
	// module has its definition and its webhooks in these files.
	module, definition, webhooks string
	// config is the API version of its configuration.
	config string
	// owned is the label of pods that its webhooks are for.
	owned string
	port  int
	// example is an object of docs/examples.
	example  string
	resource schema.GroupVersionResource
}

func jobSetController() gangController {
	return gangController{program: "jobset-controller", module: "sigs.k8s.io/jobset", definition: "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
		webhooks: "config/components/webhook/manifests.yaml", config: "config.jobset.x-k8s.io/v1alpha1", owned: "jobset.sigs.k8s.io/jobset-name", port: 19440,
		example: "gang-jobset.yaml", resource: schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}}
}

func leaderWorkerSetController() gangController {
	return gangController{program: "lws-controller", module: "sigs.k8s.io/lws", definition: "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
		webhooks: "config/webhook/manifests.yaml", config: "config.lws.x-k8s.io/v1alpha1", owned: "leaderworkerset.sigs.k8s.io/name", port: 19450,
		example: "gang-leaderworkerset.yaml", resource: schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}}
}

// TestGangControllers runs gangs of JobSets and LeaderWorkerSets with their real controllers and webhooks, the scheduler as it ships, and
// the labels of docs/examples. Some are suspended, gated, or above a quota at first.
func TestGangControllers(t *testing.T) {
	onOwnCluster(t, 2)
	controllers := []gangController{jobSetController(), leaderWorkerSetController()}
	var definitions []string
	for i, c := range controllers {
		controllers[i].module = moduleDir(t, c.module)
		definitions = append(definitions, filepath.Join(controllers[i].module, c.definition))
	}
	s := gangCluster(t, 1, definitions...)
	l := &gangLab{schedulerLoad: &schedulerLoad{schedulerTest: s}}
	for _, c := range controllers {
		l.startController(t, c)
	}
	// First, because the scheduler says only after 30 s that the gang waits for members.
	quota := l.createAboveQuota(t)
	for _, c := range controllers {
		l.waitServed(t, c)
	}
	t.Run("JobSet", l.testJobSet)
	t.Run("JobSetSuspended", l.testJobSetSuspended)
	t.Run("LeaderWorkerSet", l.testLeaderWorkerSet)
	t.Run("LeaderReady", l.testLeaderReady)
	t.Run("LeaderWorkerSetGroups", l.testLeaderWorkerSetGroups)
	t.Run("LeaderWorkerSetReplicas", l.testLeaderWorkerSetReplicas)
	t.Run("Gated", l.testGangGated)
	t.Run("MemberSucceeds", l.testMemberSucceeds)
	t.Run("ResourceQuota", func(t *testing.T) { l.testAboveQuota(t, quota) })
	t.Run("Rights", func(t *testing.T) { s.testRights(t) })
}

// moduleDir returns the folder of a module that the sandbox's controllers are built from.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	var problem bytes.Buffer
	list := exec.CommandContext(t.Context(), "go", "list", "-C", "../../controllers", "-m", "-f", "{{.Dir}}", module)
	list.Stderr = &problem
	out, err := list.Output()
	if err != nil {
		t.Fatalf("find the module %s: %v\n%s", module, err, problem.String())
	}
	return string(bytes.TrimSpace(out))
}

// startController starts a controller, and applies its webhooks. They are served at the loopback address of the sandbox's network with the
// certificate of the API server: the controller would make one for a Service, and the sandbox has no Services.
func (l *gangLab) startController(t *testing.T, c gangController) {
	t.Helper()
	certificates := t.TempDir()
	for from, to := range map[string]string{"apiserver.crt": "tls.crt", "apiserver.key": "tls.key"} {
		data, err := os.ReadFile(filepath.Join(l.Dir(), "pki", from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(certificates, to), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(certificates, "config.yaml")
	text := fmt.Appendf(nil, "apiVersion: %s\nkind: Configuration\nwebhook: {host: 127.0.0.1, port: %d, certDir: %s}\ninternalCertManagement: {enable: false}\n",
		c.config, c.port, certificates)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.StartController(c.program, "--config="+config, "--leader-elect=false", "--metrics-bind-address=0",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", c.port+1)); err != nil {
		t.Fatal(err)
	}
	hooks, err := objectsOf(filepath.Join(c.module, c.webhooks))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range hooks {
		l.localWebhooks(t, c, o)
	}
	if err := l.ApplyObjects(t.Context(), hooks...); err != nil {
		t.Fatal(err)
	}
}

// localWebhooks changes a configuration of webhooks: they are at the loopback address, and those for pods are called for those of the
// controller alone, as the patches of its kustomization say.
func (l *gangLab) localWebhooks(t *testing.T, c gangController, o *unstructured.Unstructured) {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(l.Dir(), "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	o.SetName(c.program + "-" + o.GetName())
	for _, hook := range o.Object["webhooks"].([]any) {
		hook := hook.(map[string]any)
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil || path == "" {
			t.Fatalf("webhook %v has no path: %v", hook["name"], err)
		}
		hook["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://127.0.0.1:%d%s", c.port, path), "caBundle": base64.StdEncoding.EncodeToString(authority)}
		rule := hook["rules"].([]any)[0].(map[string]any)
		if rule["resources"].([]any)[0] == "pods" {
			hook["objectSelector"] = map[string]any{"matchExpressions": []any{map[string]any{"key": c.owned, "operator": "Exists"}}}
		}
	}
}

// waitServed waits until the API server accepts an object of the controller, which it asks its webhooks about.
func (l *gangLab) waitServed(t *testing.T, c gangController) {
	t.Helper()
	began := time.Now()
	object := l.exampleOf(t, c, "served", nil)
	waitUntil(t, time.Minute, "the webhooks of "+c.program+" answer", func(ctx context.Context) error {
		_, err := l.objects(t, c).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	t.Logf("the webhooks of %s answered after %v", c.program, time.Since(began).Round(time.Millisecond))
}

// objects is a client for the objects of a controller.
func (l *gangLab) objects(t *testing.T, c gangController) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(c.resource).Namespace(metav1.NamespaceDefault)
}
