package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// seedFiles adds the samples of docs/examples to a fuzzer's corpus.
func seedFiles(f *testing.F, seeds ...string) {
	files, err := filepath.Glob("../../../docs/examples/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
}

// again checks that a configuration, written out, is read as the same; an empty list is none.
func again(t interface{ Fatalf(string, ...any) }, config *v1alpha1.AgentConfig) {
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatalf("%v", err)
	}
	read, err := Parse("again.json", text, nil)
	if err != nil {
		t.Fatalf("what was written out is refused: %v\n%s", err, text)
	}
	if diff := cmp.Diff(config, read, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s is read differently (-written +read):\n%s", text, diff)
	}
}

// FuzzParse: whatever the bytes, an answer that can be written out and read again, or an
// error with its file; never a panic.
func FuzzParse(f *testing.F) {
	seedFiles(f,
		"", "a: [", "standalone: true", "exclude: [1, {a: b}]", "migDevices: []", "pollInterval: 5s", "&a [*a]", "? [a]: b",
		"gpus: [{select: {index: [0], count: 2, model: [\"*\"]}, mig: {devices: {1g.10gb: 7}}}]",
		"gpus: [{sharing: {mode: mps, replicas: 2, mps: {pinnedMemoryMiB: 1, singleUser: true}}}]",
		"migLayouts: {a: [{device-filter: \"0x233010DE\", devices: [0], mig-enabled: true, mig-devices: {}}]}",
		"migDevices: [{select: {profile: [\"1g.*\"], index: [\"0:1\"]}}]",
		"standalone: true\nlabels: {output: file, dir: /a}\nhealthClasses: {XID94: reset}\nsampleInterval: 1s",
		"imex: {channelIDs: [0]}\nignoredXIDs: [18446744073709551615]",
	)
	f.Fuzz(func(t *testing.T, data []byte) { fuzzRead(t, data) })
}

