package validation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// offered is a healthy GPU that is advertised so.
func offered(o v1alpha1.DeviceOffer) v1alpha1.GPUDevice {
	d := gpu(o.Resource)
	d.Offered = &o
	return d
}

// partitioned is a GPU with MIG devices of some names.
func partitioned(resources ...string) v1alpha1.GPUDevice {
	d := v1alpha1.GPUDevice{Health: v1alpha1.DeviceHealth{State: "Healthy"}, MIGEnabled: true}
	for _, resource := range resources {
		d.MIGDevices = append(d.MIGDevices, v1alpha1.MIGDevice{Offered: &v1alpha1.DeviceOffer{Resource: resource}})
	}
	return d
}

func (d *demand) text() string {
	text := fmt.Sprintf("%s %d/%d expect %d", d.resource, d.count, d.devices, d.expect)
	if d.dra {
		text += " dra"
	}
	if d.others {
		text += " others"
	}
	return text
}

func TestDemands(t *testing.T) {
	state := func(d v1alpha1.GPUDevice, health string) v1alpha1.GPUDevice {
		d.Health.State = health
		return d
	}
	migState := func(d v1alpha1.GPUDevice, health string) v1alpha1.GPUDevice {
		d.MIGDevices[0].Health = &v1alpha1.DeviceHealth{State: health}
		return d
	}
	excluded := gpu("a/gpu")
	excluded.Excluded = true
	tests := map[string]struct {
		devices []v1alpha1.GPUDevice
		want    []string
	}{
		"none":                  {nil, nil},
		"not advertised":        {[]v1alpha1.GPUDevice{{Health: v1alpha1.DeviceHealth{State: "Healthy"}}, excluded}, nil},
		"whole GPUs":            {[]v1alpha1.GPUDevice{gpu("a/gpu"), gpu("a/gpu")}, []string{"a/gpu 2/2 expect 2"}},
		"several names, sorted": {[]v1alpha1.GPUDevice{gpu("b/gpu"), gpu("a/gpu"), gpu("b/gpu")}, []string{"a/gpu 1/1 expect 1", "b/gpu 2/2 expect 2"}},
		"not healthy": {[]v1alpha1.GPUDevice{gpu("a/gpu"), state(gpu("a/gpu"), "Degraded"), state(gpu("a/gpu"), "Draining"), state(gpu("a/gpu"), "Unhealthy"),
			state(gpu("a/gpu"), "NeedsReset"), state(gpu("a/gpu"), "NeedsReboot"), state(gpu("a/gpu"), "Gone"), state(gpu("a/gpu"), "")}, []string{"a/gpu 2/2 expect 2 others"}},
		"none healthy": {[]v1alpha1.GPUDevice{state(gpu("a/gpu"), "Gone")}, nil},
		"draining":     {[]v1alpha1.GPUDevice{gpu("a/gpu"), offered(v1alpha1.DeviceOffer{Resource: "a/gpu", Draining: "why"})}, []string{"a/gpu 1/1 expect 1 others"}},
		"replicas": {[]v1alpha1.GPUDevice{offered(v1alpha1.DeviceOffer{Resource: "a/gpu.shared", Sharing: "mps", Replicas: 4}), offered(v1alpha1.DeviceOffer{Resource: "a/gpu.shared", Sharing: "mps", Replicas: 4})},
			[]string{"a/gpu.shared 8/2 expect 2"}},
		"refuses many": {[]v1alpha1.GPUDevice{offered(v1alpha1.DeviceOffer{Resource: "a/gpu", Replicas: 4, RefusesMany: true}), offered(v1alpha1.DeviceOffer{Resource: "a/gpu", Replicas: 4, RefusesMany: true})},
			[]string{"a/gpu 1/2 expect 1"}},
		"MIG devices":             {[]v1alpha1.GPUDevice{partitioned("a/mig-1g", "a/mig-1g", "a/mig-2g"), partitioned("a/mig-1g")}, []string{"a/mig-1g 3/3 expect 1", "a/mig-2g 1/1 expect 1"}},
		"MIG devices as GPUs":     {[]v1alpha1.GPUDevice{partitioned("a/gpu", "a/gpu")}, []string{"a/gpu 2/2 expect 1"}},
		"of a GPU that is gone":   {[]v1alpha1.GPUDevice{state(partitioned("a/mig-1g"), "Gone")}, nil},
		"a MIG device's own":      {[]v1alpha1.GPUDevice{migState(partitioned("a/mig-1g", "a/mig-1g"), "Unhealthy")}, []string{"a/mig-1g 1/1 expect 1 others"}},
		"both APIs":               {[]v1alpha1.GPUDevice{offered(v1alpha1.DeviceOffer{Resource: "a/gpu", API: "dra"}), gpu("a/gpu")}, []string{"a/gpu 1/1 expect 1", "a/gpu 1/1 expect 1 dra"}},
		"not a name of resources": {[]v1alpha1.GPUDevice{gpu("cpu"), gpu("")}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range demands(gpuNode(tc.devices...)) {
				got = append(got, d.text())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "."
	tests := map[string]string{
		"n":                            "berth-validate-n",
		"ip-10-0-0-1.example.internal": "berth-validate-ip-10-0-0-1.example.internal",
		long + strings.Repeat("d", 46): "berth-validate-" + long + strings.Repeat("d", 46), // 238 characters
		long + strings.Repeat("d", 47): "",
		long + strings.Repeat("d", 61): "",
		long + strings.Repeat("d", 28) + "." + strings.Repeat("e", 20): "", // The cut is at the dot.
	}
	seen := map[string]string{}
	for node, want := range tests {
		got := podName(node)
		if want != "" && got != want {
			t.Errorf("podName(%s) = %s, want %s", node, got, want)
		}
		for _, name := range []string{got, operationName(node)} {
			if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
				t.Errorf("%s is no name: %v", name, problems)
			}
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s have the same name %s", node, other, got)
		}
		seen[got] = node
	}
}

// objectsFor returns the objects for a node of these devices.
func objectsFor(t *testing.T, change func(*v1alpha1.GPUStackSpec), devices ...v1alpha1.GPUDevice) objects {
	t.Helper()
	w := newWorld(t)
	s := gpuStack()
	change(&s.Spec)
	op := &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: opName, UID: "uid"}, Spec: v1alpha1.NodeOperationSpec{Node: nodeName, Key: "key-1"}}
	made, err := w.r.objectsOf(op, gpuNode(devices...), &s.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestPod(t *testing.T) {
	made := objectsFor(t, func(*v1alpha1.GPUStackSpec) {}, gpu("nvidia.com/gpu"), gpu("nvidia.com/gpu"), partitioned("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"))
	pod := made.pod
	if made.claim != nil || len(pod.Spec.ResourceClaims) > 0 {
		t.Errorf("it has a claim: %+v", made.claim)
	}
	wantTolerations := []corev1.Toleration{{Key: "example.com/not-validated", Operator: "Exists", Effect: "NoSchedule"}, {Key: "nvidia.com/gpu", Operator: "Exists"},
		{Key: "team", Value: "a", Effect: "NoExecute", TolerationSeconds: new(int64(5))}}
	if diff := cmp.Diff(wantTolerations, pod.Spec.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if pod.Name != podOf || pod.Namespace != namespace || pod.Labels[v1alpha1.ValidationLabel] != "node" || pod.Labels["app.kubernetes.io/name"] != "berth-validate" ||
		pod.Labels["app.kubernetes.io/part-of"] != "berth" || pod.Annotations[v1alpha1.ValidationKeyAnnotation] != "key-1" {
		t.Errorf("its metadata is %+v", pod.ObjectMeta)
	}
	var containers []string
	for _, c := range pod.Spec.Containers {
		of := corev1.ResourceName(c.Args[2])
		request, limit := c.Resources.Requests[of], c.Resources.Limits[of]
		containers = append(containers, fmt.Sprintf("%s %s %s %s %s", c.Name, c.Image, strings.Join(c.Args, " "), request.String(), limit.String()))
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if quantity, ok := c.Resources.Requests[name]; !ok || !quantity.IsZero() {
				t.Errorf("container %s requests %s of %s, which a full node does not have", c.Name, quantity.String(), name)
			}
		}
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !*s.RunAsNonRoot || s.Privileged != nil || len(s.Capabilities.Add) > 0 ||
			s.Capabilities.Drop[0] != "ALL" || s.SeccompProfile.Type != "RuntimeDefault" || len(c.Command) > 0 || c.ImagePullPolicy != "IfNotPresent" || len(c.VolumeMounts) > 0 {
			t.Errorf("container %s has more than it needs: %+v", c.Name, s)
		}
	}
	if diff := cmp.Diff([]string{
		"validate-0 registry.example/berth-agent:1 validate --resource nvidia.com/gpu --expect 2 2 2",
		"validate-1 registry.example/berth-agent:1 validate --resource nvidia.com/mig-1g.5gb --expect 1 2 2",
	}, containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	s := pod.Spec
	if s.RestartPolicy != "Never" || *s.ActiveDeadlineSeconds != 300 || *s.AutomountServiceAccountToken || *s.EnableServiceLinks || *s.TerminationGracePeriodSeconds != 1 ||
		s.NodeName != "" || s.HostNetwork || s.HostPID || s.HostIPC || len(s.Volumes) > 0 || s.PriorityClassName != "" || *s.SecurityContext.RunAsUser != 65532 ||
		s.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("the pod is %+v", s)
	}
	if owner := pod.OwnerReferences[0]; owner.Kind != "NodeOperation" || owner.UID != "uid" || owner.BlockOwnerDeletion != nil {
		t.Errorf("its owner is %+v", owner)
	}
}

// TestTaintOfTheGate: a GPUNode without the key of its taint must not lead to a toleration of all taints.
func TestTaintOfTheGate(t *testing.T) {
	node := held()
	node.Status.Gate.TaintKey = ""
	if got := tolerations(node, &v1alpha1.GPUStackSpec{})[0]; got.Key != v1alpha1.TaintNotValidated {
		t.Errorf("the toleration is %+v", got)
	}
}

func TestClaim(t *testing.T) {
	dra := func(d v1alpha1.GPUDevice) v1alpha1.GPUDevice {
		if d.Offered != nil {
			d.Offered.API = "dra"
		}
		for i := range d.MIGDevices {
			d.MIGDevices[i].Offered.API = "dra"
		}
		return d
	}
	broken := dra(gpu("nvidia.com/gpu"))
	broken.Health.State = "Unhealthy"
	var many []v1alpha1.GPUDevice
	for range 3 {
		many = append(many, dra(gpu("nvidia.com/gpu")))
	}
	for range 5 {
		many = append(many, dra(partitioned("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb")))
	}
	tests := map[string]struct {
		driver  string
		devices []v1alpha1.GPUDevice
		// requests are those of the claim, and containers what each has.
		requests   []string
		containers []string
	}{
		"by class": {"gpu.berth.dev", []v1alpha1.GPUDevice{dra(gpu("nvidia.com/gpu")), dra(gpu("nvidia.com/gpu")), dra(partitioned("nvidia.com/mig-1g.5gb"))},
			[]string{"request-0 gpu.berth.dev All 0", "request-1 mig-1g.5gb.gpu.berth.dev All 0"},
			[]string{"nvidia.com/gpu --expect 2: request-0 0", "nvidia.com/mig-1g.5gb --expect 1: request-1 0"}},
		"beside the device plugin": {"", []v1alpha1.GPUDevice{dra(gpu("nvidia.com/gpu")), gpu("nvidia.com/mig-1g.5gb")}, []string{"request-0 gpu.berth.dev All 0"},
			[]string{"nvidia.com/gpu --expect 1: request-0 0", "nvidia.com/mig-1g.5gb --expect 1:  1"}},
		"without the unhealthy":        {"", []v1alpha1.GPUDevice{dra(gpu("nvidia.com/gpu")), broken}, []string{"request-0 gpu.berth.dev ExactCount 1"}, []string{"nvidia.com/gpu --expect 1: request-0 0"}},
		"a class that Berth lacks":     {"", []v1alpha1.GPUDevice{dra(gpu("example.com/gpu"))}, nil, []string{"example.com/gpu --expect 1:  1"}},
		"a driver of another name":     {"gpu.example.com", []v1alpha1.GPUDevice{dra(gpu("nvidia.com/gpu"))}, nil, []string{"nvidia.com/gpu --expect 1:  1"}},
		"more devices than one claims": {"", many, []string{"request-0 gpu.berth.dev ExactCount 2", "request-1 mig-1g.5gb.gpu.berth.dev ExactCount 29"}, []string{"nvidia.com/gpu --expect 2: request-0 0", "nvidia.com/mig-1g.5gb --expect 1: request-1 0"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			made := objectsFor(t, func(s *v1alpha1.GPUStackSpec) { s.Host.DRADriverName = tc.driver }, tc.devices...)
			var requests, containers []string
			if made.claim != nil {
				for _, r := range made.claim.Spec.Devices.Requests {
					requests = append(requests, fmt.Sprintf("%s %s %s %d", r.Name, r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count))
				}
				if made.claim.Name != podOf || made.claim.Labels[v1alpha1.ValidationLabel] != "node" || *made.pod.Spec.ResourceClaims[0].ResourceClaimName != podOf {
					t.Errorf("the claim is %+v", made.claim.ObjectMeta)
				}
			}
			for _, c := range made.pod.Spec.Containers {
				claimed := ""
				for _, r := range c.Resources.Claims {
					claimed += r.Request
				}
				limit := c.Resources.Limits[corev1.ResourceName(c.Args[2])]
				containers = append(containers, fmt.Sprintf("%s: %s %s", strings.Join(c.Args[2:], " "), claimed, limit.String()))
			}
			if diff := cmp.Diff(tc.requests, requests) + cmp.Diff(tc.containers, containers); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestResult(t *testing.T) {
	ended := func(code int32, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}
	}
	const passed, failed = `{"kind":"ValidationResult","passed":true,"resource":"a/gpu"}`, `{"kind":"ValidationResult","code":"VALIDATE_CUDA","evidence":"cuInit: 999"}`
	tests := map[string]struct {
		status corev1.PodStatus
		states []corev1.ContainerState
		passed bool
		want   string
	}{
		"all passed":              {corev1.PodStatus{Phase: "Succeeded"}, []corev1.ContainerState{ended(0, passed), ended(0, passed)}, true, "passed: a/gpu, a/gpu"},
		"one failed":              {corev1.PodStatus{Phase: "Failed"}, []corev1.ContainerState{ended(0, passed), ended(1, failed)}, false, "VALIDATE_CUDA: cuInit: 999"},
		"the code before a crash": {corev1.PodStatus{Phase: "Failed"}, []corev1.ContainerState{ended(139, ""), ended(1, failed)}, false, "VALIDATE_CUDA: cuInit: 999"},
		"a crash":                 {corev1.PodStatus{Phase: "Failed"}, []corev1.ContainerState{ended(139, "")}, false, "container validate-0 ended with exit code 139 (Error)"},
		"no result":               {corev1.PodStatus{Phase: "Succeeded"}, []corev1.ContainerState{ended(0, "")}, false, "container validate-0 ended with exit code 0 (Error)"},
		"another document":        {corev1.PodStatus{Phase: "Succeeded"}, []corev1.ContainerState{ended(0, `{"passed":true}`)}, false, `container validate-0 ended with exit code 0 (Error) {"passed":true}`},
		"passed, then a crash":    {corev1.PodStatus{Phase: "Failed"}, []corev1.ContainerState{ended(1, passed)}, false, "container validate-0 ended with exit code 1 (Error) " + passed},
		"too late":                {corev1.PodStatus{Phase: "Failed", Reason: "DeadlineExceeded", Message: "too long"}, []corev1.ContainerState{{}}, false, "DeadlineExceeded: too long"},
		"not admitted":            {corev1.PodStatus{Phase: "Failed", Reason: "UnexpectedAdmissionError", Message: "no devices"}, nil, false, "UnexpectedAdmissionError: no devices"},
		"has not run":             {corev1.PodStatus{Phase: "Succeeded"}, []corev1.ContainerState{ended(0, passed), {}}, false, "container validate-1 has not run"},
		"passed, but failed":      {corev1.PodStatus{Phase: "Failed"}, []corev1.ContainerState{ended(0, passed)}, false, "the pod has failed without a reason"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: tc.status}
			for i := range max(1, len(tc.states)) {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("validate-", i)})
			}
			for i, state := range tc.states {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint("validate-", i), State: state})
			}
			if ok, got := result(pod); ok != tc.passed || got != tc.want {
				t.Errorf("%v %q, want %v %q", ok, got, tc.passed, tc.want)
			}
		})
	}
	if got := short(strings.Repeat("ä", 1000)); len(got) > 1024 || !strings.HasSuffix(got, "ä...") {
		t.Errorf("short has %d bytes", len(got))
	}
}
