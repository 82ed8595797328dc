package fit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func TestParseErrors(t *testing.T) {
	const head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {"
	claim := func(devices string) string { return head + devices + "}}\n" }
	for name, test := range map[string]struct{ text, want string }{
		"empty":           {"", "f.yaml: it has no Pod, ResourceClaim or ResourceClaimTemplate"},
		"not YAML":        {"a: [", "f.yaml: document 1: it is not YAML"},
		"kind":            {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}", `kind "Deployment" of apiVersion "apps/v1" is not supported: want Pod of v1, or ResourceClaim or ResourceClaimTemplate of resource.k8s.io/v1`},
		"version":         {strings.Replace(claim(""), "/v1", "/v1beta1", 1), `kind "ResourceClaim" of apiVersion "resource.k8s.io/v1beta1" is not supported`},
		"field":           {claim("request: []"), `unknown field "request"`},
		"name":            {strings.Replace(claim(""), "name: c", "", 1), "ResourceClaim: metadata.name is missing"},
		"twice":           {claim("requests: [{name: r, exactly: {deviceClassName: x}}]") + "---\n" + claim("requests: [{name: r, exactly: {deviceClassName: x}}]"), "f.yaml: document 2: ResourceClaim c: an earlier document has the same kind, namespace and name"},
		"no request":      {claim(""), "ResourceClaim c: spec.devices.requests is empty"},
		"request name":    {claim("requests: [{name: r, exactly: {deviceClassName: x}}, {name: r, exactly: {deviceClassName: x}}]"), `spec.devices.requests[1].name is "r": want a DNS label that no other request has`},
		"no device":       {claim("requests: [{name: r}]"), "request r: want either exactly or firstAvailable"},
		"no class":        {claim("requests: [{name: r, exactly: {count: 1}}]"), "request r: deviceClassName is missing"},
		"mode":            {claim("requests: [{name: r, exactly: {deviceClassName: x, allocationMode: Some}}]"), "request r: allocationMode \"Some\": want ExactCount or All"},
		"count":           {claim("requests: [{name: r, exactly: {deviceClassName: x, count: -1}}]"), "request r: count -1: want at least 1"},
		"count of all":    {claim("requests: [{name: r, exactly: {deviceClassName: x, count: 2, allocationMode: All}}]"), "request r: count 2: a request of allocationMode All has no count"},
		"large count":     {claim("requests: [{name: r, exactly: {deviceClassName: x, count: 33}}]"), "request r: count 33: a claim can have at most 32 devices"},
		"CEL":             {claim(`requests: [{name: r, exactly: {deviceClassName: x, selectors: [{cel: {expression: "device.drivr == 'a'"}}]}}]`), "request r: selectors[0]: the CEL expression is invalid: compilation failed: ERROR: <input>:1:7: undefined field 'drivr'"},
		"CEL type":        {claim(`requests: [{name: r, exactly: {deviceClassName: x, selectors: [{cel: {expression: "1"}}]}}]`), "selectors[0]: the CEL expression is invalid: must evaluate to bool"},
		"empty selector":  {claim(`requests: [{name: r, exactly: {deviceClassName: x, selectors: [{}]}}]`), "selectors[0]: cel.expression is missing"},
		"subrequest":      {claim(`requests: [{name: r, firstAvailable: [{name: a, deviceClassName: x}, {name: a, deviceClassName: x}]}]`), `request r: firstAvailable[1].name is "a"`},
		"subrequest CEL":  {claim(`requests: [{name: r, firstAvailable: [{name: a, deviceClassName: x, selectors: [{cel: {expression: "("}}]}]}]`), "request r: a: selectors[0]: the CEL expression is invalid"},
		"constraint":      {claim(`requests: [{name: r, exactly: {deviceClassName: x}}], constraints: [{requests: [r]}]`), "spec.devices.constraints[0]: want either matchAttribute or distinctAttribute"},
		"constraint of":   {claim(`requests: [{name: r, exactly: {deviceClassName: x}}], constraints: [{requests: [q], matchAttribute: a/b}]`), `spec.devices.constraints[0]: requests[0]: there is no request "q"`},
		"attribute":       {claim(`requests: [{name: r, exactly: {deviceClassName: x}}], constraints: [{matchAttribute: island}]`), `attribute "island": want DOMAIN/NAME, such as gpu.berth.dev/nvlinkIsland`},
		"pod of CPU only": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {requests: {cpu: 1, hugepages-2Mi: 2Mi}}}]}", "Pod p: it requests no extended resource and has no spec.resourceClaims"},
		"missing claim":   {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimName: c}]}", `f.yaml: Pod p: ResourceClaim "c" of spec.resourceClaims entry "a" is neither in the file nor in namespace ml of the cluster`},
		"missing template": {
			"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimTemplateName: c}]}",
			`f.yaml: Pod p: ResourceClaimTemplate "c" of spec.resourceClaims entry "a" is neither in the file nor in namespace ml of the cluster`,
		},
		"entry without a name": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a}]}", `entry "a": want either resourceClaimName or resourceClaimTemplateName`},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := Parse("f.yaml", []byte(test.text), "ml", Defaults())
			if err == nil {
				_, err = file.Workloads(nil, nil)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestHostileFiles: what is large, deep or written to confuse is refused, and soon.
func TestHostileFiles(t *testing.T) {
	const head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {"
	claim := func(devices string) string { return head + devices + "}}\n" }
	list := func(count int, entry func(i int) string) string {
		var entries []string
		for i := range count {
			entries = append(entries, entry(i))
		}
		return "[" + strings.Join(entries, ", ") + "]"
	}
	request := func(i int) string { return fmt.Sprintf("{name: r%d, exactly: {deviceClassName: x}}", i) }
	selector := func(expression string) string {
		return claim(fmt.Sprintf("requests: [{name: r, exactly: {deviceClassName: x, selectors: [{cel: {expression: %q}}]}}]", expression))
	}
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("%c: &%c %s\n", 'b'+i, 'b'+i, list(10, func(int) string { return fmt.Sprintf("*%c", 'a'+i) }))
	}
	for name, test := range map[string]struct{ text, want string }{
		"requests":         {claim("requests: " + list(10_000, request)), "spec.devices.requests has 10000 entries; the limit is 32"},
		"subrequests":      {claim("requests: [{name: r, firstAvailable: " + list(1000, func(i int) string { return fmt.Sprintf("{name: s%d, deviceClassName: x}", i) }) + "}]"), "firstAvailable has 1000 entries; the limit is 8"},
		"constraints":      {claim("requests: [" + request(0) + "], constraints: " + list(1000, func(int) string { return "{matchAttribute: a/b}" })), "spec.devices.constraints has 1000 entries; the limit is 32"},
		"selectors":        {claim("requests: [{name: r, exactly: {deviceClassName: x, selectors: " + list(1000, func(int) string { return "{cel: {expression: 'true'}}" }) + "}}]"), "selectors has 1000 entries; the limit is 32"},
		"long CEL":         {selector("true" + strings.Repeat(" && true", 2000)), "selectors[0]: the CEL expression has 16004 bytes; the limit is 10240"},
		"deep CEL":         {selector(strings.Repeat("(", 3000) + "true" + strings.Repeat(")", 3000)), "selectors[0]: the CEL expression is invalid: compilation failed"},
		"deep CEL lists":   {selector(strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + " == []"), "selectors[0]: the CEL expression is invalid: compilation failed"},
		"costly CEL":       {selector(`[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, a+b+c+d+e+f > 0))))))`), "; the limit is 1000000"},
		"aliases":          {bomb, "f.yaml: document 1: it is not YAML"},
		"deep YAML":        {strings.Repeat("[", 100_000), "f.yaml: document 1: it is not YAML"},
		"name":             {strings.Replace(claim(""), "name: c", `name: "a\e[31mb"`, 1), `ResourceClaim: metadata.name "a [31mb": a lowercase RFC 1123 subdomain`},
		"namespace":        {strings.Replace(claim(""), "name: c", `name: c, namespace: "a\e[31mb"`, 1), `ResourceClaim c: metadata.namespace "a [31mb": a lowercase RFC 1123 label`},
		"request name":     {claim(`requests: [{name: "a\e[31mb", exactly: {deviceClassName: x}}]`), `spec.devices.requests[0].name is "a [31mb": want a DNS label`},
		"CEL with escapes": {selector("device.\x1b[31m"), "the CEL expression is invalid: compilation failed"},
		"claim of a pod":   {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimName: \"a\\e[31mb\"}]}", `ResourceClaim "a\x1b[31mb" of spec.resourceClaims entry "a" is neither`},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := Parse("f.yaml", []byte(test.text), "default", Defaults())
			if err == nil {
				_, err = file.Workloads(nil, nil)
			}
			switch {
			case err == nil || !strings.Contains(err.Error(), test.want):
				t.Errorf("got %.300v, want %q", err, test.want)
			case len(err.Error()) > 500 || strings.Contains(err.Error(), "\x1b"):
				t.Errorf("the error has %d bytes, or an escape character: %.300q", len(err.Error()), err)
			}
		})
	}
}

