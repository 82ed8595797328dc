package operator

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
)

// watches is how many watches the concerns have.
const watches = 10

const (
	crdPath   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.berth.dev"
	classPath = "/apis/resource.k8s.io/v1/deviceclasses/gpu.berth.dev"
	stackPath = "/apis/berth.dev/v1alpha1/gpustacks/default"
	leasePath = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases/berth-operator"
)

func TestMain(m *testing.M) {
	quiet := logr.FromSlogHandler(slog.DiscardHandler)
	log.SetLogger(quiet)
	klog.SetLogger(quiet)
	os.Exit(m.Run())
}

// logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// started is an operator that runs.
type started struct {
	cancel context.CancelFunc
	done   chan error
	probes string
	log    *logBuffer
}

func start(t *testing.T, api *fakeAPI) *started {
	t.Helper()
	return startAs(t, api, rand.Text())
}

func startAs(t *testing.T, api *fakeAPI, identity string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &started{cancel: cancel, done: make(chan error, 1), probes: freeAddress(t), log: &logBuffer{}}
	go func() {
		s.done <- Run(ctx, Deps{API: api.config(), Namespace: "berth-system", Identity: identity, LeaderElect: true, ProbeListen: s.probes,
			Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(s.log, nil))})
	}()
	t.Cleanup(func() {
		cancel()
		err := <-s.done
		if t.Failed() {
			t.Logf("the operator ended with %v; its log:\n%s", err, s.log)
		}
	})
	return s
}

// end ends the operator in order and returns its error.
func (s *started) end() error {
	s.cancel()
	err := <-s.done
	s.done <- nil
	return err
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func (s *started) probe(t *testing.T, path string) string {
	t.Helper()
	response, err := http.Get("http://" + s.probes + path) //nolint:noctx // The test ends with the process.
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", string(text))
}

// TestRun: an operator creates everything, is ready, restores through the watch what others change, and frees its Lease at the end.
func TestRun(t *testing.T) {
	api := newFakeAPI(t)
	s := start(t, api)
	api.wait("all objects exist", func() bool { return api.number("/apis/resource.k8s.io/") > 50 && api.objects[crdPath] != nil })
	api.wait("the watches", func() bool { return len(api.watches) == watches })
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := s.probe(t, path); !strings.HasPrefix(got, "200") {
			t.Errorf("%s: %s", path, got)
		}
	}
	spec := func(path string) string { return fmt.Sprint(api.objects[path].Object["spec"]) }
	for _, path := range []string{crdPath, classPath} {
		api.mu.Lock()
		want := spec(path)
		api.mu.Unlock()
		api.edit(path, func(o *unstructured.Unstructured) *unstructured.Unstructured {
			o.Object["spec"] = map[string]any{}
			return o
		})
		api.wait("the edit is undone", func() bool { return spec(path) == want })
		api.edit(path, func(o *unstructured.Unstructured) *unstructured.Unstructured {
			o.SetLabels(nil)
			return o
		})
		api.wait("the labels are back", func() bool { return api.objects[path].GetLabels()["app.kubernetes.io/part-of"] == "berth" })
		api.edit(path, func(*unstructured.Unstructured) *unstructured.Unstructured { return nil })
		api.wait("the object is back", func() bool { return api.objects[path] != nil && spec(path) == want })
	}
	// The ConfigMap of the release becomes the GPUStack.
	api.mu.Lock()
	api.put("/api/v1/namespaces/berth-system/configmaps/berth-stack", stackConfig())
	api.mu.Unlock()
	api.wait("the GPUStack with its status", func() bool {
		return api.objects[stackPath] != nil && strings.Contains(fmt.Sprint(api.objects[stackPath].Object["status"]), "Reconciled")
	})
	// A node that waits for its validation gets an operation, a ResourceClaim and a pod; when the agent has accepted it, all of them go.
	api.mu.Lock()
	api.put("/apis/berth.dev/v1alpha1/gpunodes/n", heldNode())
	api.mu.Unlock()
	const pods, claims = "/api/v1/namespaces/berth-system/pods/", "/apis/resource.k8s.io/v1/namespaces/berth-system/resourceclaims/"
	const operations = "/apis/berth.dev/v1alpha1/nodeoperations/"
	api.wait("the validation pod", func() bool {
		op := api.objects[operations+"validate-n"]
		return api.number(pods) == 1 && api.number(claims) == 1 && op != nil && strings.Contains(fmt.Sprint(op.Object["status"]), "PodCreated")
	})
	api.edit("/apis/berth.dev/v1alpha1/gpunodes/n", func(o *unstructured.Unstructured) *unstructured.Unstructured {
		gate := o.Object["status"].(map[string]any)["gate"].(map[string]any)
		gate["state"], gate["by"] = "Validated", "pod"
		return o
	})
	api.wait("nothing of the validation is left", func() bool { return api.number(pods)+api.number(claims)+api.number(operations) == 0 })
	// An agent that is in the way of a newer one ends.
	old, now := agentPods()
	api.mu.Lock()
	api.put(pods+old.GetName(), old)
	api.put(pods+now.GetName(), now)
	api.mu.Unlock()
	api.wait("the old agent has ended", func() bool { return api.number(pods) == 1 && api.objects[pods+now.GetName()] != nil })
	api.wait("the Events", func() bool { return api.calls["create events"] >= 5 })
	if err := s.end(); err != nil {
		t.Errorf("it ended with %v, want no error", err)
	}
	if holder, _, _ := unstructured.NestedString(api.object(leasePath).Object, "spec", "holderIdentity"); holder != "" {
		t.Errorf("the Lease is held by %q after the end", holder)
	}
	checkRights(t, api.requested())
}

