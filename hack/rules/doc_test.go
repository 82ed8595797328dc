// Package rules_test guards what no compiler sees: which packages may import what (architecture_test.go), that documents name what exists
// (documents_test.go), the words of the glossary, the names of vendors, the size of packages and the width of comments. It covers all
// modules of the repository, and its tests run in the root: go test ./hack/rules.
package rules_test

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
