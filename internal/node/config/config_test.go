package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func TestParseRefuses(t *testing.T) {
	tests := map[string]struct {
		file string
		want string
	}{
		"unknown key": {
			file: "# comment\nresourceNam: nvidia.com/gpu\n",
			want: "agent.yaml:2: resourceNam: unknown key (did you mean resourceName?)",
		},
		"unknown key, nothing near": {
			file: "zzzzzzzzzzzz: 1\n",
			want: "known keys here: apiVersion, cdiAnnotationPrefix,",
		},
		"a driver's name with capitals": {
			file: "draDriverName: GPU.example.com\n",
			want: `agent.yaml:1: draDriverName: "GPU.example.com" is not a DNS name of at most 63 lower-case characters (write a name such as gpu.berth.dev)`,
		},
		"double key": {
			file: "standalone: true\nstandalone: false\n",
			want: "agent.yaml:2: standalone: this key is given twice (keep one)",
		},
		"number for text": {
			file: "nodeName: 7\n",
			want: `agent.yaml:1: nodeName: want text, got "7" (put it in quotes: "7")`,
		},
		"text for a switch": {
			file: "standalone: \"yes\"\n",
			want: `agent.yaml:1: standalone: want true or false, got "yes"`,
		},
		"text for a list": {
			file: "deviceListStrategy: envvar\n",
			want: `agent.yaml:1: deviceListStrategy: want a list, got "envvar"`,
		},
		"unknown strategy": {
			file: "deviceListStrategy:\n- cdi-crio\n",
			want: `agent.yaml:2: deviceListStrategy[0]: "cdi-crio" is unknown (did you mean cdi-cri?)`,
		},
		"both kinds of CDI": {
			file: "standalone: true\ndeviceListStrategy: [cdi-cri, cdi-annotations]\n",
			want: "agent.yaml:2: deviceListStrategy: cdi-cri and cdi-annotations exclude each other",
		},
		"device specs beside CDI": {
			file: "passDeviceSpecs: true\n",
			want: "agent.yaml:1: passDeviceSpecs: device specs and CDI exclude each other",
		},
		"resource name without a domain": {
			file: "resourceName: gpu\n",
			want: `agent.yaml:1: resourceName: "gpu" is not a resource name (write it as domain/name, such as nvidia.com/gpu)`,
		},
		"resource name too long": {
			file: "resourceName: nvidia.com/" + strings.Repeat("x", 60) + "\n",
			want: "has 71 characters, at most 63 are allowed",
		},
		"the removed list of excluded GPUs": {
			file: "exclude: [\"0\", GPU-1]\n",
			want: "agent.yaml:1: exclude: unknown key (write a rule for each: gpus: [{select: {index: [0]}, exclude: true}]; uuid and model select too)",
		},
		"NVIDIA's file without a version, and keys of Berth's": {
			file: "flags: {migStrategy: mixed}\nstandalone: true\n",
			want: "agent.yaml:1: flags: unknown key (if this is a file of NVIDIA's device plugin, begin it with version: v1)",
		},
		"a mig-parted file": {
			file: "mig-configs: {}\n",
			want: "agent.yaml:1: mig-configs: unknown key (a file of mig-parted belongs in the ConfigMap that migConfigMap names",
		},
		"a key of another level": {
			file: "channelIDs: [0]\n",
			want: "agent.yaml:1: channelIDs: unknown key (it belongs to imex)",
		},
		"relative path": {
			file: "cdiDir: cdi\n",
			want: `agent.yaml:1: cdiDir: "cdi" is not an absolute path`,
		},
		"impatient poll": {file: "pollInterval: 1ms\n", want: "agent.yaml:1: pollInterval: 1ms is under 100ms"},
		"impatient samples": {file: "sampleInterval: 499ms\n",
			want: "agent.yaml:1: sampleInterval: 499ms is under 500ms (the default is 10s)"},
		"relative label dir": {file: "labels:\n  dir: features.d\n",
			want: `agent.yaml:2: labels.dir: "features.d" is not an absolute path (begin it with /)`},
		"unknown output": {
			file: "labels: {output: nodefeature}\n",
			want: `agent.yaml:1: labels.output: "nodefeature" is unknown (did you mean nodeFeature?)`,
		},
		"labels of the node without an API server": {
			file: "standalone: true\nlabels: {output: node}\n",
			want: "agent.yaml:2: labels.output: node is written through the API server, and standalone works without one (write file or none, or leave out standalone)",
		},
		"labels of NFD's master without an API server": {
			file: "standalone: true\nlabels: {output: nodeFeature}\n",
			want: "agent.yaml:2: labels.output: nodeFeature is written through the API server",
		},
		"class of no cause": {
			file: "healthClasses:\n  XID94: reset\n  BAD_LUCK: reset\n",
			want: "agent.yaml:3: healthClasses[BAD_LUCK]: no such cause exists (want XID and a number, or a code such as ECC_DOUBLE_BIT)",
		},
		"no class": {
			file: "healthClasses: {XID94: resett}\n",
			want: `agent.yaml:1: healthClasses[XID94]: "resett" is not a class (did you mean reset? the classes are ignore, degrade, restart-app, drain, inspect, reset, reboot)`,
		},
		"XID with a zero before it": {
			file: "healthClasses: {XID094: reset}\n",
			want: "agent.yaml:1: healthClasses[XID094]: this is not the form of a cause (write XID94)",
		},
		"not a duration":        {file: "pollInterval: soon\n", want: `agent.yaml:1: pollInterval: want a duration, got "soon" (write a number with its unit, such as 5s or 2m)`},
		"no unit":               {file: "pollInterval: 5\n", want: `agent.yaml:1: pollInterval: want a duration, got "5" (write a number with its unit, such as 5s or 2m)`},
		"broken YAML":           {file: "a: b: c\n", want: "agent.yaml:1: this is not YAML: mapping values are not allowed in this context (check"},
		"broken YAML, below":    {file: "a: b\n c: d\n", want: "agent.yaml:2: this is not YAML: mapping values are not allowed in this context (check"},
		"two documents":         {file: "standalone: true\n---\nstandalone: true\n", want: "the file holds a second document"},
		"key that is a list":    {file: "? [a]\n: b\n", want: "agent.yaml:1: ?: a key must be printable text, got a list"},
		"foreign tag":           {file: "nodeName: !!binary aGk=\n", want: "agent.yaml:1: nodeName: the tag !!binary is not read"},
		"list that is no text":  {file: "dcgmCounters: [DCGM_FI_DEV_GPU_TEMP]\n", want: "agent.yaml:1: dcgmCounters: want a text, got a list (write dcgmCounters: | and the lines below it, indented)"},
		"path that is relative": {file: "dcgmCountersFile: counters.csv\n", want: `agent.yaml:1: dcgmCountersFile: "counters.csv" is not an absolute path (begin it with /)`},
		"control character": {file: "nodeName: \"a\\x07\"\n",
			want: `agent.yaml:1: nodeName: "a\a" holds a character that cannot be printed`},
		"infinity": {file: "ignoredXIDs: [.inf]\n",
			want: `agent.yaml:1: ignoredXIDs[0]: want a whole number from 0, got ".inf"`},
		"empty entry": {file: "gpus:\n-\n", want: "agent.yaml:2: gpus[0]: this entry is empty (fill it in, or remove it)"},
		"key without a value": {file: "gpus: [{mig: {devices: {1g.10gb: }}}]\n",
			want: "agent.yaml:1: gpus[0].mig.devices[1g.10gb]: this key has no value (fill it in, or remove it)"},
		"double key in a map": {file: "migLayouts:\n  a: []\n  a: []\n",
			want: "agent.yaml:3: migLayouts[a]: this key is given twice (keep one)"},
		"text for a map": {file: "migLayouts: all\n", want: `agent.yaml:1: migLayouts: want keys and values, got "all"`},
		"a long text":    {file: strings.Repeat("x ", 1000) + "\n", want: "want keys and values, got \"" + strings.Repeat("x ", 30) + "\"..."},
		"a list on top":  {file: "- a\n", want: "want keys and values, got a list"},
		"other version": {file: "apiVersion: berth.dev/v9\n",
			want: "agent.yaml:1: apiVersion: want berth.dev/v1alpha1, got berth.dev/v9"},
		"other kind":      {file: "kind: GPUNode\n", want: "agent.yaml:1: kind: want AgentConfig, got GPUNode"},
		"far too large":   {file: "# " + strings.Repeat("x", maxBytes), want: "at most 1048576 are read"},
		"all lines named": {file: "a1: 1\nnodeName: 7\n", want: "agent.yaml:2: nodeName"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("agent.yaml", []byte(tc.file), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse returned %v\nwant an error with %s", err, tc.want)
			}
		})
	}
}

