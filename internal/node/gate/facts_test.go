package gate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gate"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// readyInputs are the inputs of a node with two GPUs that only waits for its validation.
func readyInputs(change func(*Inputs)) Inputs {
	in := Inputs{
		BootID: "boot", OnBus: 2, Vendor: gpu.NVIDIA, Advertised: 1, Spec: &Spec{Fingerprint: "f"},
		Snapshot: &gpu.Snapshot{
			Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.95.05"}}},
			GPUs: []gpu.GPU{
				{UUID: "GPU-0", Vendor: gpu.NVIDIA, Index: 0, Health: gpu.Health{State: gpu.Healthy}},
				{UUID: "GPU-1", Vendor: gpu.NVIDIA, Index: 1, Health: gpu.Health{State: gpu.Healthy}},
			},
		},
	}
	change(&in)
	return in
}

func TestObserve(t *testing.T) {
	key := gate.Key("boot", "580.95.05", "f")
	dead := func(in *Inputs) {
		in.Snapshot.GPUs[1].Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "XID79", Message: "it has fallen off the bus"}}}
	}
	tests := map[string]struct {
		in      Inputs
		want    gate.Facts
		unknown bool
	}{
		"ready": {in: readyInputs(func(*Inputs) {}), want: gate.Facts{GPUs: true, Key: key}},
		"without GPUs": {in: readyInputs(func(in *Inputs) { in.OnBus, in.Snapshot, in.Spec = 0, &gpu.Snapshot{}, nil }), unknown: true, want: gate.Facts{
			Driver: &gate.Stop{Code: "DRIVER_MISSING", Message: "no driver answers for the 0 GPUs on the PCI bus"},
			Spec:   &gate.Stop{Message: "waits until the CDI spec was read"}}},
		"all GPUs excluded": {in: readyInputs(func(in *Inputs) { in.Excluded = map[gpu.UUID]bool{"GPU-0": true, "GPU-1": true} }), want: gate.Facts{Key: key}},
		"no driver": {in: readyInputs(func(in *Inputs) { in.Snapshot = &gpu.Snapshot{} }),
			want: gate.Facts{GPUs: true, Driver: &gate.Stop{Code: "DRIVER_MISSING", Message: "no driver answers for the 2 GPUs on the PCI bus"}}},
		"no driver, with its fault": {in: readyInputs(func(in *Inputs) {
			in.Snapshot = &gpu.Snapshot{Faults: []gpu.Cause{{Code: "CDI_GDS_MISSING", Message: "no"}, {Code: "DRIVER_MISSING", Message: "libnvidia-ml.so.1 was not found"}}}
		}), want: gate.Facts{GPUs: true, Driver: &gate.Stop{Code: "DRIVER_MISSING", Message: "libnvidia-ml.so.1 was not found"}}},
		"a GPU without its driver": {in: readyInputs(func(in *Inputs) { in.OnBus = 3 }),
			want: gate.Facts{GPUs: true, Key: key, Driver: &gate.Stop{Code: "GATE_GPU_MISSING", Message: "the PCI bus has 3 GPUs, and the driver answers for 2"}}},
		"a dead GPU": {in: readyInputs(dead),
			want: gate.Facts{GPUs: true, Key: key, Driver: &gate.Stop{Code: "XID79", Message: "GPU 1 (GPU-1) is Gone: it has fallen off the bus"}}},
		"a dead GPU that is excluded": {in: readyInputs(func(in *Inputs) { dead(in); in.Excluded = map[gpu.UUID]bool{"GPU-1": true} }), want: gate.Facts{GPUs: true, Key: key}},
		"a GPU that drains":           {in: readyInputs(func(in *Inputs) { in.Snapshot.GPUs[0].Health.State = gpu.Draining }), want: gate.Facts{GPUs: true, Key: key}},
		"before the spec was read": {in: readyInputs(func(in *Inputs) { in.Spec = nil }), unknown: true,
			want: gate.Facts{GPUs: true, Spec: &gate.Stop{Message: "waits until the CDI spec was read"}}},
		"no spec": {in: readyInputs(func(in *Inputs) { in.Spec = &Spec{} }), want: gate.Facts{GPUs: true, Spec: &gate.Stop{Message: "waits until there is a CDI spec"}}},
		"a device that the spec lacks": {in: readyInputs(func(in *Inputs) { in.Spec.Missing = []string{"GPU-1"} }),
			want: gate.Facts{GPUs: true, Key: key, Spec: &gate.Stop{Message: "waits until the CDI spec has GPU-1 (1 devices are missing)"}}},
		"a device node that is missing": {in: readyInputs(func(in *Inputs) {
			in.Spec.Problems = []gpu.Cause{{Code: "CDI_NODE_MISSING", Message: "no /dev/nvidia1"}}
		}),
			want: gate.Facts{GPUs: true, Key: key, Spec: &gate.Stop{Code: "CDI_NODE_MISSING", Message: "no /dev/nvidia1"}}},
		"a daemon that starts": {in: readyInputs(func(in *Inputs) { in.Spec.Problems = []gpu.Cause{{Code: "CDI_MPS_MISSING"}, {Code: "CDI_GDS_MISSING"}} }),
			want: gate.Facts{GPUs: true, Key: key}},
		"without CDI": {in: readyInputs(func(in *Inputs) { in.WithoutCDI, in.Spec = true, nil }), want: gate.Facts{GPUs: true, Key: gate.Key("boot", "580.95.05", "")}},
		"not registered": {in: readyInputs(func(in *Inputs) { in.Unregistered = []string{"nvidia.com/gpu: the kubelet refused it"} }),
			want: gate.Facts{GPUs: true, Key: key, Advertised: &gate.Stop{Message: "waits until the kubelet has registered nvidia.com/gpu: the kubelet refused it"}}},
		"nothing advertised": {in: readyInputs(func(in *Inputs) { in.Advertised = 0 }),
			want: gate.Facts{GPUs: true, Key: key, Advertised: &gate.Stop{Message: "waits until a device is advertised"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, known := observeFacts(tc.in)
			if diff := cmp.Diff(tc.want, got); diff != "" || known == tc.unknown {
				t.Errorf("known %t; facts (-want +got):\n%s", known, diff)
			}
		})
	}
}

