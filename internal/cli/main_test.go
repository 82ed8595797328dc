package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// openInProcess is NVML of the simulated machine with that root.
func openInProcess(root string) nvml.Interface {
	machine, err := sim.OpenRoot(root)
	if err != nil {
		return nvidia.OpenLibrary(root)
	}
	return machine.NVML()
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"terminal": runOnTerminal,
		"berth": func() {
			deps := Deps{
				Out: os.Stdout, Err: os.Stderr, Name: "berth",
				// The machine that runs the tests may itself be a node of a cluster.
				KubeletDir: filepath.Join(os.Getenv("WORK"), "no-kubelet"),
				// NVML in this process: no library has to be built.
				OpenLibrary:     openInProcess,
				SimulatedDriver: func() (sim.Files, error) { return sim.Files{}, nil },
			}
			os.Exit(Run(context.Background(), deps, os.Args[1:]))
		},
	})
}

// TestScripts runs testdata/script. Besides testscript's own commands there are
//
//	checkpoint DIR FILE    makes DIR a kubelet's with a checkpoint as in the YAML file
//	claimrecord DIR FILE   writes the record of prepared claims of that kubelet from a JSON file
//	podresources DIR FILE  serves PodResources of that kubelet from a YAML file
//	agent FILE [FILE...]   serves /debug/state, /debug/samples and /v1/reset from files; its socket is in $AGENT
//	exits CODE PROGRAM...  runs a program, which must end with this exit code
//	environ FILE A=B...    writes an environment in the format of /proc
//	api FILE [METRICS]     serves an API of the YAML documents in a file, with METRICS as the page of the
//	                       agent's pod berth-agent-a; sets $KUBECONFIG
//
// and each script has a home without a kubeconfig.
func TestScripts(t *testing.T) {
	params := scriptParams()
	params.Dir = "testdata/script"
	testscript.Run(t, params)
}

// scriptParams are those of every script of this package.
func scriptParams() testscript.Params {
	return testscript.Params{
		Setup: func(env *testscript.Env) error {
			env.Setenv("KUBECONFIG", "")
			env.Setenv("KUBERNETES_SERVICE_HOST", "")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"checkpoint": writeCheckpoint, "claimrecord": writeClaimRecord, "podresources": servePodResources, "agent": serveAgent, "api": serveAPI, "environ": writeEnviron,
			"exits": checkExit,
		},
		UpdateScripts: golden.Update(),
	}
}

// entry is a line of a checkpoint in readable form.
type entry struct {
	UID       string
	Container string
	Resource  string
	IDs       []string
	CDI       []string
	Env       map[string]string
}

func writeCheckpoint(ts *testscript.TestScript, _ bool, args []string) {
	var entries []entry
	ts.Check(yaml.UnmarshalStrict([]byte(ts.ReadFile(args[1])), &entries))
	var list []map[string]any
	for _, e := range entries {
		response := &v1beta1.ContainerAllocateResponse{Envs: e.Env}
		for _, name := range e.CDI {
			response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: name})
		}
		blob, err := proto.Marshal(response)
		ts.Check(err)
		list = append(list, map[string]any{
			"PodUID": e.UID, "ContainerName": e.Container, "ResourceName": e.Resource,
			"DeviceIDs": map[string]any{"-1": e.IDs}, "AllocResp": base64.StdEncoding.EncodeToString(blob),
		})
	}
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": list, "RegisteredDevices": map[string]any{}}})
	ts.Check(err)
	dir := filepath.Join(ts.MkAbs(args[0]), "device-plugins")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), text, 0o600))
}

func writeClaimRecord(ts *testscript.TestScript, _ bool, args []string) {
	data := ts.ReadFile(args[1])
	text, err := json.Marshal(map[string]any{"Data": data, "Checksum": crc32.ChecksumIEEE([]byte(data))})
	ts.Check(err)
	ts.Check(os.MkdirAll(ts.MkAbs(args[0]), 0o755))
	ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(args[0]), prepared.FileName), text, 0o600))
}

func writeEnviron(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Join(args[1:], "\x00")+"\x00"), 0o600))
}

// lister answers Get from a file: a map of NAMESPACE/NAME to containers to device IDs. It has no List, which must not
// be called.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
}

func (l *lister) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	for _, pod := range l.pods {
		if pod.Namespace == r.PodNamespace && pod.Name == r.PodName {
			return &podresources.GetPodResourcesResponse{PodResources: pod}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

func servePodResources(ts *testscript.TestScript, _ bool, args []string) {
	var pods map[string]map[string][]string
	ts.Check(yaml.UnmarshalStrict([]byte(ts.ReadFile(args[1])), &pods))
	lister := &lister{}
	for pod, containers := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		made := &podresources.PodResources{Namespace: namespace, Name: name}
		for container, ids := range containers {
			resources := &podresources.ContainerResources{Name: container}
			if len(ids) > 0 {
				resources.Devices = []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: ids}}
			}
			made.Containers = append(made.Containers, resources)
		}
		lister.pods = append(lister.pods, made)
	}
	dir := filepath.Join(ts.MkAbs(args[0]), "pod-resources")
	ts.Check(os.MkdirAll(dir, 0o755))
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	ts.Check(err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister)
	go func() { _ = server.Serve(listener) }()
	ts.Defer(server.Stop)
}

func checkExit(ts *testscript.TestScript, _ bool, args []string) {
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("the exit code is %d, want %s", code, args[0])
	}
}

func glob(ts *testscript.TestScript, pattern string) []string {
	found, err := filepath.Glob(ts.MkAbs(pattern))
	ts.Check(err)
	return found
}

