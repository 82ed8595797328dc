package dcgm_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/dcgm"
)

func TestParse(t *testing.T) {
	const temperature = "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C)."
	entry := func(line int) dcgm.Entry {
		return dcgm.Entry{Line: line, Name: "DCGM_FI_DEV_GPU_TEMP", Type: dcgm.Gauge, Help: "GPU temperature (in C)."}
	}
	for title, test := range map[string]struct {
		list     string
		want     []dcgm.Entry
		mistakes []string
	}{
		"nothing":                     {list: ""},
		"comments and empty lines":    {list: "# Format\n\n  # DCGM_FI_DEV_SM_CLOCK, gauge, x\n"},
		"spaces, as in NVIDIA's file": {list: "DCGM_FI_DEV_GPU_TEMP ,  gauge,   GPU temperature (in C).\r\n", want: []dcgm.Entry{entry(1)}},
		"a byte order mark":           {list: "\ufeff" + temperature, want: []dcgm.Entry{entry(1)}},
		"commas and quotes in a help": {
			list: "DCGM_FI_DEV_GPU_TEMP,counter,\"one, two\"",
			want: []dcgm.Entry{{Line: 1, Name: "DCGM_FI_DEV_GPU_TEMP", Type: dcgm.Counter, Help: "one, two"}},
		},
		"quotes around each column": {
			list: "\"DCGM_FI_DEV_GPU_TEMP\",\"gauge\",\"GPU temperature (in C).\"\r\n# x\n\"DCGM_FI_DEV_SM_CLOCK\", \"counter\", \"say \"\"SM\"\", and more\"",
			want: []dcgm.Entry{entry(1), {Line: 3, Name: "DCGM_FI_DEV_SM_CLOCK", Type: dcgm.Counter, Help: "say \"SM\", and more"}},
		},
		"quotes around one column": {list: "\"DCGM_FI_DEV_GPU_TEMP\",gauge,GPU temperature (in C).", want: []dcgm.Entry{entry(1)}},
		"commas without quotes": {
			list: "DCGM_FI_DEV_SM_CLOCK, gauge, one, \"two\", three",
			want: []dcgm.Entry{{Line: 1, Name: "DCGM_FI_DEV_SM_CLOCK", Type: dcgm.Gauge, Help: "one, \"two\", three"}},
		},
		"quotes within a help": {
			list: "DCGM_FI_DEV_SM_CLOCK, gauge, the \"SM\" clock",
			want: []dcgm.Entry{{Line: 1, Name: "DCGM_FI_DEV_SM_CLOCK", Type: dcgm.Gauge, Help: "the \"SM\" clock"}},
		},
		"a quote that does not end": {
			list: "\"DCGM_FI_DEV_SM_CLOCK, gauge, x\n" + temperature, want: []dcgm.Entry{entry(2)},
			mistakes: []string{`line 1: "\"DCGM_FI_DEV_SM_CLOCK, gauge, x" has one column: the quotes do not end behind the name; write FIELD, type, help`},
		},
		"a help of two lines": {
			list:     "\"DCGM_FI_DEV_SM_CLOCK\",\"gauge\",\"one\ntwo\"\n" + temperature,
			want:     []dcgm.Entry{{Line: 1, Name: "DCGM_FI_DEV_SM_CLOCK", Type: dcgm.Gauge, Help: "one"}, entry(3)},
			mistakes: []string{`line 2: "two\"" has no comma`},
		},
		"a name of dcgm-exporter 1.x": {
			list: "dcgm_gpu_temp,    gauge, GPU temperature (in C).\n" + temperature, want: []dcgm.Entry{entry(2)},
			mistakes: []string{"line 1: dcgm_gpu_temp is a name of dcgm-exporter 1.x; write DCGM_FI_DEV_GPU_TEMP"},
		},
		"another name with small letters": {
			list: "dcgm_gpu_heat, gauge, x", mistakes: []string{`line 1: "dcgm_gpu_heat" is not the name of a field`},
		},
		"an unknown type": {
			list: "DCGM_FI_DEV_SM_CLOCK, guage, x\n" + temperature, want: []dcgm.Entry{entry(2)},
			mistakes: []string{`line 1: the type "guage" of DCGM_FI_DEV_SM_CLOCK is unknown; did you mean gauge? write gauge, counter or label`},
		},
		"no comma": {
			list:     "# a comment\nDCGM_FI_DEV_SM_CLOCK gauge",
			mistakes: []string{`line 2: "DCGM_FI_DEV_SM_CLOCK gauge" has no comma; write FIELD, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).`},
		},
		"no help": {
			list:     "DCGM_FI_DEV_SM_CLOCK, gauge\nDCGM_FI_DEV_SM_CLOCK, gauge, \"\"\n",
			mistakes: []string{"line 1: DCGM_FI_DEV_SM_CLOCK has no help; write", "line 2: DCGM_FI_DEV_SM_CLOCK has no help; write"},
		},
		"no name of a field": {
			list:     "berth_gpu_info, gauge, x",
			mistakes: []string{`line 1: "berth_gpu_info" is not the name of a field; names begin with DCGM_FI_ or DCGM_EXP_;`},
		},
		"a field twice": {
			list: temperature + "\n" + temperature, want: []dcgm.Entry{entry(1)},
			mistakes: []string{"line 2: DCGM_FI_DEV_GPU_TEMP is in line 1 too; keep one of the two lines"},
		},
		"not UTF-8": {list: "DCGM_FI_DEV_SM_CLOCK, gauge, \xff", mistakes: []string{"line 1: the text is not UTF-8; save the file as UTF-8"}},
		"control characters in a help": {
			list: "DCGM_FI_DEV_SM_CLOCK, gauge, a\x01b\x7fc\x1b[31m",
			want: []dcgm.Entry{{Line: 1, Name: "DCGM_FI_DEV_SM_CLOCK", Type: dcgm.Gauge, Help: "a b c [31m"}},
		},
		"a help of a novel": {list: "DCGM_FI_DEV_SM_CLOCK, gauge, " + strings.Repeat("x", 501), mistakes: []string{"line 1: the help of DCGM_FI_DEV_SM_CLOCK has 501 characters; write at most 500"}},
		"too many lines": {
			list: temperature + strings.Repeat("\n", dcgm.MaxLines), want: []dcgm.Entry{entry(1)},
		},
		"one line more": {
			list: temperature + strings.Repeat("\n", dcgm.MaxLines) + "DCGM_FI_DEV_SM_CLOCK, gauge, x", want: []dcgm.Entry{entry(1)},
			mistakes: []string{"line 1001: the list has more than 1000 lines; remove comments"},
		},
		"too large": {
			list: temperature + "\n#" + strings.Repeat("x", dcgm.MaxBytes) + "\nDCGM_FI_DEV_SM_CLOCK, gauge, x", want: []dcgm.Entry{entry(1)},
			mistakes: []string{"line 1: the list is larger than 64 KiB, and ends here; remove comments"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got, mistakes := dcgm.Parse(test.list)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if len(mistakes) != len(test.mistakes) {
				t.Fatalf("mistakes: got %v, want %q", mistakes, test.mistakes)
			}
			for i, m := range mistakes {
				if !strings.HasPrefix(m.String(), test.mistakes[i]) {
					t.Errorf("mistake %d: got %q, want %q", i, m, test.mistakes[i])
				}
			}
		})
	}
}

