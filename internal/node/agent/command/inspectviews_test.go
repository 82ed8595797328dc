package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// lookNode has one GPU that reports its memory and one that does not.
func lookNode() lookDeps {
	return lookDeps{
		Config: &v1alpha1.AgentConfig{ScanDeadline: &metav1.Duration{Duration: time.Minute},
			ResourceName: "nvidia.com/gpu", NodeName: "node-0"},
		Scan: func(context.Context) (gpu.Snapshot, gpu.Sample, error) {
			return gpu.Snapshot{
				Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.Version{Major: 13}}}},
				GPUs: []gpu.GPU{
					{Vendor: gpu.NVIDIA, UUID: "GPU-1", Product: "NVIDIA A100", MemoryBytes: 40 << 30, NUMANode: 1},
					{Vendor: gpu.NVIDIA, UUID: "GPU-2", Index: 1, Product: "NVIDIA A100", NUMANode: gpu.NoNUMANode},
				},
			}, gpu.Sample{}, nil
		},
		Offers: offer.Settings{ResourceName: "nvidia.com/gpu"}, LabelVendors: []labels.Vendor{gpulabels.Vendor{}},
		Spec: func(context.Context, *gpu.Snapshot) ([]byte, error) { return []byte("the spec"), nil },
	}
}

func printed(t *testing.T, deps lookDeps, view inspectView, asJSON bool) string {
	t.Helper()
	result, err := look(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	if err := result.Print(t.Context(), &out, &errOut, view, asJSON); err != nil {
		t.Fatal(err)
	}
	return out.String() + errOut.String()
}

// TestPrintViews checks that each view has a readable form and a JSON form.
func TestPrintViews(t *testing.T) {
	for v, want := range map[inspectView][]string{
		viewGPUs:    {"driver 580.95.05, CUDA 13.0", "40960 MiB", "GPU-2"},
		viewDevices: {"RESOURCE", "nvidia.com/gpu", "Healthy"},
		viewCDI:     {"the spec"},
		viewLabels:  {"nvidia.com/gpu.count=2"},
		viewMetrics: {"berth_"},
	} {
		text := printed(t, lookNode(), v, false)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q is missing in\n%s", v, part, text)
			}
		}
		if v == viewCDI {
			continue
		}
		var object struct{ APIVersion, Kind string }
		if err := json.Unmarshal([]byte(printed(t, lookNode(), v, true)),
			&object); err != nil || object.APIVersion != v1alpha1.GroupVersion().String() || object.Kind == "" {
			t.Errorf("%s as JSON is %+v, %v; want a versioned object", v, object, err)
		}
	}
	result, err := look(t.Context(), lookNode())
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Print(t.Context(), nil, nil, "cards", false); err == nil {
		t.Error("an unknown view is printed")
	}
}

// TestPrintDevicesNamesProblems checks that a rule that selects nothing is reported in addition to the list.
func TestPrintDevicesNamesProblems(t *testing.T) {
	deps := lookNode()
	deps.Offers.GPUs = []offer.GPURule{{Select: offer.GPUSelect{Index: []int{9}}, ResourceName: "nvidia.com/other"}}
	if text := printed(t, deps, viewDevices, false); !strings.Contains(text, "RULE_DEVICE_UNKNOWN: ") {
		t.Errorf("the rule is not reported:\n%s", text)
	}
}

// TestLookFails checks the error of a failed scan, and that of a driver that hangs, which is returned in time.
func TestLookFails(t *testing.T) {
	deps := lookNode()
	broken := errors.New("broken")
	deps.Scan = func(context.Context) (gpu.Snapshot, gpu.Sample, error) { return gpu.Snapshot{}, gpu.Sample{}, broken }
	if _, err := look(t.Context(), deps); !errors.Is(err, broken) {
		t.Errorf("a failed scan: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		deps.Scan = func(context.Context) (gpu.Snapshot, gpu.Sample, error) {
			<-hang
			return gpu.Snapshot{}, gpu.Sample{}, nil
		}
		began := time.Now()
		if _, err := look(t.Context(), deps); err == nil || !strings.Contains(err.Error(),
			"within 1m0s") || time.Since(began) != time.Minute {
			t.Errorf("a scan that hangs: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := look(ctx, deps); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that leaves: %v", err)
		}
	})
}

// TestPrintSeveralVendors: the table has the driver and the viewGPUs of each vendor, whose indices are the same.
func TestPrintSeveralVendors(t *testing.T) {
	deps := lookNode()
	scan := deps.Scan
	deps.Scan = func(ctx context.Context) (gpu.Snapshot, gpu.Sample, error) {
		s, sample, err := scan(ctx)
		s.Vendors = append([]gpu.VendorState{{Name: "example", Driver: gpu.Driver{Version: "1.0"}}}, s.Vendors...)
		s.GPUs = append([]gpu.GPU{{Vendor: "example", UUID: "EX-0", NUMANode: gpu.NoNUMANode}}, s.GPUs...)
		return s, sample, err
	}
	text := printed(t, deps, viewGPUs, false)
	for _, line := range []string{"example driver 1.0\n", "nvidia driver 580.95.05, CUDA 13.0\n", "VENDOR    INDEX", "example   0       EX-0", "nvidia    0       GPU-1"} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
	if text := printed(t, lookNode(), viewGPUs, false); strings.Contains(text, "VENDOR") || !strings.HasPrefix(text, "driver 580.95.05, CUDA 13.0\n") {
		t.Errorf("one vendor is printed as\n%s", text)
	}
}
