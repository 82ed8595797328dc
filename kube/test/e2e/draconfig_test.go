package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// configOf is opaque configuration of a driver.
func configOf(driver, parameters string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
}

// claimConfig is a GPUClaimConfig with this content of sharing.
func claimConfig(sharing string) string {
	return `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":` + sharing + `}`
}

// testDRAConfig checks what configuration of claims the API server accepts, and that the agent applies it.
func testDRAConfig(t *testing.T, l *draLab) {
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(8)...)
	t.Run("Admission", l.testConfigAdmission)
	t.Run("TimeSlice", l.testTimeSliceOfClaim)
	t.Run("MPS", l.testMPSOfClaim)
	t.Run("Events", l.testEventsOfClaim)
}

// testConfigAdmission writes claims, templates and classes with configuration, and wants those refused that no agent accepts.
func (l *draLab) testConfigAdmission(t *testing.T) {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	// create returns the errors for the three kinds of objects.
	create := func(config resourceapi.DeviceConfiguration) map[string]error {
		claim := claimOf("configured", gpuRequest("gpu", 1))
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: config}}
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: claim.ObjectMeta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec}}
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "configured"}}
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: config}}
		_, ofClaim := l.Client().ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, dry)
		_, ofTemplate := l.Client().ResourceV1().ResourceClaimTemplates(claim.Namespace).Create(t.Context(), template, dry)
		_, ofClass := l.Client().ResourceV1().DeviceClasses().Create(t.Context(), class, dry)
		return map[string]error{"claim": ofClaim, "template": ofTemplate, "class": ofClass}
	}
	for parameters, want := range map[string]string{
		`{"apiVersion":"gpu.berth.dev/v1","kind":"GpuConfg"}`: "reads apiVersion: berth.dev/v1alpha1, kind: GPUClaimConfig, and not apiVersion: gpu.berth.dev/v1, kind: GpuConfg",
		`{"sharing":{}}`: "and not apiVersion: (none), kind: (none)",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharng":{}}`: "unknown field sharng",
		claimConfig(`{"mode":"timeSlicing","slice":"short"}`):                     "unknown field sharing.slice",
		claimConfig(`{"timeSlice":"short"}`):                                      "sharing.mode has to be timeSlicing or mps",
		claimConfig(`{"mode":"MPS"}`):                                             "sharing.mode has to be timeSlicing or mps",
		claimConfig(`{"mode":"mps","timeSlice":"short"}`):                         "sharing.mps is for sharing.mode mps, and sharing.timeSlice for timeSlicing",
		claimConfig(`{"mode":"timeSlicing","mps":{}}`):                            "sharing.mps is for sharing.mode mps",
		claimConfig(`{"mode":"mps","mps":{"memory":1}}`):                          "unknown field sharing.mps.memory",
		claimConfig(`{"mode":"mps","mps":{"pinnedMemoryMiB":0}}`):                 "sharing.mps.pinnedMemoryMiB has to be MiB, or -1 for no limit",
		claimConfig(`{"mode":"mps","mps":{"activeThreadPercentage":101}}`):        "activeThreadPercentage 1 to 100",
		claimConfig(`{"mode":"mps","mps":{"singleUser":"yes"}}`):                  "singleUser true or false",
		claimConfig(`{"mode":"mps"}`):                                             "",
		claimConfig(`{"mode":"mps","mps":{"pinnedMemoryMiB":-1}}`):                "",
		claimConfig(limitsOfClaim):                                                "",
		claimConfig(`{"mode":"mps","mps":{"singleUser":true}}`):                   "",
		claimConfig(`{"mode":"timeSlicing","timeSlice":"shrt"}`):                  "sharing.timeSlice has to be default, short, medium or long",
		claimConfig(`{"mode":"timeSlicing","timeSlice":"short"}`):                 "",
		claimConfig(`{"mode":"timeSlicing"}`):                                     "",
		`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig"}`:             "",
	} {
		for what, err := range create(configOf(pool.DefaultDriver, parameters)) {
			if want == "" && err != nil || want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s with the configuration %s: %v, want %q", what, parameters, err, want)
			}
		}
	}
	for what, err := range create(configOf("nic.example.com", `{"kind":"Other"}`)) {
		if err != nil {
			t.Errorf("%s with the configuration of another driver: %v", what, err)
		}
	}
}

// timeSlices returns the time slices of the first node's GPUs that are not the driver's default, by minor number.
func (l *draLab) timeSlices(t testing.TB) map[int]string {
	all := map[int]string{}
	for _, g := range hardware(t, l.node.SimDir()).GPUs {
		if g.TimeSlice != "" && g.TimeSlice != "default" {
			all[g.Minor] = g.TimeSlice
		}
	}
	return all
}

// testTimeSliceOfClaim: the GPU of a claim has its time slice before a container runs, and the default when the claim has ended, also when
// the agent was killed in between.
func (l *draLab) testTimeSliceOfClaim(t *testing.T) {
	claim := claimOf("sliced", gpuRequest("gpu", 1, attribute("architecture", "Hopper")))
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configOf(pool.DefaultDriver, claimConfig(`{"mode":"timeSlicing","timeSlice":"short"}`))}}
	l.claim(t, claim)
	pod := l.run(t, podUsing("sliced", "sliced"))[0]
	on := l.checkClaimed(t, pod, 1)[0]
	if got := l.timeSlices(t); len(got) != 1 || !strings.EqualFold(got[int(on)], "short") {
		t.Errorf("the time slices are %v, want short for GPU %d", got, on)
	}
	l.waitStatus(t, pod, "sliced")
	l.kill(t)
	if err := l.Client().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.start(t)
	waitUntil(t, 30*time.Second, "every GPU has the default time slice", func(context.Context) error {
		if got := l.timeSlices(t); len(got) > 0 {
			return fmt.Errorf("the time slices are %v", got)
		}
		return nil
	})
}

