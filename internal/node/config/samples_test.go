package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSamples reads every configuration in docs/examples as the agent would.
func TestSamples(t *testing.T) {
	kinds := map[string]func(file string, data []byte) error{
		"config-": func(file string, data []byte) error {
			loaded, err := Read(file, data, nil)
			// A sample also shows fields that NVIDIA's plugin ignores.
			loaded.Notes = slices.DeleteFunc(loaded.Notes, func(note string) bool {
				return strings.Contains(note,
					"NVIDIA's device plugin ignores it")
			})
			if err == nil && len(loaded.Notes) > 0 {
				t.Errorf("the sample has fields without effect: %v", loaded.Notes)
			}
			return err
		},
		"mig-": func(file string, data []byte) error {
			_, err := ParseMIGLayouts(file, data)
			return err
		},
	}
	files, err := filepath.Glob("../../../docs/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]int{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for prefix, parse := range kinds {
			if strings.HasPrefix(filepath.Base(file), prefix) {
				read[prefix]++
				if err := parse(file, data); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for prefix := range kinds {
		if read[prefix] == 0 {
			t.Errorf("there is no sample %s*.yaml", prefix)
		}
	}
}