// legacy are the names in dcgm-exporter's 1.x-compatibility-metrics.csv, active or commented out, in its order.
const legacy = `
sm_clock memory_clock memory_temp gpu_temp power_usage total_energy_consumption pcie_tx_throughput pcie_rx_throughput pcie_replay_counter
gpu_utilization mem_copy_utilization enc_utilization dec_utilization xid_errors power_violation thermal_violation sync_boost_violation
board_limit_violation low_util_violation reliability_violation fb_free fb_used ecc_sbe_volatile_total ecc_dbe_volatile_total
ecc_sbe_aggregate_total ecc_dbe_aggregate_total retired_pages_sbe retired_pages_dbe retired_pages_pending nvlink_flit_crc_error_count_total
nvlink_data_crc_error_count_total nvlink_replay_error_count_total nvlink_recovery_error_count_total nvlink_bandwidth_total
fi_prof_gr_engine_active fi_prof_sm_active fi_prof_sm_occupancy fi_prof_pipe_tensor_active fi_prof_dram_active fi_prof_pcie_tx_bytes
fi_prof_pcie_rx_bytes`

// TestLegacyNames checks that each name of dcgm-exporter 1.x is refused with another field of the table.
func TestLegacyNames(t *testing.T) {
	fields, used := map[string]bool{}, map[string]string{}
	for _, f := range dcgm.Fields() {
		fields[f.Name] = f.Reason == ""
	}
	for short := range strings.FieldsSeq(legacy) {
		entries, mistakes := dcgm.Parse("dcgm_" + short + ", gauge, x")
		if len(entries) != 0 || len(mistakes) != 1 {
			t.Errorf("dcgm_%s: entries %v, mistakes %v", short, entries, mistakes)
			continue
		}
		name, ok := strings.CutPrefix(mistakes[0].Fix, "write ")
		if !ok || !fields[name] || used[name] != "" {
			t.Errorf("dcgm_%s: %q names no field with a value, or that of dcgm_%s", short, mistakes[0], used[name])
		}
		used[name] = short
	}
	if len(used) != 41 {
		t.Errorf("%d names, want 41", len(used))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n# x\nDCGM_FI_DEV_SM_CLOCK,counter,\"a, b\"\n")
	f.Add("\"DCGM_FI_DEV_GPU_TEMP\",\"gauge\",\"a \"\"b\"\", c\"\n\"DCGM_FI_DEV_SM_CLOCK, gauge\ndcgm_gpu_temp, gauge, x\n")
	f.Add("\ufeff,,\n\x00\xff,\n")
	f.Fuzz(func(t *testing.T, list string) {
		entries, mistakes := dcgm.Parse(list)
		if len(entries) > dcgm.MaxLines || len(mistakes) > dcgm.MaxLines+1 {
			t.Fatalf("%d entries, %d mistakes", len(entries), len(mistakes))
		}
		last := 0
		for _, e := range entries {
			if e.Line <= last || e.Name == "" || e.Help == "" || strings.ContainsAny(e.Help, "\n\\") || !utf8.ValidString(e.Help) {
				t.Fatalf("entry %+v after line %d", e, last)
			}
			last = e.Line
		}
		for _, m := range mistakes {
			if m.Line < 0 || m.What == "" || m.Fix == "" || strings.Contains(m.String(), "\n") {
				t.Fatalf("mistake %+v", m)
			}
		}
		exports, refused := dcgm.Select(dcgm.Defaults(), entries)
		if len(exports) > len(dcgm.Defaults())+len(entries) || len(refused) > len(entries) {
			t.Fatalf("%d exports and %d refusals of %d entries", len(exports), len(refused), len(entries))
		}
	})
}
