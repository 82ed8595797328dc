package values_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/cli/values"
)

// charts is the folder of the charts, from this package.
const charts = "../../../charts"

// check returns the problems of texts, a line each: key, message, fix.
func check(texts ...string) string {
	var files []values.File
	for i, text := range texts {
		files = append(files, values.File{Name: string(rune('a' + i)), Data: []byte(text)})
	}
	var lines []string
	for _, p := range values.Check("berth-system", files...) {
		line := p.Key + ": " + p.Message
		if p.Warning {
			line = "warning: " + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestCheck has what the schema of the chart cannot see.
func TestCheck(t *testing.T) {
	tests := map[string]struct {
		files []string
		want  string
	}{
		"nothing":                       {files: []string{""}},
		"nothing at all":                {},
		"a default that is removed":     {files: []string{"mps: {nodeSelector: {nvidia.com/gpu.present: null}}"}},
		"a key that is given twice":     {files: []string{"agent: {}\nagent: {}"}, want: "agent: this key is given twice"},
		"no YAML":                       {files: []string{"a: ["}, want: ": this is not YAML: did not find expected node content"},
		"a configuration that is wrong": {files: []string{"configs: {default: {pollInterval: 1ms}}"}, want: "configs[default].pollInterval: 1ms is under 100ms"},
		"no default":                    {files: []string{"configs: {default: null, a: {}, b: {}}"}, want: "configs: none is named default, so a node without the label berth.dev/config has none"},
		"one, whatever its name":        {files: []string{"configs: {default: null, a: {}}"}},
		"DRA without its rights": {files: []string{"{rights: {dra: false}, configs: {default: {gpus: [{exclude: true, select: {index: [0]}}, {allocation: {api: auto}}]}}}"},
			want: "configs[default].gpus[1].allocation.api: auto needs rights.dra: true"},
		"DRA with its rights removed": {files: []string{"{rights: {dra: null}, configs: {default: {gpus: [{allocation: {api: auto}}]}}}"},
			want: "configs[default].gpus[0].allocation.api: auto needs rights.dra: true"},
		"DRA with its rights by default": {files: []string{"configs: {default: {gpus: [{allocation: {api: dra}}]}}"}},
		"rights of another file":         {files: []string{"configs: {default: {taintUnhealthy: true}}", "rights: {taintUnhealthy: true}"}},
		"rights that another file takes": {files: []string{"{rights: {taintUnhealthy: true}, configs: {default: {taintUnhealthy: true}}}", "rights: {taintUnhealthy: false}"},
			want: "configs[default].taintUnhealthy: true needs rights.taintUnhealthy: true"},
		"a NodeFeature without its rights": {files: []string{"configs: {a: {labels: {output: nodeFeature}}}"},
			want: "configs[a].labels.output: nodeFeature needs rights.nodeFeature: true"},
		"MPS without its supervisor": {files: []string{"configs: {default: {gpus: [{sharing: {mode: mps, replicas: 2}}]}}"},
			want: "warning: configs[default].gpus[0].sharing.mode: mps needs the supervisor of MPS daemons on the node"},
		"MPS with its supervisor":      {files: []string{"{mps: {enabled: true}, configs: {default: {gpus: [{sharing: {mode: mps, replicas: 2}}]}}}"}},
		"layouts of another namespace": {files: []string{"configs: {default: {migConfigMap: gpu-operator/a}}"}, want: "configs[default].migConfigMap: gpu-operator/a is outside the namespace berth-system of the release"},
		"layouts with their right":     {files: []string{"{rights: {migConfigMap: gpu-operator/a}, configs: {default: {migConfigMap: gpu-operator/a}}}"}},
		"layouts of the namespace":     {files: []string{"configs: {default: {migConfigMap: berth-system/a}}"}},
		"what the chart sets":          {files: []string{"configs: {default: {hostRoot: /host, hookDir: /a}}"}, want: "configs[default].hookDir: the chart sets this\nconfigs[default].hostRoot: the chart sets this"},
		"a file of NVIDIA's":           {files: []string{"configFiles: {default: 'version: v1'}"}},
		"a file that is wrong":         {files: []string{"configFiles: {default: \"version: v1\\nflagz: {}\"}"}, want: "configFiles[default].flagz: unknown key"},
		"a file that is no YAML":       {files: []string{"configFiles: {a: 'a: ['}"}, want: "configFiles[a]"},
		"a file with what has no effect": {files: []string{"configFiles: {default: \"version: v1\\nflags: {plugin: {passDeviceSpecs: true}, nvidiaDriverRoot: /run/nvidia/driver, gfd: {oneshot: true}}\"}"},
			want: "warning: configFiles[default]: default:2: flags.gfd.oneshot"},
		"files without a default":          {files: []string{"{configs: {default: null}, configFiles: {a: 'version: v1', b: 'version: v1'}}"}, want: "configs: none is named default"},
		"a default in the files":           {files: []string{"{configs: {default: null, b: {}}, configFiles: {default: 'version: v1'}}"}},
		"a file in the place of another":   {files: []string{"{configs: {default: {gds: true}}, configFiles: {default: 'version: v1'}}"}, want: "warning: configs[default]: has no effect beside configFiles[default]"},
		"a file with what the chart sets":  {files: []string{"configFiles: {default: \"apiVersion: berth.dev/v1alpha1\\nkind: AgentConfig\\nhookDir: /a\"}"}, want: "configFiles[default].hookDir: the chart sets this"},
		"a file that needs a right":        {files: []string{"configFiles: {default: \"apiVersion: berth.dev/v1alpha1\\nkind: AgentConfig\\ntaintUnhealthy: true\"}"}, want: "configFiles[default].taintUnhealthy: true needs rights.taintUnhealthy: true"},
		"a file beside another DRA driver": {files: []string{"{agent: {draDriverName: a.example.com}, configFiles: {default: 'version: v1'}}"}, want: "configFiles[default]: agent.draDriverName: a.example.com is not part of a text"},
		"a tag in the name":                {files: []string{"agent: {image: {name: 'berth-agent:v1'}}"}, want: `agent.image.name: "berth-agent:v1" has a tag or a digest`},
		"a scheme":                         {files: []string{"image: {registry: https://registry.example.com}"}, want: `image.registry: "https://registry.example.com" has a scheme`},
		"a slash":                          {files: []string{"image: {registry: registry.example.com/}"}, want: `image.registry: "registry.example.com/" ends with a slash, and the chart adds one`},
		"a tag beside a digest":            {files: []string{"operator: {image: {tag: a, digest: 'sha256:" + strings.Repeat("0", 64) + "'}}"}, want: "warning: operator.image.tag: has no effect beside a digest"},
		"the root":                         {files: []string{"host: {cdiDir: //}"}, want: `host.cdiDir: "//" is not a directory below /`},
		"hooks that a reboot removes":      {files: []string{"host: {hookDir: /run/hooks}"}, want: "host.hookDir: /run/hooks is empty after a reboot, when the runtime may start containers before the agent"},
		"an argument of the chart":         {files: []string{"{agent: {extraArgs: [--verbose, --host-root=/]}, mps: {extraArgs: [--host-root=/]}}"}, want: "agent.extraArgs[1]: --host-root is set by the chart\nmps.extraArgs[0]: --host-root is set by the chart"},
		"a variable of the chart":          {files: []string{"operator: {env: [{name: POD_NAMESPACE, value: a}, {name: A}, {name: A}]}"}, want: "operator.env[0].name: POD_NAMESPACE is set by the chart\noperator.env[2].name: A is given twice"},
		"a request above its limit":        {files: []string{"agent: {resources: {requests: {memory: 1Gi}, limits: {memory: 512Mi}}}"}, want: "agent.resources.requests: memory: 1Gi is more than the limit, 512Mi"},
		"a mount without its volume":       {files: []string{"agent: {extraVolumeMounts: [{name: a, mountPath: /host/}]}"}, want: "agent.extraVolumeMounts[0].name: no volume of agent.extraVolumes is named a\nagent.extraVolumeMounts[0].mountPath: /host/ is a mount of the chart"},
		"a list of counters":               {files: []string{"agent: {dcgmCounters: 'DCGM_FI_DEV_FB_TOTAL, gauge, Size.'}"}},
		"lines of a list that are wrong": {files: []string{"agent: {dcgmCounters: \"DCGM_FI_DEV_FB_TOTAL\\nDCGM_EXP_P2P_STATUS, gauge, x\"}"},
			want: `warning: agent.dcgmCounters: line 1: "DCGM_FI_DEV_FB_TOTAL" has no comma` + "\nwarning: agent.dcgmCounters: DCGM_EXP_P2P_STATUS has no value: dcgm-exporter computes it for each pair"},
		"the same port":           {files: []string{"operator: {metricsPort: 8081}"}, want: "operator.probePort: is the port of operator.metricsPort too"},
		"an address that is none": {files: []string{"{agent: {metricsAddress: '1.2.3'}, operator: {metricsAddress: '::1'}}"}, want: `agent.metricsAddress: "1.2.3" is no IP address`},
		"metrics for a token, without one": {files: []string{"{metrics: {auth: kubernetes}, podMonitor: {enabled: true}}"},
			want: "podMonitor.tokenSecret.name: is empty, and metrics.auth: kubernetes wants a token"},
		"metrics for a token": {files: []string{"{metrics: {auth: kubernetes}, podMonitor: {enabled: true, tokenSecret: {name: a}}}"}},
		"another scheduler for all without it": {files: []string{"scheduler: {replaceDefault: true}"},
			want: "scheduler.replaceDefault: true needs scheduler.enabled: true"},
		"another scheduler for all":          {files: []string{"scheduler: {enabled: true, replaceDefault: true}"}},
		"a tag in the name of the scheduler": {files: []string{"scheduler: {image: {name: 'a:b'}}"}, want: `scheduler.image.name: "a:b" has a tag or a digest`},
		"no range":                           {files: []string{"networkPolicy: {apiServerCIDRs: [10.96.0.1]}"}, want: `networkPolicy.apiServerCIDRs[0]: "10.96.0.1" is no range of addresses`},
		"every address":                      {files: []string{"networkPolicy: {apiServerCIDRs: [0.0.0.0/0]}"}, want: "warning: networkPolicy.apiServerCIDRs[0]: 0.0.0.0/0 is every address, and limits nothing"},
		"addresses without a policy":         {files: []string{"networkPolicy: {enabled: false, apiServerCIDRs: [10.96.0.1/32]}"}, want: "networkPolicy.apiServerCIDRs: has no effect without networkPolicy.enabled"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := check(tc.files...); got != tc.want && (tc.want == "" || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestLines checks that a problem names the file and the line that give the key.
func TestLines(t *testing.T) {
	files := []values.File{{Name: "a", Data: []byte("\nconfigs:\n  default:\n    taintUnhealthy: true\n")}, {Name: "b", Data: []byte("rights: {dra: true}\n")}}
	got := values.Check("berth-system", files...)
	if len(got) != 1 || got[0].File != "a" || got[0].Line != 4 {
		t.Errorf("got %+v, want a problem of line 4 of a", got)
	}
}

// TestWrongFiles checks that each file that Helm refuses has a problem here.
func TestWrongFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(charts, "testdata", "wrong", "*.yaml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		problems := values.Check("berth-system", values.File{Name: file, Data: text})
		if len(problems) != 1 || problems[0].Line != 2 || problems[0].Warning {
			t.Errorf("%s: %+v, want one problem, of line 2", filepath.Base(file), problems)
		}
	}
}

// TestGoodFiles checks that the chart's own values, and those of its renderings, are accepted.
func TestGoodFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(charts, "testdata", "golden", "*.values.yaml"))
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range append(files, filepath.Join(charts, "berth", "values.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if problems := values.Check("rendered", values.File{Name: file, Data: text}); len(problems) > 0 {
			t.Errorf("%s: %+v", filepath.Base(file), problems)
		}
	}
}

// FuzzCheck checks that no file ends the program, and that a problem says something.
func FuzzCheck(f *testing.F) {
	for _, text := range []string{"", "agent: {env: [{name: A}]}", "configs: {default: {gpus: [{}]}}", "a: &a [*a]", "mps: null", "host: {hookDir: /}", "configs: {a: null}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range values.Check("berth-system", values.File{Name: "a", Data: []byte(text)}) {
			if p.Message == "" {
				t.Errorf("a problem of %q says nothing: %+v", text, p)
			}
		}
	})
}