// TestManyDocuments: a file with 2,000 claims, each of which a pod has, is checked as one pod.
func TestManyDocuments(t *testing.T) {
	var text, entries strings.Builder
	for i := range 2_000 {
		fmt.Fprintf(&entries, "{name: c%d, resourceClaimName: c%d}, ", i, i)
		text.WriteString(strings.Replace(claimFile(1, "gpu.berth.dev", "", ""), "name: large", fmt.Sprintf("name: c%d", i), 1) + "---\n")
	}
	c := newCluster(t, false, "h100x8")
	settings := Defaults()
	file, err := Parse("f.yaml", []byte(text.String()+pod("  resourceClaims: ["+entries.String()+"]\n")), "default", settings)
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := file.Workloads(nil, nil)
	if err != nil || len(workloads) != 1 || len(workloads[0].Claims) != 2_000 {
		t.Fatalf("%d workloads: %v", len(workloads), err)
	}
	settings.Timeout, settings.Explain = time.Second, 100*time.Millisecond
	item, err := New(c.Cluster, settings).Check(t.Context(), &workloads[0], "")
	if err != nil || item.Fits || len(summary([]v1alpha1.FitItem{item})) != 1 {
		t.Errorf("%v: %v", summary([]v1alpha1.FitItem{item}), err)
	}
}

