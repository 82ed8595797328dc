package gpunode

import (
	"testing"

	"github.com/berth-gpu/berth/api/crds"
	"sigs.k8s.io/yaml"
)

// TestDefinitionKnowsEveryField finds a stale definition: an API server drops fields that the schema does not have.
func TestDefinitionKnowsEveryField(t *testing.T) {
	var definition struct {
		Metadata struct{ Name string }
		Spec     struct {
			Scope string
			Names struct {
				Plural     string
				ShortNames []string
			}
			Versions []struct {
				Name                     string
				AdditionalPrinterColumns []struct{ Name string }
				Schema                   struct{ OpenAPIV3Schema map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(crds.GPUNodes(), &definition); err != nil {
		t.Fatal(err)
	}
	spec := definition.Spec
	if definition.Metadata.Name != "gpunodes.berth.dev" || spec.Scope != "Cluster" || spec.Names.ShortNames[0] != "gpun" {
		t.Errorf("definition is %s, %s, %v", definition.Metadata.Name, spec.Scope, spec.Names.ShortNames)
	}
	var columns []string
	for _, column := range spec.Versions[0].AdditionalPrinterColumns {
		columns = append(columns, column.Name)
	}
	if len(columns) != 9 {
		t.Errorf("columns %v", columns)
	}
	blob, err := yaml.Marshal(owned(Build("node-0", input()), "node-0", "uid"))
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(blob, &object); err != nil {
		t.Fatal(err)
	}
	delete(object, "metadata") // the server's own schema
	walk(t, "", object, spec.Versions[0].Schema.OpenAPIV3Schema)
}

func walk(t *testing.T, path string, value any, schema map[string]any) {
	switch value := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name, field := range value {
			known, ok := properties[name].(map[string]any)
			if !ok {
				t.Errorf("the definition does not have %s.%s: run go generate in api/crds", path, name)
				continue
			}
			walk(t, path+"."+name, field, known)
		}
	case []any:
		items, _ := schema["items"].(map[string]any)
		for _, item := range value {
			walk(t, path+"[]", item, items)
		}
	}
}
