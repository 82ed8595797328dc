package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func TestParseClaim(t *testing.T) {
	const head = `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig"`
	tests := map[string]struct {
		data string
		want v1alpha1.TimeSlice
		err  string
	}{
		"defaults":            {data: head + `}`, want: "default"},
		"default time slice":  {data: head + `,"sharing":{"mode":"timeSlicing"}}`, want: "default"},
		"time slice":          {data: head + `,"sharing":{"mode":"timeSlicing","timeSlice":"short"}}`, want: "short"},
		"empty":               {data: ``, err: "config: apiVersion: is missing (write apiVersion: berth.dev/v1alpha1, kind: GPUClaimConfig)"},
		"null":                {data: `null`, err: "apiVersion: is missing"},
		"a list":              {data: `[1]`, err: "apiVersion: is missing"},
		"of another vendor":   {data: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`, err: `config: apiVersion: "resource.nvidia.com/v1beta1" is the configuration of another driver (write apiVersion: berth.dev/v1alpha1, kind: GPUClaimConfig, or name that driver in opaque.driver)`},
		"newer":               {data: `{"apiVersion":"berth.dev/v1","kind":"GPUClaimConfig"}`, err: `apiVersion: "berth.dev/v1" is unknown`},
		"no kind":             {data: `{"apiVersion":"berth.dev/v1alpha1"}`, err: "kind: is missing"},
		"misspelled kind":     {data: `{"apiVersion":"berth.dev/v1alpha1","kind":"GpuClaimConfig"}`, err: "did you mean GPUClaimConfig?"},
		"other kind":          {data: `{"apiVersion":"berth.dev/v1alpha1","kind":"AgentConfig"}`, err: `kind: "AgentConfig" is unknown (write GPUClaimConfig)`},
		"misspelled key":      {data: head + `,"sharng":{"mode":"timeSlicing"}}`, err: "config: sharng: unknown key (did you mean sharing?)"},
		"wrong case":          {data: head + `,"sharing":{"Mode":"timeSlicing"}}`, err: "sharing.Mode: unknown key"},
		"no mode":             {data: head + `,"sharing":{"timeSlice":"short"}}`, err: "sharing.mode: is missing"},
		"unknown mode":        {data: head + `,"sharing":{"mode":"TimeSlicing"}}`, err: "sharing.mode: \"TimeSlicing\" is unknown"},
		"limits of mps":       {data: head + `,"sharing":{"mode":"timeSlicing","mps":{}}}`, err: "sharing.mps: these limits need mode mps"},
		"unknown time slice":  {data: head + `,"sharing":{"mode":"timeSlicing","timeSlice":"shrt"}}`, err: `sharing.timeSlice: "shrt" is unknown (did you mean short?)`},
		"wrong type":          {data: head + `,"sharing":{"mode":"timeSlicing","timeSlice":2}}`, err: "sharing.timeSlice: want text"},
		"given twice":         {data: head + `,"kind":"GPUClaimConfig"}`, err: "kind: this key is given twice"},
		"two problems":        {data: head + `,"sharing":{"mode":"x","timeSlice":"y"}}`, err: "; config: sharing.timeSlice"},
		"replicas of a claim": {data: head + `,"sharing":{"mode":"timeSlicing","replicas":2}}`, err: "sharing.replicas: unknown key"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseClaim("config", []byte(test.data))
			switch {
			case test.err != "":
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
			case err != nil:
				t.Error(err)
			case got.Sharing.TimeSlice != test.want || got.Sharing.Mode != v1alpha1.SharingTimeSlicing:
				t.Errorf("got %+v, want %s", got.Sharing, test.want)
			}
		})
	}
}

// TestParseClaimMPS reads the limits of mode mps.
func TestParseClaimMPS(t *testing.T) {
	defaults := v1alpha1.ClaimMPSLimits{PinnedMemoryMiB: -1, ActiveThreadPercentage: 100}
	tests := map[string]struct {
		sharing string
		want    v1alpha1.ClaimMPSLimits
		err     string
	}{
		"defaults":         {sharing: `{"mode":"mps"}`, want: defaults},
		"null":             {sharing: `{"mode":"mps","mps":null}`, want: defaults},
		"no limits":        {sharing: `{"mode":"mps","mps":{}}`, want: defaults},
		"all":              {sharing: `{"mode":"mps","mps":{"pinnedMemoryMiB":8192,"activeThreadPercentage":25,"singleUser":true}}`, want: v1alpha1.ClaimMPSLimits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, SingleUser: true}},
		"no memory limit":  {sharing: `{"mode":"mps","mps":{"pinnedMemoryMiB":-1}}`, want: defaults},
		"no memory":        {sharing: `{"mode":"mps","mps":{"pinnedMemoryMiB":0}}`, err: "sharing.mps.pinnedMemoryMiB: 0 is not a limit (write MiB, or remove it for no limit)"},
		"below no limit":   {sharing: `{"mode":"mps","mps":{"pinnedMemoryMiB":-2}}`, err: "sharing.mps.pinnedMemoryMiB: -2 is not a limit"},
		"too much memory":  {sharing: `{"mode":"mps","mps":{"pinnedMemoryMiB":1073741825}}`, err: "sharing.mps.pinnedMemoryMiB: 1073741825 is not a limit"},
		"no threads":       {sharing: `{"mode":"mps","mps":{"activeThreadPercentage":0}}`, err: "sharing.mps.activeThreadPercentage: 0 is not a percentage from 1 to 100 (remove it for 100)"},
		"too many threads": {sharing: `{"mode":"mps","mps":{"activeThreadPercentage":101}}`, err: "101 is not a percentage"},
		"a time slice":     {sharing: `{"mode":"mps","timeSlice":"short"}`, err: "sharing.timeSlice: a time slice has no meaning with mode mps"},
		"unknown limit":    {sharing: `{"mode":"mps","mps":{"memory":1}}`, err: "sharing.mps.memory: unknown key"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseClaim("config", []byte(`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":`+test.sharing+`}`))
			switch {
			case test.err != "":
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
			case err != nil:
				t.Error(err)
			case got.Sharing.Mode != v1alpha1.SharingMPS || got.Sharing.TimeSlice != "" || *got.Sharing.MPS != test.want:
				t.Errorf("got %+v with %+v, want %+v", got.Sharing, got.Sharing.MPS, test.want)
			}
		})
	}
}

// FuzzParseClaim: no content makes ParseClaim panic, an error is one line, and what is read is read as the same when it is written out.
func FuzzParseClaim(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"mode":"timeSlicing","timeSlice":"short"}}`,
		`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":null}`, `[`,
		`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"mode":"mps","mps":{"pinnedMemoryMiB":8192,"activeThreadPercentage":25}}}`, `{"kind":["a"]}`, "a: &a [*a]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := ParseClaim("config", data)
		if err != nil {
			if config != nil || err.Error() == "" {
				t.Errorf("%v with the error %v", config, err)
			}
			return
		}
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseClaim("config", text)
		if diff := cmp.Diff(config, again); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
