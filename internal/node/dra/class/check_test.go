package class

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCheck(t *testing.T) {
	const driver = "gpu.berth.dev"
	of := func(name, extended, driver string, created int) resourceapi.DeviceClass {
		class := deviceClass(name, extended, driver)
		if class.CreationTimestamp = metav1.NewTime(time.Unix(int64(created), 0)); extended == "" {
			class.Spec.ExtendedResourceName = nil
		}
		return class
	}
	type classes []resourceapi.DeviceClass
	tests := map[string]struct {
		served  []string
		classes classes
		want    []string
	}{
		"nothing served": {classes: classes{of("a", "nvidia.com/gpu", "gpu.nvidia.com", 1)}},
		"one class":      {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "nvidia.com/gpu", driver, 1), of("b", "nvidia.com/mig-1g.5gb", driver, 1)}},
		"none":           {served: []string{"nvidia.com/gpu"}, want: []string{"MISSING: no DeviceClass has the extendedResourceName nvidia.com/gpu"}},
		"without the name": {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "", driver, 1)},
			want: []string{"MISSING: the DeviceClasses have no extendedResourceName, so pods that request nvidia.com/gpu get no GPU of this node: the API server drops the field"}},
		"one without the name": {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "", driver, 1), of("b", "nvidia.com/mig-1g.5gb", driver, 1)},
			want: []string{"MISSING: no DeviceClass has the extendedResourceName nvidia.com/gpu"}},
		"of another driver": {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "nvidia.com/gpu", "gpu.nvidia.com", 1)},
			want: []string{"MISSING: Kubernetes uses DeviceClass a for the extended resource nvidia.com/gpu, and none of its selectors names the driver gpu.berth.dev"}},
		"of a driver with a longer name": {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "nvidia.com/gpu", "x."+driver, 1)},
			want: []string{"MISSING: Kubernetes uses DeviceClass a"}},
		"the later created is another driver's": {served: []string{"nvidia.com/gpu"}, classes: classes{of("b", "nvidia.com/gpu", driver, 1), of("a", "nvidia.com/gpu", "gpu.nvidia.com", 2)},
			want: []string{"MISSING: Kubernetes uses DeviceClass a "}},
		"the later created is ours": {served: []string{"nvidia.com/gpu"}, classes: classes{of("a", "nvidia.com/gpu", "gpu.nvidia.com", 1), of("b", "nvidia.com/gpu", driver, 2)},
			want: []string{"AMBIGUOUS: the DeviceClasses b, a have the extendedResourceName nvidia.com/gpu, and Kubernetes uses b,"}},
		"created at the same time": {served: []string{"nvidia.com/gpu"}, classes: classes{of("b", "nvidia.com/gpu", driver, 1), of("a", "nvidia.com/gpu", driver, 1)},
			want: []string{"AMBIGUOUS: the DeviceClasses a, b have the extendedResourceName nvidia.com/gpu, and Kubernetes uses a,"}},
		"two names": {served: []string{"nvidia.com/gpu", "nvidia.com/a", "nvidia.com/gpu"},
			want: []string{"MISSING: no DeviceClass has the extendedResourceName nvidia.com/a", "MISSING: no DeviceClass has the extendedResourceName nvidia.com/gpu"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Check(driver, test.served, test.classes)
			for i, finding := range got {
				text := strings.TrimPrefix(finding.Code, "DEVICE_CLASS_") + ": " + finding.Message
				if i >= len(test.want) || !strings.HasPrefix(text, test.want[i]) {
					t.Errorf("finding %d: %s", i, text)
				}
			}
			if len(got) != len(test.want) {
				t.Errorf("got %v, want %q", got, test.want)
			}
		})
	}
}