func manyKeys(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "k%d: 1\n", i)
	}
	return text.String()
}

func TestErrorIsBounded(t *testing.T) {
	_, err := Parse("agent.yaml", []byte(manyKeys(60)), nil)
	var wrong *Error
	if !errors.As(err, &wrong) || len(wrong.Problems) != 51 {
		t.Fatalf("Parse returned %v, want 50 problems and the number of the others", err)
	}
	if got, want := wrong.Problems[50].String(), "agent.yaml: 10 more problems follow (fix these first)"; got != want {
		t.Errorf("the last problem is %q, want %q", got, want)
	}
}

func TestDefaults(t *testing.T) {
	got, err := Parse("", nil, func(c *v1alpha1.AgentConfig) { c.NodeName = "n" })
	if err != nil {
		t.Fatal(err)
	}
	if got.ResourceName != "nvidia.com/gpu" || got.KubeletDir != "/var/lib/kubelet" || got.PollInterval.Duration != 5*time.Second {
		t.Errorf("defaults are %+v", got)
	}
	if diff := cmp.Diff([]v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}, got.DeviceListStrategy); diff != "" {
		t.Errorf("strategies (-want +got):\n%s", diff)
	}
}

func TestLabelDefaults(t *testing.T) {
	const nfd = "/etc/kubernetes/node-feature-discovery/features.d"
	tests := map[string]struct {
		file string
		want v1alpha1.Labels
	}{
		"with an API server": {file: "", want: v1alpha1.Labels{Output: v1alpha1.LabelsNode, Dir: nfd}},
		"standalone":         {file: "standalone: true", want: v1alpha1.Labels{Output: v1alpha1.LabelsNone, Dir: nfd}},
		"standalone with a file": {file: "{standalone: true, labels: {output: file}}",
			want: v1alpha1.Labels{Output: v1alpha1.LabelsFile, Dir: nfd}},
		"all given": {
			file: "labels: {output: nodeFeature, dir: /a, noTimestamp: true}",
			want: v1alpha1.Labels{Output: v1alpha1.LabelsNodeFeature, Dir: "/a", NoTimestamp: true},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("agent.yaml", []byte(tc.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Labels); diff != "" || got.SampleInterval.Duration != 10*time.Second {
				t.Errorf("samples every %s, want 10s; labels (-want +got):\n%s", got.SampleInterval.Duration, diff)
			}
		})
	}
}

func TestHealthClasses(t *testing.T) {
	got, err := Parse("agent.yaml", []byte("healthClasses: {XID94: restart-app, NVLINK_DOWN: degrade}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"XID94": "restart-app", "NVLINK_DOWN": "degrade"}, got.HealthClasses); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

func TestFileThenFlag(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	text := `{"apiVersion": "berth.dev/v1alpha1", "kind": "AgentConfig", "driverRoot": "/drv", "nodeName": "a", "pollInterval": "1s"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path, func(c *v1alpha1.AgentConfig) { c.NodeName = "b" })
	if err != nil {
		t.Fatal(err)
	}
	if got.NodeName != "b" || got.DevRoot != "/drv" || got.PollInterval.Duration != time.Second {
		t.Errorf("Load returned %+v, want the flag's node name, the file's interval, and devRoot to follow driverRoot", got)
	}
}

func TestMissingFileNamesTheFlag(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"), nil)
	if err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("Load returned %v, want an error that names --config", err)
	}
}