// waitStatus waits until status.devices of a claim has the GPUs of its pod, healthy.
func (l *draLab) waitStatus(t testing.TB, pod *corev1.Pod, name string) {
	t.Helper()
	uuids := map[uint32]string{}
	for _, g := range hardware(t, l.node.SimDir()).GPUs {
		uuids[uint32(g.Minor)] = g.UUID
	}
	var want []string
	for _, minor := range l.gpusIn(t, pod, "main") {
		want = append(want, uuids[minor]+" Healthy=True")
	}
	slices.Sort(want)
	waitUntil(t, 20*time.Second, fmt.Sprintf("the status of claim %s has the devices %v", name, want), func(ctx context.Context) error {
		claim, err := l.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, device := range claim.Status.Devices {
			var data struct{ UUID, PCIBusID string }
			if err := json.Unmarshal(device.Data.Raw, &data); err != nil || data.PCIBusID == "" || device.Driver != pool.DefaultDriver {
				return fmt.Errorf("device %s has the data %s (%v)", device.Device, device.Data.Raw, err)
			}
			for _, condition := range device.Conditions {
				got = append(got, fmt.Sprintf("%s %s=%s", data.UUID, condition.Type, condition.Status))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// testEventsOfClaim: the reason why a claim cannot be prepared is an event of the claim and of its pod.
func (l *draLab) testEventsOfClaim(t *testing.T) {
	// The policy refuses the configuration that the agent has to refuse.
	policy := func(ctx context.Context, action string) error {
		patch := fmt.Sprintf(`{"spec":{"validationActions":[%q]}}`, action)
		_, err := l.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Patch(ctx, "berth-claim-config", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := policy(context.Background(), "Deny"); err != nil {
			t.Error(err)
		}
	})
	if err := policy(t.Context(), "Audit"); err != nil {
		t.Fatal(err)
	}
	claim := claimOf("misspelled", gpuRequest("gpu", 1, attribute("architecture", "Hopper")))
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configOf(pool.DefaultDriver, claimConfig(`{"mode":"timeSlicing","timeSlice":"shrt"}`))}}
	waitUntil(t, 20*time.Second, "the policy only warns", func(ctx context.Context) error {
		_, err := l.Client().ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	l.claim(t, claim)
	pod := podUsing("misspelled", "misspelled")
	t.Cleanup(func() { l.cleanUp(t, pod) })
	if _, err := l.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	const want = `claim default/misspelled, all requests, status.allocation.devices.config[0].opaque.parameters: sharing.timeSlice: "shrt" is unknown (did you mean short?)`
	for kind, reason := range map[string]string{"ResourceClaim": "ClaimNotPrepared", "Pod": "FailedPrepareDynamicResources"} {
		l.waitEventOf(t, kind, "misspelled", reason, want)
	}
	l.checkOldConfigChanges(t, claim, func(ctx context.Context) error { return policy(ctx, "Deny") })
}

// checkOldConfigChanges: a claim and a class whose configuration the policy would refuse, and that were written before it, can be changed
// in all else, above all lose their finalizers; a change of the configuration is refused.
func (l *draLab) checkOldConfigChanges(t *testing.T, claim *resourceapi.ResourceClaim, deny func(context.Context) error) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "misspelled"}}
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: claim.Spec.Devices.Config[0].DeviceConfiguration}}
	classes, claims := l.Client().ResourceV1().DeviceClasses(), l.Client().ResourceV1().ResourceClaims(claim.Namespace)
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = classes.Delete(context.Background(), class.Name, metav1.DeleteOptions{}) })
	if err := deny(t.Context()); err != nil {
		t.Fatal(err)
	}
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	waitUntil(t, 20*time.Second, "the policy refuses what is created", func(ctx context.Context) error {
		if _, err := claims.Create(ctx, claim, metav1.CreateOptions{DryRun: dry.DryRun}); !apierrors.IsInvalid(err) {
			return fmt.Errorf("a claim was created: %v", err)
		}
		return nil
	})
	if _, err := claims.Patch(t.Context(), claim.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), dry); err != nil {
		t.Errorf("take the finalizers from a claim: %v", err)
	}
	if _, err := classes.Patch(t.Context(), class.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"selectors":null}}`), dry); err != nil {
		t.Errorf("change a label of a class: %v", err)
	}
	changed := `[{"op":"replace","path":"/spec/config/0/opaque/parameters/sharing/timeSlice","value":"shirt"}]`
	if _, err := classes.Patch(t.Context(), class.Name, types.JSONPatchType, []byte(changed), dry); !apierrors.IsInvalid(err) {
		t.Errorf("change the configuration of a class: %v, want it refused", err)
	}
}

// waitEventOf waits until an object of the default namespace has an event with the reason, whose message has all texts.
func (l *draLab) waitEventOf(t testing.TB, kind, name, reason string, texts ...string) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("%s %s has an event %s with %q", kind, name, reason, texts), func(ctx context.Context) error {
		list, err := l.Client().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.kind=" + kind + ",involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var messages []string
		for i := range list.Items {
			if messages = append(messages, list.Items[i].Message); hasAll(list.Items[i].Message, texts) {
				return nil
			}
		}
		return fmt.Errorf("they are %q", messages)
	})
}