const passedPod = `{"apiVersion":"validation.berth.dev/v1","kind":"ValidationResult","passed":true}`

func TestJudgeValidation(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	pod := func(change func(*podwatch.Validation)) podwatch.Validation {
		v := podwatch.Validation{UID: "u", Name: "berth-validate-n", Key: "k", Created: at, Of: 2, Ended: true, Containers: []podwatch.Result{
			{Name: "a", Message: passedPod}, {Name: "b", Message: passedPod},
		}}
		change(&v)
		return v
	}
	message := func(exit int32, text string) func(*podwatch.Validation) {
		return func(v *podwatch.Validation) { v.Containers[1].Exit, v.Containers[1].Message = exit, text }
	}
	failedWith := func(code, text string) *gate.Outcome {
		return &gate.Outcome{Key: "k", Failed: &gate.Stop{Code: code, Message: text}}
	}
	const count = `{"apiVersion":"validation.berth.dev/v1","kind":"ValidationResult","passed":false,"code":"VALIDATE_COUNT","evidence":"7 of\n 8 devices"}`
	tests := map[string]struct {
		pods   []podwatch.Validation
		want   *gate.Outcome
		unseen bool
	}{
		"no pod":         {unseen: true},
		"passed":         {pods: []podwatch.Validation{pod(func(*podwatch.Validation) {})}, want: &gate.Outcome{Key: "k"}},
		"of another key": {pods: []podwatch.Validation{pod(func(v *podwatch.Validation) { v.Key = "other" })}, unseen: true},
		"runs":           {pods: []podwatch.Validation{pod(func(v *podwatch.Validation) { v.Ended, v.Containers = false, v.Containers[:1] })}},
		"one container failed, the other runs": {pods: []podwatch.Validation{pod(func(v *podwatch.Validation) { message(1, count)(v); v.Ended, v.Containers = false, v.Containers[1:] })},
			want: failedWith("VALIDATE_COUNT", "b: 7 of 8 devices")},
		"ended before all containers ran": {pods: []podwatch.Validation{pod(func(v *podwatch.Validation) {
			v.Containers, v.Refused = nil, "UnexpectedAdmissionError: no devices"
		})}, want: failedWith("VALIDATE_POD_FAILED", "pod berth-validate-n: UnexpectedAdmissionError: no devices")},
		"killed without a result": {pods: []podwatch.Validation{pod(message(137, ""))},
			want: failedWith("VALIDATE_POD_FAILED", "container b of pod berth-validate-n has exited with 137 without a result: ")},
		"says that it passed, and failed": {pods: []podwatch.Validation{pod(message(1, passedPod))},
			want: failedWith("VALIDATE_POD_FAILED", "container b of pod berth-validate-n has exited with 1, and its result is that it passed: true")},
		"a code of something else": {pods: []podwatch.Validation{pod(message(1, strings.Replace(count, "VALIDATE_COUNT", "DRIVER_MISSING", 1)))},
			want: failedWith("VALIDATE_POD_FAILED", "container b of pod berth-validate-n has exited with 1, and its result is that it passed: false")},
		"another kind": {pods: []podwatch.Validation{pod(message(0, `{"passed":true}`))},
			want: failedWith("VALIDATE_POD_FAILED", `container b of pod berth-validate-n has exited with 0 without a result: {"passed":true}`)},
		"the newest counts": {pods: []podwatch.Validation{pod(message(1, count)), pod(func(v *podwatch.Validation) { v.Created = at.Add(time.Second) })}, want: &gate.Outcome{Key: "k"}},
		"the newest runs":   {pods: []podwatch.Validation{pod(message(1, count)), pod(func(v *podwatch.Validation) { v.Ended, v.Containers = false, nil })}},
		"no containers":     {pods: []podwatch.Validation{pod(func(v *podwatch.Validation) { v.Containers, v.Of = nil, 0 })}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, seen := judgeValidation(tc.pods, "k")
			if diff := cmp.Diff(tc.want, got); diff != "" || seen == tc.unseen {
				t.Errorf("seen %t; outcome (-want +got):\n%s", seen, diff)
			}
		})
	}
	if got, seen := judgeValidation([]podwatch.Validation{pod(func(v *podwatch.Validation) { v.Key = "" })}, ""); got != nil || seen {
		t.Errorf("a pod without a key, of a node without one: %v", got)
	}
}

