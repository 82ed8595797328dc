package dcgm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// published are the fields in dcgm-exporter's default-counters.csv and dcp-metrics-included.csv, active or commented out, and those that it
// makes itself. The names in its 1.x-compatibility-metrics.csv are in legacy.
const published = `
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_TX_THROUGHPUT PCIE_RX_THROUGHPUT PCIE_REPLAY_COUNTER
GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL XID_ERRORS POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION
LOW_UTIL_VIOLATION RELIABILITY_VIOLATION FB_FREE FB_USED FB_RESERVED ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL
ECC_DBE_AGG_TOTAL RETIRED_SBE RETIRED_DBE RETIRED_PENDING NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
NVLINK_REPLAY_ERROR_COUNT_TOTAL NVLINK_RECOVERY_ERROR_COUNT_TOTAL NVLINK_BANDWIDTH_TOTAL NVLINK_BANDWIDTH_L0 VGPU_LICENSE_STATUS
UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE BRAND SERIAL OEM_INFOROM_VER ECC_INFOROM_VER POWER_INFOROM_VER
INFOROM_IMAGE_VER VBIOS_VERSION
PROF_GR_ENGINE_ACTIVE PROF_SM_ACTIVE PROF_SM_OCCUPANCY PROF_PIPE_TENSOR_ACTIVE PROF_DRAM_ACTIVE PROF_PIPE_FP64_ACTIVE
PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES
FI_DRIVER_VERSION FI_NVML_VERSION EXP_CLOCK_EVENTS_COUNT EXP_XID_ERRORS_COUNT EXP_GPU_HEALTH_STATUS EXP_P2P_STATUS`

// fullName returns the name of a field of published.
func fullName(short string) string {
	switch {
	case strings.HasPrefix(short, "PROF_"):
		return "DCGM_FI_" + short
	case strings.HasPrefix(short, "FI_"), strings.HasPrefix(short, "EXP_"):
		return "DCGM_" + short
	}
	return "DCGM_FI_DEV_" + short
}

// TestFields checks that the table has each published field once, each with a value and its source, or with the reason.
func TestFields(t *testing.T) {
	known := map[string]bool{}
	for _, f := range dcgm.Fields() {
		if known[f.Name] {
			t.Errorf("%s is in the table twice", f.Name)
		}
		known[f.Name] = true
		given := f.Of != nil || f.Type == dcgm.Label || f.Name == dcgm.LastXID || f.Name == dcgm.XIDCount
		if given == (f.Reason != "") || given != (f.Source != "" && f.Help != "" && f.Type != "") || (f.Of != nil) != (len(f.Measures) > 0) {
			t.Errorf("%s has neither a value with type, help and source nor a reason, or both: %+v", f.Name, f)
		}
		if f.Of == nil {
			continue
		}
		var readings gpu.Readings
		if value, ok := f.Of(&readings); ok {
			t.Errorf("%s is %v without a reading", f.Name, value)
		}
		for i, m := range f.Measures {
			readings.Set(m, float64(2*i+1)) // a size is larger than what is used of it
		}
		if f.Name == "DCGM_FI_DEV_FB_USED_PERCENT" {
			readings.Set(gpu.MemorySize, 1<<30)
		}
		if _, ok := f.Of(&readings); !ok {
			t.Errorf("%s has no value with all its readings", f.Name)
		}
	}
	for short := range strings.FieldsSeq(published) {
		if !known[fullName(short)] {
			t.Errorf("%s is not in the table", fullName(short))
		}
	}
}

