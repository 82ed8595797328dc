package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cli/print"
)

func quotaPod(namespace, name string, phase corev1.PodPhase, gpus string) corev1.Pod {
	list := corev1.ResourceList{"example.com/gpu": resource.MustParse(gpus)}
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{Phase: phase},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}}}
}

// TestQuotaTable checks what the command shows of quotas, pods and claims.
func TestQuotaTable(t *testing.T) {
	one := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.berth.dev", AllocationMode: "ExactCount", Count: 2}}
	}
	either := resourceapi.DeviceRequest{Name: "e", FirstAvailable: []resourceapi.DeviceSubRequest{{DeviceClassName: "gpu.berth.dev", Count: 1}, {DeviceClassName: "gpu.berth.dev", Count: 4},
		{DeviceClassName: "another", Count: 9}}}
	objects := quotaObjects{resources: map[string]bool{"example.com/gpu": true}}
	objects.quotas = []corev1.ResourceQuota{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "by-hand"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"example.com/gpu": resource.MustParse("16"), "limits.example.com/gpu": resource.MustParse("8"), "pods": resource.MustParse("5"), "requests.another.com/x": resource.MustParse("5")}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team", Annotations: map[string]string{"berth.dev/gpu-quota": "team"}},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.example.com/gpu": resource.MustParse("4"), "requests.example.com/old": resource.MustParse("4"),
				"gpu.berth.dev.deviceclass.resource.k8s.io/devices": resource.MustParse("4"), "requests.deviceclass.resource.kubernetes.io/gpu.berth.dev": resource.MustParse("4")}},
			Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{"requests.example.com/gpu": resource.MustParse("3"), "gpu.berth.dev.deviceclass.resource.k8s.io/devices": resource.MustParse("8")}}},
	}
	objects.pods = []corev1.Pod{quotaPod("a", "small", corev1.PodPending, "1"), quotaPod("a", "large", corev1.PodRunning, "2"), quotaPod("a", "ended", corev1.PodSucceeded, "1"),
		quotaPod("a", "small-2", corev1.PodRunning, "1"), quotaPod("a", "small-3", corev1.PodRunning, "1"), quotaPod("b", "other", corev1.PodRunning, "1")}
	all := resourceapi.DeviceRequest{Name: "all", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.berth.dev", AllocationMode: "All"}}
	eitherAll := resourceapi.DeviceRequest{Name: "e", FirstAvailable: []resourceapi.DeviceSubRequest{{DeviceClassName: "gpu.berth.dev", AllocationMode: "ExactCount", Count: 4},
		{DeviceClassName: "gpu.berth.dev", AllocationMode: "All"}, {DeviceClassName: "gpu.berth.dev", AllocationMode: "Unknown", Count: 99}}}
	objects.claims = []resourceapi.ResourceClaim{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "of-all"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{all}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "either"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{all, eitherAll}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "claim"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{one("x"), one("y"), either}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "other"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{one("x")}}}},
	}
	var out strings.Builder
	if err := quotaTable(&out, objects.report(), &print.Flags{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"NAMESPACE QUOTA GPUQUOTA NAME USED HARD USED BY",
		"a gpu-quota-team team gpu.berth.dev.deviceclass.resource.k8s.io/devices 8 4 either (64), of-all (32), claim (8)",
		"a gpu-quota-team team requests.deviceclass.resource.kubernetes.io/gpu.berth.dev 0 4 -",
		"a gpu-quota-team team requests.example.com/gpu 3 4 large (2), small (1), small-2 (1), 1 more",
		"a gpu-quota-team team requests.example.com/old 0 4 -",
		"b by-hand - example.com/gpu not counted 16 write requests.example.com/gpu",
		"b by-hand - limits.example.com/gpu not counted 8 write requests.example.com/gpu",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	out.Reset()
	// Of a GPUQuota, names that nothing uses and that no node has devices under.
	idle := quotaObjects{quotas: []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team",
		Annotations: map[string]string{"berth.dev/gpu-quota": "team", "berth.dev/gpu-quota-names": "gpu.berth.dev.deviceclass.resource.k8s.io/devices=whole,requests.example.com/gpu"}},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.example.com/gpu": resource.MustParse("4"), "requests.example.com/mig": resource.MustParse("4"),
			"requests.example.com/used": resource.MustParse("4"), "requests.deviceclass.resource.kubernetes.io/gpu.berth.dev": resource.MustParse("4"),
			"requests.deviceclass.resource.kubernetes.io/mig.gpu.berth.dev": resource.MustParse("4")}},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{"requests.example.com/used": resource.MustParse("1")}}}}}
	out.Reset()
	if err := quotaTable(&out, idle.report(), &print.Flags{}); err != nil || strings.Count(out.String(), "\n") != 5 || strings.Contains(out.String(), "mig") ||
		!strings.Contains(out.String(), "2 more names are limited, which nothing uses") {
		t.Errorf("of names without devices it prints\n%s%v", out.String(), err)
	}
	out.Reset()
	empty := quotaObjects{}
	if err := quotaTable(&out, empty.report(), &print.Flags{}); err != nil || !strings.HasPrefix(out.String(), "no ResourceQuota limits GPUs") {
		t.Errorf("without quotas it prints %q, %v", out.String(), err)
	}
}