// FuzzJudgeValidation: whatever a container writes, the result is bounded, and passes only with exit 0.
func FuzzJudgeValidation(f *testing.F) {
	f.Add(int32(0), passedPod)
	f.Add(int32(1), strings.Replace(passedPod, "true", `false,"code":"VALIDATE_X"`, 1))
	f.Add(int32(0), strings.Repeat("\xff", 5000))
	f.Fuzz(func(t *testing.T, exit int32, text string) {
		got, _ := judgeValidation([]podwatch.Validation{{Key: "k", Of: 1, Ended: true, Containers: []podwatch.Result{{Name: "a", Exit: exit, Message: text}}}}, "k")
		switch {
		case got == nil:
			t.Fatal("no outcome of a pod that has ended")
		case got.Failed == nil && exit != 0:
			t.Errorf("passed with exit %d", exit)
		case got.Failed != nil && (len(got.Failed.Message) > 4096 || strings.Contains(got.Failed.Message, "\n") || !strings.HasPrefix(got.Failed.Code, "VALIDATE_")):
			t.Errorf("stop %+v", got.Failed)
		}
	})
}

func TestRuntimeStop(t *testing.T) {
	const v2 = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = "
	tests := map[string]struct {
		// path is that of the configuration.
		path   string
		config string
		serves bool
		// want is the message.
		want string
	}{
		"off": {path: "/c.toml", config: v2 + "false\n", serves: true, want: "enable_cdi is false in /c.toml; set it to true, and restart containerd"},
		"off in a generated file": {path: "/etc/k0s/containerd.toml", config: "# k0s_managed=true\n" + v2 + "false\n", serves: true,
			want: "enable_cdi is false in /etc/k0s/containerd.toml; k0s generates this configuration: set enable_cdi to true in /etc/k0s/containerd.d/*.toml, and restart k0s"},
		"on":                     {path: "/c.toml", config: v2 + "true\n", serves: true},
		"by default":             {path: "/c.toml", config: "version = 3\n", serves: true},
		"no configuration":       {path: "/c.toml", serves: true},
		"not the node's runtime": {path: "/c.toml", config: v2 + "false\n"},
		"invalid":                {path: "/c.toml", config: "version = [\n", serves: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if tc.config != "" {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, tc.path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, tc.path), []byte(tc.config), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := runtimeStop(root, &hostruntime.Runtime{Kind: hostruntime.Containerd, Served: tc.serves, Config: hostruntime.Place{Path: tc.path}})
			if (got == nil) != (tc.want == "") || got != nil && (got.Code != "RUNTIME_CDI_OFF" || got.Message != tc.want) {
				t.Errorf("RuntimeStop = %v, want %q", got, tc.want)
			}
		})
	}
}
