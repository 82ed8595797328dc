package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/golden"
)

// situation is a file of testdata/why: the objects of a cluster, and what is asked.
type situation struct {
	args    []string
	forbid  string
	objects []*unstructured.Unstructured
}

func readSituation(t testing.TB, path string) situation {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s situation
	for i, document := range strings.Split(string(data), "\n---\n") {
		for line := range strings.Lines(document) {
			if args, ok := strings.CutPrefix(line, "# args: "); ok {
				s.args = strings.Fields(args)
			}
			if kind, ok := strings.CutPrefix(line, "# forbid: "); ok {
				s.forbid = strings.TrimSpace(kind)
			}
		}
		// Numbers are those that a client decodes: int64.
		object := &unstructured.Unstructured{}
		data, err := yaml.YAMLToJSON([]byte(document))
		if err == nil {
			err = object.UnmarshalJSON(data)
		}
		if err != nil {
			t.Fatalf("%s: document %d: %v", path, i, err)
		}
		s.objects = append(s.objects, object)
	}
	return s
}

// change changes the pods of a situation.
func (s *situation) change(pod func(map[string]any)) {
	for _, object := range s.objects {
		if object.GetKind() == kindPodOnly {
			pod(object.Object)
		}
	}
}

// listKinds are the kinds that the commands list.
func listKinds() map[schema.GroupVersionResource]string {
	kinds := map[schema.GroupVersionResource]string{}
	for _, text := range []string{
		"/v1/nodes/Node", "/v1/pods/Pod", "/v1/events/Event", "/v1/resourcequotas/ResourceQuota", "berth.dev/v1alpha1/gpunodes/GPUNode", "batch/v1/jobs/Job",
		"apps/v1/deployments/Deployment", "apps/v1/replicasets/ReplicaSet", "resource.k8s.io/v1/resourceclaims/ResourceClaim", "resource.k8s.io/v1/resourceslices/ResourceSlice",
		"resource.k8s.io/v1/deviceclasses/DeviceClass", "resource.k8s.io/v1/devicetaintrules/DeviceTaintRule", "resource.k8s.io/v1/resourceclaimtemplates/ResourceClaimTemplate",
		"scheduling.x-k8s.io/v1alpha1/podgroups/PodGroup", "scheduling.volcano.sh/v1beta1/podgroups/PodGroup",
	} {
		part := strings.Split(text, "/")
		kinds[schema.GroupVersionResource{Group: part[0], Version: part[1], Resource: part[2]}] = part[3] + "List"
	}
	return kinds
}

func (s *situation) client() *fake.FakeDynamicClient {
	var objects []runtime.Object
	for _, object := range s.objects {
		objects = append(objects, object.DeepCopy())
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds(), objects...)
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Resource != s.forbid || action.GetNamespace() != "" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New(`User "ada" cannot list resource`))
	})
	client.PrependReactor("get", "podgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if s.forbid != "podgroups" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "train", errors.New(`User "ada" cannot get resource`))
	})
	return client
}

// ask runs the command's question.
func (s *situation) ask(t testing.TB) string {
	t.Helper()
	var q whyQuestion
	flags := pflag.NewFlagSet("why", pflag.ContinueOnError)
	namespace := flags.StringP("namespace", "n", "default", "")
	flags.StringArrayVar(&q.ifGone, "if-gone", nil, "")
	flags.IntVar(&q.gpus, "gpus", 0, "")
	if err := flags.Parse(s.args); err != nil {
		t.Fatal(err)
	}
	if err := q.parse(flags.Arg(0), func() string { return *namespace }, flags.Changed("gpus")); err != nil {
		return "error: " + err.Error() + "\n"
	}
	answer, err := explainWhy(t.Context(), s.client(), q, time.Date(2026, 11, 24, 6, 0, 0, 0, time.UTC))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out bytes.Buffer
	if err := whyText(&out, answer); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s\n\n%s", answer.Code, out.String())
}