func heldNode() *unstructured.Unstructured {
	device := map[string]any{"health": map[string]any{"state": "Healthy"}, "offered": map[string]any{"resource": "nvidia.com/gpu", "api": "dra"}}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "berth.dev/v1alpha1", "kind": "GPUNode", "metadata": map[string]any{"name": "n"},
		"status": map[string]any{"devices": []any{device}, "gate": map[string]any{"state": "Held", "mode": "enforce", "key": "key-1"}}}}
}

// agentPods returns an agent, and a newer one that finds no place beside it.
func agentPods() (old, now *unstructured.Unstructured) {
	pod := func(name, revision, created string, spec, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "berth-system",
			"uid": name, "creationTimestamp": created, "labels": map[string]any{"app.kubernetes.io/name": "berth-agent", "controller-revision-hash": revision},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "berth-agent", "uid": "set", "controller": true}}},
			"spec": spec, "status": status}}
	}
	field := map[string]any{"key": "metadata.name", "operator": "In", "values": []any{"n"}}
	terms := []any{map[string]any{"matchFields": []any{field}}}
	affinity := map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": terms}}}
	full := map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Too many pods."}
	return pod("berth-agent-a", "1", "2026-01-01T00:00:00Z", map[string]any{"nodeName": "n"}, map[string]any{"phase": "Running"}),
		pod("berth-agent-b", "2", "2026-01-01T00:01:00Z", map[string]any{"affinity": affinity}, map[string]any{"phase": "Pending", "conditions": []any{full}})
}

func stackConfig() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "berth-stack", "namespace": "berth-system"},
		"data": map[string]any{"stack.yaml": "version: 1.0.0\nnamespace: berth-system\ncomponents:\n- {name: agent, kind: DaemonSet, object: berth-agent, image: berth-agent}\n"}}}
}

// checkRights compares the requests with the table of docs/architecture.md.
func checkRights(t *testing.T, calls map[string]int) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z.0-9]*)/([a-z/]+)` \\| ([^|]*) \\| `([a-z, ]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		for verb := range strings.SplitSeq(row[4], ", ") {
			granted[verb+" "+strings.TrimSpace(map[bool]string{true: "core "}[row[1] == "core"]+row[2])] = true
		}
	}
	if len(granted) < 10 {
		t.Fatalf("docs/architecture.md grants only %v", granted)
	}
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		words := strings.Fields(call)
		if words[1] == "core" {
			words[1] += " " + words[2]
		}
		if !granted[words[0]+" "+words[1]] {
			t.Errorf("the operator requested %q, which docs/architecture.md does not grant", call)
		}
	}
}

// TestWaitsForTheLease: a second replica is ready and writes nothing until the first one has ended.
func TestWaitsForTheLease(t *testing.T) {
	api := newFakeAPI(t)
	first := start(t, api)
	api.wait("the first one acts", func() bool { return api.number("/apis/resource.k8s.io/") > 50 })
	asked := func() int { return api.calls["get leases berth-operator"] }
	api.mu.Lock()
	before := asked()
	api.mu.Unlock()
	second := start(t, api)
	api.wait("the second one asks for the Lease", func() bool { return asked() > before+1 })
	if got := second.probe(t, "/readyz"); !strings.HasPrefix(got, "200") {
		t.Errorf("/readyz of the one that waits: %s", got)
	}
	if err := first.end(); err != nil {
		t.Error(err)
	}
	api.edit(classPath, func(*unstructured.Unstructured) *unstructured.Unstructured { return nil })
	api.wait("the second one acts", func() bool { return api.objects[classPath] != nil })
}

