package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/values"
)

// quantity is the form of Kubernetes' quantities that are not negative, such as 100m, 64Mi and 1e3.
const quantity = `^[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`

// configDefinition is the name of AgentConfig below $defs.
const configDefinition = "AgentConfig"

// generate returns the schema.
func generate() ([]byte, error) {
	reflector := jsonschema.Reflector{ExpandedStruct: true, Anonymous: true, RequiredFromJSONSchemaTags: true, Mapper: mapped,
		KeyNamer: func(name string) string { return name }}
	if err := reflector.AddGoComments("github.com/berth-gpu/berth/hack/valuesschema", source, jsonschema.WithFullComment()); err != nil {
		return nil, fmt.Errorf("read comments: %w", err)
	}
	text, err := json.Marshal(reflector.Reflect(&values.Values{}))
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	if err := addConfig(schema); err != nil {
		return nil, err
	}
	if err := constrain(schema["$defs"].(map[string]any)); err != nil {
		return nil, err
	}
	schema["title"] = "Values of the chart berth"
	describe(schema)
	// A chart that contains this one gives its charts these.
	schema["properties"].(map[string]any)["global"] = map[string]any{"type": "object",
		"description": "values that a chart which contains this one gives to all its charts; nothing here reads them"}
	text, err = json.MarshalIndent(schema, "", "  ")
	return append(text, '\n'), err
}

// mapped returns the schema of types that are written otherwise than their Go type.
func mapped(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string", Pattern: quantity}, {Type: "number", Minimum: "0"}}}
	case reflect.TypeFor[intstr.IntOrString]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "integer"}, {Type: "string"}}}
	case reflect.TypeFor[metav1.Duration]():
		return &jsonschema.Schema{Type: "string"}
	case reflect.TypeFor[metav1.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case reflect.TypeFor[v1alpha1.AgentConfig]():
		return &jsonschema.Schema{Ref: "#/$defs/" + configDefinition}
	}
	return nil
}

// addConfig adds the schema of AgentConfig with its own definitions. The chart writes its apiVersion and kind.
func addConfig(schema map[string]any) error {
	text, err := os.ReadFile(agentConfig)
	if err != nil {
		return fmt.Errorf("read schema of AgentConfig: %w", err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("read schema of AgentConfig: %w", err)
	}
	definitions := schema["$defs"].(map[string]any)
	own, _ := config["$defs"].(map[string]any)
	for name, definition := range own {
		if _, taken := definitions[name]; taken {
			return fmt.Errorf("the definition %s is in the chart's values and in AgentConfig: rename one of them", name)
		}
		definitions[name] = definition
	}
	for _, key := range []string{"$defs", "$schema", "$id", "required"} {
		delete(config, key)
	}
	definitions[configDefinition] = config
	return nil
}

// describe makes the names at the beginning of descriptions those of the keys.
func describe(node any) {
	switch node := node.(type) {
	case []any:
		for _, item := range node {
			describe(item)
		}
	case map[string]any:
		if text, ok := node["description"].(string); ok {
			node["description"] = strings.Join(strings.Fields(text), " ")
		}
		properties, _ := node["properties"].(map[string]any)
		for key, property := range properties {
			property, _ := property.(map[string]any)
			if text, ok := property["description"].(string); ok {
				first, rest, _ := strings.Cut(text, " ")
				if strings.EqualFold(first, key) {
					property["description"] = key + " " + rest
				}
			}
		}
		for _, child := range node {
			describe(child)
		}
	}
}
