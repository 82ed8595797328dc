package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestEveryConfigFieldIsRead fails for a setting that is read from the file and then not used. The flags, which only
// write fields, do not count.
func TestEveryConfigFieldIsRead(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.go", "*/*.go", "../config/offers.go", "../config/health.go", "../counterlist/*.go", "../migwants/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	var code strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "flags/flags.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	fields := reflect.TypeFor[v1alpha1.AgentConfig]()
	for field := range fields.Fields() {
		if name := field.Name; name != "TypeMeta" && !strings.Contains(code.String(), "onfig."+name) {
			t.Errorf("AgentConfig.%s is not used in the agent", name)
		}
	}
}
