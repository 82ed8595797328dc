package fit

import (
	"strings"
	"testing"
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
		"request name":    {claim("requests: [{name: r, exactly: {deviceClassName: x}}, {name: r, exactly: {deviceClassName: x}}]"), `spec.devices.requests[1].name is "r": want a name that no other request has`},
		"no device":       {claim("requests: [{name: r}]"), "request r: want either exactly or firstAvailable"},
		"no class":        {claim("requests: [{name: r, exactly: {count: 1}}]"), "request r: deviceClassName is missing"},
		"mode":            {claim("requests: [{name: r, exactly: {deviceClassName: x, allocationMode: Some}}]"), "request r: allocationMode Some: want ExactCount or All"},
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
		"missing claim":   {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimName: c}]}", `f.yaml: Pod p: ResourceClaim c of spec.resourceClaims entry "a" is neither in the file nor in namespace ml of the cluster`},
		"missing template": {
			"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimTemplateName: c}]}",
			`f.yaml: Pod p: ResourceClaimTemplate c of spec.resourceClaims entry "a" is neither in the file nor in namespace ml of the cluster`,
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
