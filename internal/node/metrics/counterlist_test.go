package metrics_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

func TestReadCounterList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.csv")
	write := func(text string) string {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for title, test := range map[string]struct {
		defaults bool
		file     string
		inline   string
		want     []string // name, type and help of each field
		optional int
		problems []string
	}{
		"nothing": {},
		"inline": {
			inline: "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, a\nDCGM_FI_DEV_PSTATE, gauge, b\n",
			want:   []string{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter a", "DCGM_FI_DEV_PSTATE gauge b"}, optional: 1,
		},
		"a file, and a field of it inline": {
			file: "DCGM_FI_DEV_PSTATE, gauge, of the file\n# x\nDCGM_FI_DEV_FB_TOTAL, gauge, c\n", inline: "DCGM_FI_DEV_PSTATE, gauge, mine",
			want: []string{"DCGM_FI_DEV_PSTATE gauge mine", "DCGM_FI_DEV_FB_TOTAL gauge c"}, optional: 1,
		},
		"lines that cannot be read": {
			file: "DCGM_FI_DEV_PSTATE\nDCGM_FI_DEV_FB_TOTAL, gauge, c\n" + strings.Repeat("x\n", 11),
			want: []string{"DCGM_FI_DEV_FB_TOTAL gauge c"},
			problems: []string{"DCGM_COUNTERS_INVALID " + path + `: line 1: "DCGM_FI_DEV_PSTATE" has no comma; write FIELD, type, help, such as: ` +
				`DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).; line 3: "x" has no comma`},
		},
		"a file that was emptied": {
			file: "# nothing\n", inline: "DCGM_FI_DEV_FB_TOTAL, gauge, c", want: []string{"DCGM_FI_DEV_FB_TOTAL gauge c"},
			problems: []string{"DCGM_COUNTERS_INVALID read list of counters: " + path + " lists no field"},
		},
		"fields without a value, by reason": {
			inline: "DCGM_FI_DEV_SERIAL, label, a\nDCGM_EXP_P2P_STATUS, gauge, b\nDCGM_FI_DEV_FB_TOTAL, gauge, c\nDCGM_FI_DEV_BRAND, label, d\n",
			want:   []string{"DCGM_FI_DEV_FB_TOTAL gauge c"},
			problems: []string{
				"DCGM_FIELD_UNAVAILABLE DCGM_FI_DEV_SERIAL, DCGM_FI_DEV_BRAND: Berth has no label with it",
				"DCGM_FIELD_UNAVAILABLE DCGM_EXP_P2P_STATUS: dcgm-exporter computes it for each pair",
			},
		},
	} {
		t.Run(title, func(t *testing.T) {
			config := &v1alpha1.AgentConfig{DCGMCounters: v1alpha1.Lines(test.inline)}
			if test.file != "" {
				config.DCGMCountersFile = write(test.file)
			}
			list := metrics.ReadCounterList(config)
			var got []string
			for _, f := range list.Fields {
				got = append(got, f.Name+" "+string(f.Type)+" "+f.Help)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || len(list.Optional) != test.optional {
				t.Errorf("%d optional measures, fields (-want +got):\n%s", len(list.Optional), diff)
			}
			if len(list.Problems) != len(test.problems) {
				t.Fatalf("problems: %v", list.Problems)
			}
			for i, p := range list.Problems {
				if message := p.Code + " " + p.Message; !strings.HasPrefix(message, test.problems[i]) {
					t.Errorf("problem %d is %q, want %q", i, message, test.problems[i])
				}
			}
		})
	}
}

// TestReadDefaults: dcgmNames alone gives the default fields, and a file that is missing takes none of them away.
func TestReadDefaults(t *testing.T) {
	list := metrics.ReadCounterList(&v1alpha1.AgentConfig{DCGMNames: true, DCGMCountersFile: "/missing/counters.csv", DCGMCounters: "DCGM_FI_DEV_FB_TOTAL, gauge, x"})
	if len(list.Fields) != 26 || len(list.Optional) != 0 {
		t.Errorf("%d fields, %d optional measures", len(list.Fields), len(list.Optional))
	}
	want := "read list of counters: stat /missing/counters.csv: no such file or directory; the path is dcgmCountersFile (--dcgm-counters-file), as the agent sees it"
	if len(list.Problems) != 1 || list.Problems[0].Message != want {
		t.Errorf("problems: %v", list.Problems)
	}
}