// TestTakesItsOwnLeaseOver: an operator that was killed and started again under its name does not wait until its Lease expires.
func TestTakesItsOwnLeaseOver(t *testing.T) {
	api := newFakeAPI(t)
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	api.mu.Lock()
	api.put(leasePath, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "berth-operator", "namespace": "berth-system"},
		"spec":     map[string]any{"holderIdentity": "pod-a", "leaseDurationSeconds": int64(3600), "acquireTime": now, "renewTime": now, "leaseTransitions": int64(0)}}})
	api.mu.Unlock()
	other := startAs(t, api, "pod-b")
	api.wait("another one asks for the Lease", func() bool { return api.calls["get leases berth-operator"] > 0 })
	startAs(t, api, "pod-a")
	api.wait("the operator acts", func() bool { return api.number("/apis/resource.k8s.io/") > 50 })
	if holder, _, _ := unstructured.NestedString(api.object(leasePath).Object, "spec", "holderIdentity"); holder != "pod-a" {
		t.Errorf("the Lease is held by %q", holder)
	}
	if err := other.end(); err != nil {
		t.Error(err)
	}
}

// TestLockLeavesTheConnection: the short timeout of requests about the Lease would end each watch, too.
func TestLockLeavesTheConnection(t *testing.T) {
	deps := Deps{API: &rest.Config{Host: "https://api.example", UserAgent: Name}}
	_, end, err := newLock(deps, runtime.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	end()
	if deps.API.Timeout != 0 || deps.API.UserAgent != Name {
		t.Errorf("timeout %v, user agent %q: that of the Lease's client", deps.API.Timeout, deps.API.UserAgent)
	}
}

// newerCRD is the definition of a newer Berth.
func newerCRD(o *unstructured.Unstructured) *unstructured.Unstructured {
	o.SetAnnotations(map[string]string{"berth.dev/schema-version": "1000"})
	return o
}

// TestNewerDefinition: an operator that is older than the cluster's definition ends with an error, and writes nothing.
func TestNewerDefinition(t *testing.T) {
	t.Run("at the start", func(t *testing.T) {
		api := newFakeAPI(t)
		api.mu.Lock()
		api.put(crdPath, newerCRD(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1",
			"kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gpunodes.berth.dev"}}}))
		api.mu.Unlock()
		s := start(t, api)
		checkNewer(t, s)
		for call := range api.requested() {
			if !strings.HasPrefix(call, "get customresourcedefinitions") {
				t.Errorf("it requested %s", call)
			}
		}
	})
	t.Run("later", func(t *testing.T) {
		api := newFakeAPI(t)
		s := start(t, api)
		api.wait("the watches", func() bool { return len(api.watches) == watches && api.objects[crdPath] != nil })
		api.edit(crdPath, newerCRD)
		checkNewer(t, s)
		if got := api.object(crdPath).GetAnnotations()["berth.dev/schema-version"]; got != "1000" {
			t.Errorf("version %s, want the newer definition", got)
		}
	})
}

func checkNewer(t *testing.T, s *started) {
	t.Helper()
	err := <-s.done
	s.done <- nil
	if refused, ok := errors.AsType[*definitions.NewerError](err); !ok || refused.Cluster != 1000 {
		t.Errorf("it ended with %v, want a NewerError", err)
	}
}

// TestConcerns: names are unique, and each concern says what it watches.
func TestConcerns(t *testing.T) {
	names := map[string]bool{}
	for _, c := range concerns() {
		if names[c.name] || c.name == "" || len(c.cached("berth-system")) == 0 {
			t.Errorf("concern %q: want a name of its own and what it watches", c.name)
		}
		names[c.name] = true
	}
	// A kind with two entries has the transform and selectors of one of them, by chance.
	kinds := map[string]bool{}
	for object := range cached("berth-system") {
		kind := fmt.Sprintf("%T %v", object, object.GetObjectKind().GroupVersionKind())
		if kinds[kind] {
			t.Errorf("several concerns name %s", kind)
		}
		kinds[kind] = true
	}
}