// withoutMessage removes what a scheduler has said from the output.
func withoutMessage(text string) string {
	lines := strings.SplitAfter(text, "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "note: The scheduler says: ") })
	return strings.TrimRight(strings.Join(lines, ""), "\n") + "\n"
}

func situations(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/why/*.yaml")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d situations, %v; want at least 25", len(files), err)
	}
	return files
}

// TestWhySituations compares the answers for the situations of testdata/why with the golden files: with the message of a scheduler, and the
// same without it, when the conditions of all pods are empty, with Berth's scheduler and with the default one.
func TestWhySituations(t *testing.T) {
	for _, path := range situations(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			s := readSituation(t, path)
			got := s.ask(t)
			golden.File(t, strings.TrimSuffix(path, ".yaml")+".golden", got)
			for _, scheduler := range []string{"default-scheduler", "berth-scheduler"} {
				s := readSituation(t, path)
				s.change(func(pod map[string]any) {
					_ = unstructured.SetNestedField(pod, scheduler, "spec", "schedulerName")
					unstructured.RemoveNestedField(pod, "status", "conditions")
				})
				bare, expected := withoutMessage(s.ask(t)), withoutMessage(got)
				if scheduler != "default-scheduler" {
					expected = strings.ReplaceAll(expected, "the scheduler default-scheduler has", "the scheduler "+scheduler+" has")
				}
				if diff := cmp.Diff(expected, bare); diff != "" {
					t.Errorf("%s, without conditions (-want +got):\n%s", scheduler, diff)
				}
			}
		})
	}
}

// TestWhyReserved: what the scheduler says of a reservation is part of the answer for a pod or a gang that fits.
func TestWhyReserved(t *testing.T) {
	const message = "0/4 nodes are available: 4 nvidia.com/gpu is reserved for gang ml/large until 2026-11-24T12:05:30Z, except for pods of a priority above 5"
	const passes = " before that it places only pods of a priority above 5 there"
	for _, path := range []string{"testdata/why/fits.yaml", "testdata/why/gang-fits.yaml"} {
		for end, want := range map[string]string{
			". preemption: 0/4 nodes are available.":          passes + ".",
			" and pods that end before 2026-11-24T12:05:00Z.": passes + ", and those whose activeDeadlineSeconds end before 2026-11-24T12:05:00Z.",
		} {
			s := readSituation(t, path)
			s.change(func(pod map[string]any) {
				condition := map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message + end}
				_ = unstructured.SetNestedSlice(pod, []any{condition}, "status", "conditions")
			})
			got := s.ask(t)
			begins, sentence := "Reserved\n", "now, but the scheduler has reserved places there for gang ml/large until 2026-11-24T12:05:30Z at the latest:"+want+"\n"
			if !strings.HasPrefix(got, begins) || !strings.Contains(got, sentence) {
				t.Errorf("%s: got\n%s\nwant %q and %q", path, got, begins, sentence)
			}
		}
	}
}

// TestWhyBesideClasses: where device plugins serve the GPUs, the operator's DeviceClasses, whose extended resources have the same names, do
// not change an answer, nor do ResourceSlices of nodes that offer GPUs by a device plugin.
func TestWhyBesideClasses(t *testing.T) {
	object := func(text string) *unstructured.Unstructured {
		found := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &found.Object); err != nil {
			t.Fatal(err)
		}
		return found
	}
	class := `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu.berth.dev}, spec: {extendedResourceName: nvidia.com/gpu,
  selectors: [{cel: {expression: 'device.driver == "gpu.berth.dev"'}}]}}`
	slice := `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: %[1]s-gpus}, spec: {driver: gpu.berth.dev, nodeName: %[1]s,
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}, devices: []}}`
	asked := 0
	for _, path := range situations(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if strings.HasPrefix(name, "dra-") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := readSituation(t, path)
			want := s.ask(t)
			s.objects = append(s.objects, object(class))
			if diff := cmp.Diff(want, s.ask(t)); diff != "" {
				t.Errorf("with the DeviceClass (-want +got):\n%s", diff)
			}
			for _, node := range slices.Clone(s.objects) {
				offered, _, _ := unstructured.NestedString(node.Object, "status", "allocatable", "nvidia.com/gpu")
				if node.GetKind() == "Node" && offered != "" && offered != "0" {
					s.objects = append(s.objects, object(fmt.Sprintf(slice, node.GetName())))
				}
			}
			if diff := cmp.Diff(want, s.ask(t)); diff != "" {
				t.Errorf("with slices of nodes with a device plugin (-want +got):\n%s", diff)
			}
			asked++
		})
	}
	if asked < 40 {
		t.Errorf("%d situations, want at least 40", asked)
	}
}

// TestWhyGangObject checks what is printed of a gang with -o json.
func TestWhyGangObject(t *testing.T) {
	tests := map[string]v1alpha1.WhyGang{
		"gang-rack":         {Key: "ml/train", Source: "berth.dev", Min: 4, Members: 4, Level: "rack", Domain: "rack-a", Fit: 3, Reason: "TopologyLevel"},
		"gang-in-part":      {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 2, Placed: 1, Fit: 1, Reason: "GangPlacedInPart"},
		"gang-podgroup":     {Key: "ml/train", Source: "scheduling.x-k8s.io", Min: 3, Members: 3, Fit: 2, Reason: "GPUsInUse"},
		"gang-fits":         {Key: "ml/train", Source: "berth.dev", Min: 3, Members: 3, Level: "rack", Domain: "rack-a", Fit: 3, Reason: "Fits"},
		"gang-bad-input":    {Key: "ml/train", Source: "berth.dev", Members: 2, Reason: "GangInvalid"},
		"gang-in-part-fits": {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 2, Placed: 1, Level: "zone", Domain: "z1", Fit: 2, Reason: "GangPlacedInPart"},
		"gang-no-podgroup":  {Key: "ml/train", Source: "scheduling.x-k8s.io", Members: 2, Reason: "PodGroupMissing"},
		"gang-incomplete":   {Key: "ml/train", Source: "berth.dev", Min: 8, Members: 3, Reason: "GangIncomplete"},
		"gang-two":          {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 2, Reason: "GPUsInUse"},
		"gang-surplus":      {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 3, Placed: 2, Fit: 2, Reason: "GangSurplusWaits"},
		"gang-no-level":     {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 2, Level: "block", Reason: "TopologyLevelMissing"},
		"gang-placed":       {Key: "ml/train", Source: "berth.dev", Min: 2, Members: 2, Placed: 2, Level: "zone", Domain: "z1", Fit: 2, Reason: "GangPlaced"},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			s := readSituation(t, "testdata/why/"+name+".yaml")
			q := whyQuestion{kind: kindGang, namespace: "ml", name: "train"}
			answer, err := explainWhy(t.Context(), s.client(), q, time.Date(2026, 11, 24, 6, 0, 0, 0, time.UTC))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, answer.Gang); diff != "" || answer.Code != want.Reason || answer.Kind != "Why" || answer.APIVersion == "" {
				t.Errorf("code %s (-want +got):\n%s", answer.Code, diff)
			}
		})
	}
}