// TestUnits compares values with the units that dcgm-exporter has.
func TestUnits(t *testing.T) {
	var r gpu.Readings
	for m, value := range map[gpu.Measure]float64{
		gpu.ClockSM: 1.41e9, gpu.MemorySize: 80 << 30, gpu.MemoryUsed: 20 << 30, gpu.MemoryReserved: 40 << 30, gpu.EnergyTotal: 1.5, gpu.ViolationPower: 1.5,
		gpu.UtilizationGPU: 0.07, gpu.FanSpeed: 0.3, gpu.PCIeTransmit: 2e9, gpu.NVLinkTransmitTotal: 2048, gpu.NVLinkReceiveTotal: 1024, gpu.SMActive: 0.4,
	} {
		r.Set(m, value)
	}
	got := map[string]float64{}
	for _, f := range dcgm.Fields() {
		if f.Of != nil {
			if value, ok := f.Of(&r); ok {
				got[f.Name] = value
			}
		}
	}
	want := map[string]float64{
		"DCGM_FI_DEV_SM_CLOCK": 1410, "DCGM_FI_DEV_FB_TOTAL": 81920, "DCGM_FI_DEV_FB_USED": 20480, "DCGM_FI_DEV_FB_RESERVED": 40960,
		"DCGM_FI_DEV_FB_USED_PERCENT": 0.5, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1500, "DCGM_FI_DEV_POWER_VIOLATION": 1.5e9, "DCGM_FI_DEV_GPU_UTIL": 7,
		"DCGM_FI_DEV_FAN_SPEED": 30, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": 2e6, "DCGM_FI_PROF_PCIE_TX_BYTES": 2e9, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 3,
		"DCGM_FI_PROF_SM_ACTIVE": 0.4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestSelect(t *testing.T) {
	for title, test := range map[string]struct {
		entry   dcgm.Entry
		want    string // the type and the help of the export; empty for none
		refused string // the beginning of the reason
	}{
		"a field that no list needs":     {dcgm.Entry{Name: "DCGM_FI_DEV_GPU_TEMP", Type: dcgm.Gauge, Help: "mine"}, "gauge mine", ""},
		"a further field":                {dcgm.Entry{Name: "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Type: dcgm.Counter, Help: "mine"}, "counter mine", ""},
		"with another type":              {dcgm.Entry{Name: "DCGM_FI_PROF_SM_ACTIVE", Type: dcgm.Counter, Help: "mine"}, "counter mine", ""},
		"a count of XIDs":                {dcgm.Entry{Name: dcgm.XIDCount, Type: dcgm.Gauge, Help: "mine"}, "gauge mine", ""},
		"the label that all series have": {dcgm.Entry{Name: "DCGM_FI_DRIVER_VERSION", Type: dcgm.Label, Help: "mine"}, "", ""},
		"a text as a number":             {dcgm.Entry{Name: "DCGM_FI_DRIVER_VERSION", Type: dcgm.Gauge, Help: "mine"}, "", "it is a text; list it as label"},
		"a number as a label":            {dcgm.Entry{Name: "DCGM_FI_DEV_GPU_TEMP", Type: dcgm.Label, Help: "mine"}, "", "a label whose value changes"},
		"a label that there is not":      {dcgm.Entry{Name: "DCGM_FI_DEV_SERIAL", Type: dcgm.Label, Help: "mine"}, "", "Berth has no label with it"},
		"DCGM's own health":              {dcgm.Entry{Name: "DCGM_EXP_GPU_HEALTH_STATUS", Type: dcgm.Gauge, Help: "mine"}, "", "it is the verdict of the health watches"},
		"one link":                       {dcgm.Entry{Name: "DCGM_FI_DEV_NVLINK_BANDWIDTH_L7", Type: dcgm.Counter, Help: "mine"}, "", "Berth reads the sum over all NVLinks"},
		"a profiling field of DCGM":      {dcgm.Entry{Name: "DCGM_FI_PROF_C2C_TX_ALL_BYTES", Type: dcgm.Gauge, Help: "mine"}, "", "it is a profiling field that needs DCGM's host engine"},
		"a misspelled field":             {dcgm.Entry{Name: "DCGM_FI_DEV_GPU_TMP", Type: dcgm.Gauge, Help: "mine"}, "", "there is no field of this name; did you mean DCGM_FI_DEV_GPU_TEMP?"},
		"another field":                  {dcgm.Entry{Name: "DCGM_FI_DEV_ACCOUNTING_DATA", Type: dcgm.Gauge, Help: "mine"}, "", "Berth does not measure it"},
	} {
		t.Run(title, func(t *testing.T) {
			exports, refused := dcgm.Select(dcgm.Defaults(), []dcgm.Entry{test.entry})
			got, reason := "", ""
			if i := slices.IndexFunc(exports, func(e dcgm.Export) bool { return e.Name == test.entry.Name && e.Listed }); i >= 0 {
				got = string(exports[i].Type) + " " + exports[i].Help
			}
			if len(refused) > 0 {
				reason = refused[0].Reason
			}
			if got != test.want || !strings.HasPrefix(reason, test.refused) || (reason == "") != (test.refused == "") {
				t.Errorf("exported as %q, refused because %q; want %q, %q", got, reason, test.want, test.refused)
			}
		})
	}
	if n := len(dcgm.Defaults()); n != 25 {
		t.Errorf("%d fields are exported without a list, want the 25 of dcgm-exporter", n)
	}
}

// TestOptional: without a list no measure is read that is read only where it is asked for.
func TestOptional(t *testing.T) {
	if list := dcgm.Optional(dcgm.Defaults()); len(list) != 0 {
		t.Errorf("without a list %v are read", list)
	}
	entries, _ := dcgm.Parse("DCGM_FI_DEV_PSTATE, gauge, x\nDCGM_FI_DEV_POWER_MGMT_LIMIT, gauge, x\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, x\n")
	exports, _ := dcgm.Select(nil, entries)
	if diff := cmp.Diff([]gpu.Measure{gpu.PowerLimitSet, gpu.PerformanceState}, dcgm.Optional(exports)); diff != "" {
		t.Errorf("measures (-want +got):\n%s", diff)
	}
}
