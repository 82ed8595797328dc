package main

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/cli/values"
	"github.com/berth-gpu/berth/internal/node/config"
)

func TestSchemaIsUpToDate(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{target, embedded} {
		if got, err := os.ReadFile(file); err != nil || string(got) != string(want) {
			t.Errorf("run make generate: %s is stale (%v)", file, err)
		}
	}
}

// open are the maps whose keys users choose, by their name; everything else is closed.
func open() []string {
	return []string{"global", "configs", "configFiles", "featureGates", "ResourceList", "annotations", "labels", "userAnnotations", "volumeAttributes",
		"options", "healthClasses", "migLayouts", "mig-devices", "devices"}
}

// TestSchemaIsClosed checks that each object of the schema refuses unknown keys, so that Helm refuses a typo wherever it is.
func TestSchemaIsClosed(t *testing.T) {
	text, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	closed, used := 0, map[string]bool{}
	var walk func(path []string, node any)
	walk = func(path []string, node any) {
		switch node := node.(type) {
		case []any:
			for _, item := range node {
				walk(path, item)
			}
		case map[string]any:
			if _, isMap := node["properties"].(map[string]any); isMap || node["type"] == "object" {
				switch name := path[len(path)-1]; {
				case node["additionalProperties"] == false:
					closed++
				case slices.Contains(open(), name):
					used[name] = true
				default:
					t.Errorf("%s takes any key", strings.Join(path, "/"))
				}
			}
			for key, below := range node {
				walk(append(slices.Clone(path), key), below)
			}
		}
	}
	walk([]string{"schema"}, schema)
	if closed < 50 {
		t.Errorf("only %d objects are closed", closed)
	}
	for _, name := range open() {
		if !used[name] {
			t.Errorf("no map is named %s", name)
		}
	}
}

// TestEachKeyIsDescribed checks that editors can show what each key of the chart means.
func TestEachKeyIsDescribed(t *testing.T) {
	text, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions map[string]struct {
			Properties map[string]struct{ Description string } `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Agent", "Alerts", "CriticalPods", "Dashboard", "Host", "Image", "Images", "MPS", "NetworkPolicy", "Operator", "PodMonitor",
		"Policies", "Resources", "Rights", "Scheduler"} {
		if len(schema.Definitions[name].Properties) == 0 {
			t.Errorf("there is no definition of %s", name)
		}
		for key, property := range schema.Definitions[name].Properties {
			if property.Description == "" {
				t.Errorf("%s.%s has no description", name, key)
			}
		}
	}
}

// TestValuesFileNamesEachKey checks that charts/berth/values.yaml has every key of the chart, where people look for it.
func TestValuesFileNamesEachKey(t *testing.T) {
	text, err := os.ReadFile("../../charts/berth/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.DecodeValues("values.yaml", text, &values.Values{}); err != nil {
		t.Error(err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	own := reflect.TypeFor[values.Values]().PkgPath()
	var walk func(path string, of reflect.Type, have map[string]any)
	walk = func(path string, of reflect.Type, have map[string]any) {
		for field := range of.Fields() {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Anonymous {
				walk(path, field.Type, have)
				continue
			}
			value, ok := have[key]
			if !ok && key != "global" && !strings.HasSuffix(path, ".resources") {
				t.Errorf("values.yaml does not have %s.%s", path, key)
			}
			if below, isMap := value.(map[string]any); isMap && field.Type.Kind() == reflect.Struct && field.Type.PkgPath() == own {
				walk(path+"."+key, field.Type, below)
			}
		}
	}
	walk("", reflect.TypeFor[values.Values](), file)
}
