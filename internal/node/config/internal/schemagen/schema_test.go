package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/health"
)

const (
	up      = "../../../../../"
	shipped = up + "api/v1alpha1/agentconfig.schema.json"
)

func schemaOf(t *testing.T) object {
	t.Helper()
	text, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	var schema object
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestShippedSchemaIsUpToDate(t *testing.T) {
	want, err := generate(up + "api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run make generate: the shipped schema is stale (-want +shipped):\n%s", diff)
	}
}

// TestHealthClassesAreNamed checks that the description of healthClasses names each class.
func TestHealthClassesAreNamed(t *testing.T) {
	properties, _ := schemaOf(t)["properties"].(object)
	field, _ := properties["healthClasses"].(object)
	description, _ := field["description"].(string)
	for _, class := range health.Classes() {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(string(class)) + `\b`).MatchString(description) {
			t.Errorf("the class %s is not in %q", class, description)
		}
	}
}

// TestSchemaHasTheKeysOfTheTypes compares the schema with the types, which the decoder uses.
func TestSchemaHasTheKeysOfTheTypes(t *testing.T) {
	schema := schemaOf(t)
	defs, _ := schema["$defs"].(object)
	seen := map[reflect.Type]bool{}
	var check func(of reflect.Type)
	check = func(of reflect.Type) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || seen[of] || of.PkgPath() != reflect.TypeFor[v1alpha1.AgentConfig]().PkgPath() || of.Name() == "AllOrIndices" {
			return
		}
		seen[of] = true
		definition, _ := defs[of.Name()].(object)
		want := []string{}
		if of.Name() == "AgentConfig" {
			definition, want = schema, []string{"apiVersion", "kind"}
		}
		for field := range of.Fields() {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				want = append(want, name)
				check(field.Type)
			}
		}
		properties, _ := definition["properties"].(object)
		got := []string{}
		for name, property := range properties {
			got = append(got, name)
			said, _ := property.(object)
			if said["description"] == nil && said["$ref"] == nil && said["const"] == nil {
				t.Errorf("%s.%s is not described", of.Name(), name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the keys of %s (-type +schema):\n%s", of.Name(), diff)
		}
	}
	check(reflect.TypeFor[v1alpha1.AgentConfig]())
}

func TestSamplesAreOfTheSchema(t *testing.T) {
	schema := schemaOf(t)
	files, err := filepath.Glob(up + "docs/examples/config-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var value object
		if err := yaml.Unmarshal(text, &value); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if value["kind"] != "AgentConfig" {
			continue // A sample of NVIDIA's format.
		}
		checked++
		if wrong := invalid(schema, schema, value, ""); wrong != "" {
			t.Errorf("%s: %s", file, wrong)
		}
	}
	if checked == 0 {
		t.Error("there is no sample to check")
	}
}

// TestSchemaRefuses checks that the schema refuses mistakes that an editor should show.
func TestSchemaRefuses(t *testing.T) {
	schema := schemaOf(t)
	tests := map[string]struct{ file, want string }{
		"unknown key":   {`{exclude: ["0"]}`, ".exclude: unknown key"},
		"wrong type":    {`{gpus: {}}`, ".gpus: want array"},
		"unknown value": {`{gpus: [{sharing: {mode: vgpu, replicas: 2}}]}`, ".gpus[0].sharing.mode: none of [timeSlicing mps]"},
		"missing key":   {`{gpus: [{sharing: {mode: mps}}]}`, ".gpus[0].sharing: replicas is missing"},
		"too small":     {`{gpus: [{sharing: {mode: mps, replicas: 0}}]}`, ".gpus[0].sharing.replicas: 0 is under 1"},
		"too large": {`{gpus: [{sharing: {mode: mps, replicas: 2, mps: {activeThreadPercentage: 101}}}]}`,
			"activeThreadPercentage: 101 is over 100"},
		"neither form":    {`{migLayouts: {a: [{devices: some, mig-enabled: true}]}}`, ".migLayouts.a[0].devices: no form fits"},
		"no duration":     {`{pollInterval: soon}`, ".pollInterval: does not match"},
		"another version": {`{apiVersion: v1}`, ".apiVersion: want berth.dev/v1alpha1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var value object
			if err := yaml.Unmarshal([]byte(tc.file), &value); err != nil {
				t.Fatal(err)
			}
			if got := invalid(schema, schema, value, ""); !strings.Contains(got, tc.want) {
				t.Errorf("the schema returns %q, want %q", got, tc.want)
			}
		})
	}
}

// invalid is a validator of the few keywords of JSON Schema that the generator writes.
func invalid(root, schema object, value any, at string) string {
	if target, ok := schema["$ref"].(string); ok {
		defs, _ := root["$defs"].(object)
		definition, ok := defs[strings.TrimPrefix(target, "#/$defs/")].(object)
		if !ok {
			return at + ": the schema has no " + target
		}
		return invalid(root, definition, value, at)
	}
	if forms, ok := schema["anyOf"].([]any); ok {
		if !slices.ContainsFunc(forms, func(form any) bool { return invalid(root, form.(object), value, at) == "" }) {
			return at + ": no form fits"
		}
		return ""
	}
	if want, ok := schema["const"]; ok && want != value {
		return fmt.Sprintf("%s: want %v", at, want)
	}
	if values, ok := schema["enum"].([]any); ok && !slices.Contains(values, value) {
		return fmt.Sprintf("%s: none of %v", at, values)
	}
	if want, ok := schema["type"].(string); ok && want != typeOf(value) {
		return at + ": want " + want
	}
	switch value := value.(type) {
	case string:
		if pattern, ok := schema["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(value) {
			return at + ": does not match " + pattern
		}
	case float64:
		if limit, ok := schema["minimum"].(float64); ok && value < limit {
			return fmt.Sprintf("%s: %v is under %v", at, value, limit)
		}
		if limit, ok := schema["maximum"].(float64); ok && value > limit {
			return fmt.Sprintf("%s: %v is over %v", at, value, limit)
		}
	case []any:
		for i, item := range value {
			if wrong := invalid(root, schema["items"].(object), item, fmt.Sprintf("%s[%d]", at, i)); wrong != "" {
				return wrong
			}
		}
	case object:
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := value[name.(string)]; !ok {
				return fmt.Sprintf("%s: %v is missing", at, name)
			}
		}
		properties, _ := schema["properties"].(object)
		for name, field := range value {
			of, known := properties[name].(object)
			if !known {
				of, known = schema["additionalProperties"].(object)
			}
			if !known {
				return at + "." + name + ": unknown key"
			}
			if wrong := invalid(root, of, field, at+"."+name); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}

func typeOf(value any) string {
	switch value := value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		if value == math.Trunc(value) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	case object:
		return "object"
	}
	return "null"
}
