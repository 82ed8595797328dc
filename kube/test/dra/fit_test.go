package dra

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/cli/fit"
)

// TestFitSettings: berth fit asks the allocator as a scheduler with the default feature gates and configuration does.
func TestFitSettings(t *testing.T) {
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	got := fit.Defaults()
	if want := dynamicresources.AllocatorFeatures(gates); got.Allocator != want {
		t.Errorf("the features of the allocator are %+v, want %+v", got.Allocator, want)
	}
	want := cel.Features{
		EnableConsumableCapacity: gates.EnableDRAConsumableCapacity, EnableListTypeAttributes: gates.EnableDRAListTypeAttributes,
	}
	if got.CEL != want {
		t.Errorf("the features of CEL are %+v, want %+v", got.CEL, want)
	}
	args, err := scheme.Scheme.New(schema.GroupVersionKind{Group: config.GroupName, Version: "v1", Kind: "DynamicResourcesArgs"})
	if err != nil {
		t.Fatal(err)
	}
	scheme.Scheme.Default(args)
	var internalArgs config.DynamicResourcesArgs
	if err := scheme.Scheme.Convert(args, &internalArgs, nil); err != nil {
		t.Fatal(err)
	}
	if got.Timeout != internalArgs.FilterTimeout.Duration {
		t.Errorf("the timeout is %s, want %s", got.Timeout, internalArgs.FilterTimeout.Duration)
	}
}

// TestFitReadsWhatTheAPIServerAccepts: a claim that berth fit refuses is refused by the API server too, and the other way round.
func TestFitReadsWhatTheAPIServerAccepts(t *testing.T) {
	list := func(count int, format string) string {
		var entries []string
		for i := range count {
			entries = append(entries, strings.ReplaceAll(format, "%d", fmt.Sprint(i)))
		}
		return "[" + strings.Join(entries, ", ") + "]"
	}
	exactly := func(rest string) string { return "requests: [{name: r, exactly: {deviceClassName: x" + rest + "}}]" }
	selector := func(expression string) string {
		return exactly(fmt.Sprintf(", selectors: [{cel: {expression: %q}}]", expression))
	}
	const nested = "[1,2,3,4,5,6,7,8,9].all("
	for _, test := range []struct {
		devices string
		valid   bool
	}{
		{exactly(""), true},
		{exactly(", count: 32"), true},
		{exactly(", count: -1"), false},
		{exactly(", allocationMode: All"), true},
		{exactly(", allocationMode: All, count: 1"), false},
		{exactly(", allocationMode: Some"), false},
		{exactly(", tolerations: [{operator: Exists}]"), true},
		{exactly(", capacity: {requests: {memory: 1Gi}}"), true},
		{"requests: " + list(32, "{name: r%d, exactly: {deviceClassName: x}}"), true},
		{"requests: " + list(33, "{name: r%d, exactly: {deviceClassName: x}}"), false},
		{"requests: [{name: r, exactly: {deviceClassName: x}}, {name: r, exactly: {deviceClassName: x}}]", false},
		{"requests: [{name: R, exactly: {deviceClassName: x}}]", false},
		{"requests: [{name: r}]", false},
		{"requests: [{name: r, exactly: {deviceClassName: x}, firstAvailable: [{name: s, deviceClassName: x}]}]", false},
		{"requests: [{name: r, firstAvailable: " + list(8, "{name: s%d, deviceClassName: x}") + "}]", true},
		{"requests: [{name: r, firstAvailable: " + list(9, "{name: s%d, deviceClassName: x}") + "}]", false},
		{"requests: [{name: r, firstAvailable: [{name: s, deviceClassName: x}, {name: s, deviceClassName: x}]}]", false},
		{exactly(", selectors: " + list(32, "{cel: {expression: 'true'}}")), true},
		{exactly(", selectors: " + list(33, "{cel: {expression: 'true'}}")), false},
		{exactly(", selectors: [{}]"), false},
		{selector(`device.driver == "x"`), true},
		{selector(`device.drivr == "x"`), false},
		{selector("1"), false},
		{selector("true" + strings.Repeat(" ", 10*1024-4)), true},
		{selector("true" + strings.Repeat(" ", 10*1024-3)), false},
		{selector(nested + "a, " + nested + "b, a+b > 0))"), true},
		{selector(nested + "a, " + nested + "b, " + nested + "c, " + nested + "d, " + nested + "e, " + nested + "f, a+b+c+d+e+f > 0))))))"), false},
		{exactly("") + ", constraints: [{requests: [r], matchAttribute: a.b/c}]", true},
		{exactly("") + ", constraints: [{requests: [q], matchAttribute: a.b/c}]", false},
		{exactly("") + ", constraints: [{distinctAttribute: a.b/c}]", true},
		{exactly("") + ", constraints: [{matchAttribute: c}]", false},
		{exactly("") + ", constraints: [{requests: [r]}]", false},
		{exactly("") + ", constraints: " + list(33, "{matchAttribute: a.b/c%d}"), false},
	} {
		text := "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {" + test.devices + "}}}\n"
		var template resourceapi.ResourceClaimTemplate
		if err := yaml.UnmarshalStrict([]byte(text), &template); err != nil {
			t.Fatal(err)
		}
		_, refused := create[resourceapi.ResourceClaimTemplate](resourceclaimtemplate.NewStrategy(nil), "resourceclaimtemplates", "default", &template, &internal.ResourceClaimTemplate{})
		_, wrong := fit.Parse("f.yaml", []byte(text), "default", fit.Defaults())
		if (refused == nil) != test.valid || (wrong == nil) != test.valid {
			t.Errorf("%.200s\nthe API server: %v\nberth fit: %v\nwant valid: %v", test.devices, refused, wrong, test.valid)
		}
	}
}
