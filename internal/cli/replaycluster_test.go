package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/whatif"
	"github.com/berth-gpu/berth/internal/golden"
)

// dump is a small cluster: MIG, shared GPUs, a node whose agent is down, a GPUNode with a broken topology, one of a newer version.
const dump = "../cluster/whatif/testdata/small.json"

// replayed runs berth replay with these arguments.
func replayed(in io.Reader, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newReplayCommand(Deps{Out: &out, Err: io.Discard})
	cmd.SetArgs(args)
	cmd.SetIn(in)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return out.String(), err
}

// TestReplayClusterGolden compares what is printed about a small cluster.
func TestReplayClusterGolden(t *testing.T) {
	tests := map[string]string{
		"now.txt":      "",
		"policies.txt": "--policy all --scale 2 --seed 7",
		"nodes.txt":    "--add-nodes 2=gpu-b --remove-node share-a --policy spread",
		"layout.txt":   "--mig-layout nvidia.com/mig-2g.20gb=3@mig-a --mig-layout 1g.10gb=7@gpu-b",
		"layout.json":  "--mig-layout all-balanced --policy pack,latency -o json",
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := replayed(nil, append([]string{"--from", dump}, strings.Fields(args)...)...)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", "replaycluster", name), got)
		})
	}
}

func TestReplayClusterRefused(t *testing.T) {
	tests := map[string]struct{ args, want string }{
		"a trace's flag":   {"--cluster --inflate 1.3", "--inflate: leave it out: it is for the lists of a trace"},
		"a cluster's flag": {"--nodes n --pods p --scale 2", "--scale: add --cluster or --from FILE"},
		"unknown policy":   {"--from " + dump + " --policy worst", `--policy: unknown policy "worst"; want Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, pack, spread, latency, or all`},
		"scale":            {"--from " + dump + " --scale 0.5", "--scale 0.5: want 1 to 10"},
		"no number":        {"--from " + dump + " --scale NaN", "--scale NaN: want 1 to 10"},
		"nodes":            {"--from " + dump + " --add-nodes gpu-a", `--add-nodes: "gpu-a"; want COUNT=NODE with 1 to 10000 nodes, as in 4=gpu-node-1`},
		"layout":           {"--from " + dump + " --mig-layout 1g.10gb=x", `--mig-layout: "1g.10gb=x" in "1g.10gb=x"; want each resource or profile once with 0 to 64 devices, as in 1g.10gb=7`},
		"a server's flags": {"--cluster --from " + dump + " --context prod --token x", "--context prod --token: leave out what names an API server: --from reads files"},
		"format":           {"--from " + dump + " -o xml", "-o xml: want table, json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE"},
		"no file":          {"--from nothere.json", "read a cluster: open nothere.json: no such file or directory"},
		"no cluster":       {"--from -", "read standard input: an empty file; want JSON as from kubectl get nodes,gpunodes,pods -A -o json"},
		"no such node":     {"--from " + dump + " --remove-node gpu-aa", `replay: remove a node: there is no Node "gpu-aa" among 9; did you mean gpu-a?`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := replayed(strings.NewReader(""), strings.Fields(test.args)...)
			if err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
				t.Errorf("got  %v, printed %q\nwant %s", err, out, test.want)
			}
		})
	}
}

// replayClient is an API server with the objects of the dump.
func replayClient(t *testing.T, objects *whatif.Objects) *fake.FakeDynamicClient {
	t.Helper()
	var list []runtime.Object
	add := func(kind, version string, object any) {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		made := &unstructured.Unstructured{Object: fields}
		made.SetKind(kind)
		made.SetAPIVersion(version)
		list = append(list, made)
	}
	for i := range objects.Nodes {
		add("Node", "v1", &objects.Nodes[i])
	}
	for i := range objects.Pods {
		add("Pod", "v1", &objects.Pods[i])
	}
	for i := range objects.GPUNodes {
		add(v1alpha1.KindGPUNode, v1alpha1.APIVersion, &objects.GPUNodes[i])
	}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.GPUNodes(): "GPUNodeList", nodesResource(): "NodeList", podResource(): "PodList",
	}, list...)
}

// TestReplayClusterRights: a live cluster is read as its dump is; what this user may not read, or the cluster does not have, is one note.
func TestReplayClusterRights(t *testing.T) {
	file, err := os.Open(dump)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all whatif.Objects
	if err := all.Read(dump, file); err != nil {
		t.Fatal(err)
	}
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
	}
	tests := map[string]struct {
		resource string
		err      error
		note     string
		failed   string
		held     float64
	}{
		"everything":   {held: 5.125},
		"no GPUNodes":  {resource: "gpunodes", err: forbidden("gpunodes"), note: "GPUNodes: this user may not read them", held: 5.125},
		"no such kind": {resource: "gpunodes", err: apierrors.NewNotFound(schema.GroupResource{Resource: "gpunodes"}, ""), note: "GPUNodes: the API server does not have this kind", held: 5.125},
		"no pods":      {resource: "pods", err: forbidden("pods"), note: "Pods: this user may not read them", held: 5.125},
		"no nodes":     {resource: "nodes", err: forbidden("nodes"), failed: "replay: list nodes: nodes is forbidden"},
		"it is away":   {resource: "gpunodes", err: apierrors.NewServiceUnavailable("it starts"), failed: "replay: list gpunodes: it starts"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := replayClient(t, &all)
			client.PrependReactor("list", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
				return action.GetResource().Resource == test.resource, nil, test.err
			})
			var objects whatif.Objects
			watch := clock.RealClock{}
			err := readCluster(t.Context(), client, &objects, &progress{out: io.Discard, clock: watch, last: watch.Now()})
			if test.failed != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.failed) {
					t.Fatalf("got %v; want %s", err, test.failed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.note == "" && len(objects.Notes) > 0 || test.note != "" && (len(objects.Notes) != 1 || !strings.HasPrefix(objects.Notes[0], test.note)) {
				t.Errorf("notes %q; want %q", objects.Notes, test.note)
			}
			report, err := whatif.Ask(t.Context(), &objects, whatif.Options{Policies: []string{"pack"}, Scale: 1})
			if err != nil {
				t.Fatal(err)
			}
			if got := report.Now.Held; name != "no GPUNodes" && name != "no such kind" && got != test.held {
				t.Errorf("%v GPUs are held; want %v", got, test.held)
			}
		})
	}
}

// TestReplayReadProgress: reading says how far it is when a second has passed, and not before.
func TestReplayReadProgress(t *testing.T) {
	var out bytes.Buffer
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &progress{out: &out, clock: fixedClock{began.Add(1500 * time.Millisecond)}, began: began, last: began}
	p.read("Nodes", 7)
	p.read("Pods", 8)
	if got, want := out.String(), "replay: read 7 Nodes after 2 s\n"; got != want {
		t.Errorf("printed %q; want %q", got, want)
	}
}

// fixedClock always has the same time.
type fixedClock struct{ time time.Time }

func (c fixedClock) Now() time.Time                  { return c.time }
func (c fixedClock) Since(t time.Time) time.Duration { return c.time.Sub(t) }