func serveAgent(ts *testscript.TestScript, _ bool, args []string) {
	pages := map[string]string{"/debug/state": ts.ReadFile(args[0])}
	if len(args) > 1 {
		pages["/debug/samples"] = ts.ReadFile(args[1])
	}
	if len(args) > 2 {
		pages["/v1/reset"] = ts.ReadFile(args[2])
	}
	name := fmt.Sprintf("agent-%d.sock", len(glob(ts, "agent-*.sock")))
	listener, err := net.Listen("unix", ts.MkAbs(name))
	ts.Check(err)
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // each server has its own path
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page)
	})}
	go func() { _ = server.Serve(listener) }()
	ts.Defer(func() { server.Close() })
	ts.Setenv("AGENT", name)
}

// selectedBy returns the objects with the labels.
func selectedBy(text string, list []any) []any {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(object any) bool {
		has, _, _ := unstructured.NestedStringMap(object.(map[string]any), "metadata", "labels")
		return !selector.Matches(labels.Set(has))
	})
}

// serveAPI serves gets and lists of the objects in a file, as far as berth makes them. It refuses writes.
func serveAPI(ts *testscript.TestScript, _ bool, args []string) {
	lists := map[string][]any{}
	objects := map[string]any{}
	var forbidden []string
	for document := range strings.SplitSeq(ts.ReadFile(args[0]), "\n---\n") {
		var object map[string]any
		ts.Check(yaml.Unmarshal([]byte(document), &object))
		meta := object["metadata"].(map[string]any)
		name := meta["name"].(string)
		switch object["kind"] {
		case "Pod":
			namespace := meta["namespace"].(string)
			objects["/api/v1/namespaces/"+namespace+"/pods/"+name] = object
			for _, path := range []string{"/api/v1/namespaces/" + namespace + "/pods", "/api/v1/pods"} {
				lists[path] = append(lists[path], object)
			}
		case "ResourceClaim":
			const all = "/apis/resource.k8s.io/v1/resourceclaims"
			path := "/apis/resource.k8s.io/v1/namespaces/" + meta["namespace"].(string) + "/resourceclaims"
			objects[path+"/"+name] = object
			lists[path], lists[all] = append(lists[path], object), append(lists[all], object)
		case "ResourceClaimTemplate":
			objects["/apis/resource.k8s.io/v1/namespaces/"+meta["namespace"].(string)+"/resourceclaimtemplates/"+name] = object
		case "DeviceClass":
			const path = "/apis/resource.k8s.io/v1/deviceclasses"
			lists[path] = append(lists[path], object)
		case "ResourceSlice":
			const path = "/apis/resource.k8s.io/v1/resourceslices"
			lists[path] = append(lists[path], object)
		case "Event":
			path := "/api/v1/namespaces/" + meta["namespace"].(string) + "/events"
			lists[path] = append(lists[path], object)
		case "ConfigMap":
			objects["/api/v1/namespaces/"+meta["namespace"].(string)+"/configmaps/"+name] = object
		case "ResourceQuota":
			for _, path := range []string{"/api/v1/namespaces/" + meta["namespace"].(string) + "/resourcequotas", "/api/v1/resourcequotas"} {
				lists[path] = append(lists[path], object)
			}
		case "Namespace":
			const path = "/api/v1/namespaces"
			lists[path] = append(lists[path], object)
		case "Forbidden": // a path that the user may not read
			forbidden = append(forbidden, name)
		case "Node":
			objects["/api/v1/nodes/"+name] = object
			lists["/api/v1/nodes"] = append(lists["/api/v1/nodes"], object)
		case "GPUNode", "GPUStack", "NodeOperation":
			path := "/apis/berth.dev/v1alpha1/" + strings.ToLower(object["kind"].(string)) + "s"
			objects[path+"/"+name] = object
			lists[path] = append(lists[path], object)
		default:
			ts.Fatalf("api: unknown kind %v", object["kind"])
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(args) > 1 && r.URL.Path == "/api/v1/namespaces/berth-system/pods/berth-agent-a:9835/proxy/metrics" {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			fmt.Fprint(w, ts.ReadFile(args[1]))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if slices.Contains(forbidden, r.URL.Path) {
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, r.URL.Path+" is forbidden")
			return
		}
		answer := any(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
			"reason": "NotFound", "message": "not found"})
		if object, ok := objects[r.URL.Path]; ok {
			if r.Method == http.MethodPatch || r.Method == http.MethodDelete {
				forbid := map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
					"reason": "Forbidden", "message": "may not " + strings.ToLower(r.Method) + " nodes"}
				w.WriteHeader(http.StatusForbidden)
				object = forbid
			}
			answer = object
		} else if list, ok := lists[r.URL.Path]; ok || strings.HasSuffix(r.URL.Path, "/pods") {
			kind := "List"
			if strings.HasSuffix(r.URL.Path, "/pods") {
				kind = "PodList"
			}
			list = selectedBy(r.URL.Query().Get("labelSelector"), list)
			answer = map[string]any{"kind": kind, "apiVersion": "v1", "items": list}
		} else if strings.HasSuffix(r.URL.Path, "/namespaces/secret/events") {
			w.WriteHeader(http.StatusForbidden)
			answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
				"reason": "Forbidden", "message": "events is forbidden"}
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	ts.Defer(server.Close)
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q}}]
contexts: [{name: test, context: {cluster: test, user: test, namespace: default}}]
users: [{name: test, user: {}}]
`, server.URL)
	path := ts.MkAbs("kubeconfig")
	ts.Check(os.WriteFile(path, []byte(config), 0o600))
	ts.Setenv("KUBECONFIG", path)
}