// FuzzParse: no file makes the parser panic, and each document of a file is checked once, alone or with a pod.
func FuzzParse(f *testing.F) {
	f.Add(claimFile(2, "gpu.berth.dev", selector(hopper), island))
	f.Add(pod("  resourceClaims: [{name: a, resourceClaimName: large}]\n") + "---\n" + claimFile(1, "gpu.berth.dev", "", ""))
	f.Add(pod("  containers: [{name: main, resources: {limits: {nvidia.com/gpu: 2}}}]\n"))
	f.Add("apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {generateName: t-}\nspec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: x}}]}}}\n")
	f.Add(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"resourceClaims":[{"name":"a"}]}}`)
	settings := Defaults()
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f.yaml", []byte(text), "default", settings)
		if err != nil {
			return
		}
		workloads, err := file.Workloads(nil, nil)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, w := range workloads {
			key := w.Kind + "/" + w.Namespace + "/" + w.Name
			if seen[key] || w.Name == "" || w.Namespace == "" || w.Pod == nil && len(w.Claims) != 1 {
				t.Errorf("workload %s: %d claims, seen before: %v", key, len(w.Claims), seen[key])
			}
			seen[key] = true
		}
		if len(workloads) == 0 || len(workloads) > len(file.order) {
			t.Errorf("%d workloads of %d documents", len(workloads), len(file.order))
		}
	})
}
