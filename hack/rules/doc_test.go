// Package rules_test guards what no compiler sees: which packages may import what (architecture_test.go), that documents name what exists
// (documents_test.go), the words of the glossary, the names of vendors, the size of packages and the width of comments. It covers all
// modules of the repository, and its tests run in the root: go test ./hack/rules.
package rules_test

import "testing"

// inRepository runs a test in the root of the repository. A TestMain that changed the folder would not do: Go caches results by the files
// that tests open, and resolves their names from the folder in which the tests begin.
func inRepository(t *testing.T) { t.Chdir("../..") }
