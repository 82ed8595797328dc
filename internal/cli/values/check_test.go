package values_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

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
		"agents replaced in place without the other number": {files: []string{"agent: {updateStrategy: {rollingUpdate: {maxSurge: null, maxUnavailable: 2}}}"}},
		"agents with a strategy of Deployments": {files: []string{"agent: {updateStrategy: {type: Recreate}}"},
			want: "agent.updateStrategy.type: \"Recreate\" is neither RollingUpdate nor OnDelete"},
		"agents replaced in place": {files: []string{"agent: {updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 10%}}}"}},
		"agents replaced by hand":  {files: []string{"agent: {updateStrategy: {type: OnDelete, rollingUpdate: {maxSurge: 0}}}"}},
		"agents that are not replaced": {files: []string{"agent: {updateStrategy: {rollingUpdate: {maxSurge: 0}}}"},
			want: "agent.updateStrategy.rollingUpdate: maxSurge is 0 and maxUnavailable 0, and one of them has to be 0 and the other more"},
		"another scheduler for all":          {files: []string{"scheduler: {enabled: true, replaceDefault: true}"}},
		"a tag in the name of the scheduler": {files: []string{"scheduler: {image: {name: 'a:b'}}"}, want: `scheduler.image.name: "a:b" has a tag or a digest`},
		"no range":                           {files: []string{"networkPolicy: {apiServerCIDRs: [10.96.0.1]}"}, want: `networkPolicy.apiServerCIDRs[0]: "10.96.0.1" is no range of addresses`},
		"an address of two":                  {files: []string{"networkPolicy: {apiServerCIDRs: [10.96.0.1/32, 10.0.0.1]}"}, want: `networkPolicy.apiServerCIDRs[1]: "10.0.0.1" is no range of addresses`},
		"cpus":                               {files: []string{"agent: {resources: {requests: {cpus: 1}}}"}, want: "agent.resources.requests.cpus: no resource of a container has this name"},
		"less than nothing":                  {files: []string{"agent: {resources: {limits: {memory: -1}}}"}, want: "agent.resources.limits.memory: -1 is negative"},
		"a value of Exists":                  {files: []string{"agent: {tolerations: [{key: a, operator: Exists, value: b}]}"}, want: "agent.tolerations[0]: the operator Exists has no value"},
		"every taint":                        {files: []string{"web: {tolerations: [{operator: Equal}]}"}, want: "web.tolerations[0]: without a key it tolerates every taint"},
		"seconds for NoSchedule": {files: []string{"mps: {tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}]}"},
			want: "mps.tolerations[0]: tolerationSeconds needs effect: NoExecute"},
		"tolerations": {files: []string{"agent: {tolerations: [{operator: Exists}, {key: a, value: b}, {key: example.com/a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}"}},
		"two values of a variable": {files: []string{"agent: {env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}"},
			want: "agent.env[0]: A has value and valueFrom"},
		"a condition without values": {files: []string{"operator: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}]}]}}}}"},
			want: "operator.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]: In needs values"},
		"a preference with values": {files: []string{"operator: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}}}"},
			want: "operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]: Exists has no values"},
		"a comparison": {files: []string{"operator: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Gt}]}}]}}}"},
			want: "operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]: Gt needs one value"},
		"registries with a port":     {files: []string{"image: {registry: 'registry.example.com:5000/a/b-c'}", "image: {registry: '[2001:db8::1]:5000'}"}},
		"names with a domain":        {files: []string{"{agent: {nodeSelector: {example.com/a.b_C: ''}, annotations: {Example.com/A: '{}'}, resources: {limits: {nvidia.com/gpu: 0, hugepages-2Mi: 2Mi, cpu: 0.5}, requests: {nvidia.com/gpu: 0}}}, networkPolicy: {apiServerCIDRs: ['2001:db8::/32', 10.0.0.0/8]}}"}},
		"every address":              {files: []string{"networkPolicy: {apiServerCIDRs: [0.0.0.0/0]}"}, want: "warning: networkPolicy.apiServerCIDRs[0]: 0.0.0.0/0 is every address, and limits nothing"},
		"addresses without a policy": {files: []string{"networkPolicy: {enabled: false, apiServerCIDRs: [10.96.0.1/32]}"}, want: "networkPolicy.apiServerCIDRs: has no effect without networkPolicy.enabled"},
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

// TestWrongTypes checks that each value of the chart's values.yaml is refused with another type, and each key with another letter, and that
// the problem names that key.
func TestWrongTypes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(charts, "berth", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	// What users name themselves.
	open := []string{"nodeSelector", "annotations", "labels", "configs", "configFiles", "featureGates", "affinity"}
	tried := 0
	refused := func(path []string, key string, value any) {
		tried++
		document := map[string]any{key: value}
		for _, above := range slices.Backward(path) {
			document = map[string]any{above: document}
		}
		data, err := yaml.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.Join(append(slices.Clone(path), key), ".")
		problems := values.Check("berth-system", values.File{Name: "a", Data: data})
		if len(problems) == 0 || problems[0].Warning || !strings.HasPrefix(strings.NewReplacer("[", ".", "]", "").Replace(problems[0].Key), at) {
			t.Errorf("%s: %v: the problems are %+v", at, value, problems)
		}
	}
	var walk func(path []string, of map[string]any)
	walk = func(path []string, of map[string]any) {
		for key, value := range of {
			below, isMap := value.(map[string]any)
			refused(path, key+"x", value)
			var other any = []any{map[string]any{"a": "b"}}
			if _, isList := value.([]any); isList {
				other = "text"
			}
			refused(path, key, other)
			if isMap && !slices.Contains(open, key) {
				walk(append(slices.Clone(path), key), below)
			}
		}
	}
	walk(nil, defaults)
	if tried < 200 {
		t.Errorf("only %d values were tried", tried)
	}
}