// FuzzParseNVIDIA is FuzzParse for NVIDIA's file.
func FuzzParseNVIDIA(f *testing.F) {
	for _, seed := range []string{
		"flags: {migStrategy: single, plugin: {deviceListStrategy: [envvar], passDeviceSpecs: true, containerDriverRoot: /a}}",
		"flags: {useNodeFeatureAPI: true, gfd: {outputFile: a/b, noTimestamp: true}}",
		"flags: {gfd: {sleepInterval: 1}, deviceDiscoveryStrategy: nvml}",
		"resources: {gpus: [{pattern: \"*A*\", name: a}], mig: [{pattern: \"1g.*\", name: b}]}",
		"flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: mig-1g.5gb.me, replicas: 2, devices: [\"0:1\", " + partUUID + "]}]}}",
		"sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2, devices: [0, " + wholeUUID + "]}]}}",
		"sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, rename: b, replicas: 2, devices: 3}]}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzzRead(t, append([]byte("version: v1\n"), data...)) })
}

func fuzzRead(t *testing.T, data []byte) {
	loaded, err := Read("agent.yaml", data, nil)
	if (loaded.Config == nil) == (err == nil) {
		t.Fatalf("Read(%q) = %v, %v: want either a config or an error", data, loaded, err)
	}
	if err == nil {
		again(t, loaded.Config)
	}
}

// FuzzParseMIGLayouts: whatever the bytes, layouts that a configuration can take over, or an error.
func FuzzParseMIGLayouts(f *testing.F) {
	seedFiles(f, "", "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb+me: 1}}]}")
	f.Fuzz(func(t *testing.T, data []byte) {
		layouts, err := ParseMIGLayouts("layouts.yaml", data)
		if (layouts == nil) == (err == nil) {
			t.Fatalf("ParseMIGLayouts(%q) = %v, %v: want either layouts or an error", data, layouts, err)
		}
		if err != nil || len(layouts) == 0 {
			return
		}
		config, err := Parse("", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		config.MIGLayouts = layouts
		again(t, config)
	})
}

// TestWrittenOutAndReadAgain draws configurations that are in order.
func TestWrittenOutAndReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := &v1alpha1.AgentConfig{
			MIGStrategy:  rapid.SampledFrom([]v1alpha1.MIGStrategy{"", "single", "mixed"}).Draw(t, "strategy"),
			MIGConfigMap: rapid.SampledFrom([]string{"", "a/b"}).Draw(t, "map"),
			GDS:          rapid.Bool().Draw(t, "gds"),
			Standalone:   rapid.Bool().Draw(t, "standalone"),
			Labels: v1alpha1.Labels{
				Output:      rapid.SampledFrom([]v1alpha1.LabelOutput{"", "file", "none"}).Draw(t, "output"),
				NoTimestamp: rapid.Bool().Draw(t, "no timestamp"),
			},
			NodeName: "node",
		}
		names := rapid.SampledFrom([]string{"", "berth.dev/a", "nvidia.com/b.c"})
		// Each rule has an index of its own, so that each is reached.
		for i := range rapid.IntRange(0, 4).Draw(t, "gpus") {
			rule := v1alpha1.GPURule{Select: v1alpha1.GPUSelector{Index: []int{i}, Count: rapid.IntRange(0, 3).Draw(t, "count")}}
			switch rapid.SampledFrom([]string{"exclude", "mig", "share", "whole"}).Draw(t, "rule") {
			case "exclude":
				rule.Exclude = true
			case "mig":
				rule.MIG = &v1alpha1.MIGSettings{Devices: map[string]int{"1g.10gb+me": rapid.IntRange(1, 7).Draw(t, "devices")}}
			case "share":
				rule.Sharing = drawSharing(t, names)
				fallthrough
			default:
				rule.ResourceName = names.Draw(t, "name")
			}
			config.GPUs = append(config.GPUs, rule)
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "migs") {
			rule := v1alpha1.MIGDeviceRule{Select: v1alpha1.MIGDeviceSelector{GPU: []int{i}, Profile: []string{"*g.10gb"}}}
			if rapid.Bool().Draw(t, "share") {
				rule.Sharing = drawSharing(t, names)
				rule.Sharing.Mode, rule.Sharing.TimeSlice, rule.Sharing.MPS = v1alpha1.SharingTimeSlicing, "", nil
			}
			config.MIGDevices = append(config.MIGDevices, rule)
		}
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Parse("drawn.json", text, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		setDefaults(config)
		if diff := cmp.Diff(config, read); diff != "" {
			t.Fatalf("%s is read differently (-drawn +read):\n%s", text, diff)
		}
		again(t, read)
	})
}

func drawSharing(t *rapid.T, names *rapid.Generator[string]) *v1alpha1.Sharing {
	s := &v1alpha1.Sharing{
		Mode:            rapid.SampledFrom([]v1alpha1.SharingMode{v1alpha1.SharingMPS, v1alpha1.SharingTimeSlicing}).Draw(t, "mode"),
		Replicas:        rapid.IntRange(1, 48).Draw(t, "replicas"),
		ResourceName:    names.Draw(t, "shared name"),
		RenameByDefault: rapid.Bool().Draw(t, "rename"),
	}
	if s.Mode == v1alpha1.SharingTimeSlicing {
		s.TimeSlice = rapid.SampledFrom([]v1alpha1.TimeSlice{"", "default", "long"}).Draw(t, "slice")
	} else if rapid.Bool().Draw(t, "limits") {
		s.MPS = &v1alpha1.MPSLimits{
			PinnedMemoryMiB:        rapid.SampledFrom([]int64{-1, 0, 4096}).Draw(t, "memory"),
			ActiveThreadPercentage: rapid.IntRange(0, 100).Draw(t, "threads"),
			SingleUser:             rapid.Bool().Draw(t, "single"),
		}
	}
	if rapid.Bool().Draw(t, "explicit") {
		fail := rapid.Bool().Draw(t, "fail")
		s.FailRequestsGreaterThanOne = &fail
	}
	return s
}
