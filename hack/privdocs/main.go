// Command privdocs writes docs/privileges.md from the manifests of deploy/: each right in the API and each privilege on a node, with
// the reason that stands beside it in the manifest. It fails on a right or privilege without a reason.
//
// It must not be imported; go generate runs it, in its own directory.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

// root is the directory of the repository, relative to this package; the page and the manifests are named from it.
const root = "../.."

// manifests returns the manifests in the order of the page. Those of options follow those that are always applied.
func manifests() []string {
	return []string{"deploy/agent.yaml", "deploy/mps.yaml", "deploy/podmonitor.yaml", "deploy/policies.yaml", "deploy/options/config-map.yaml", "deploy/options/dra.yaml",
		"deploy/options/node-feature.yaml", "deploy/options/taint-unhealthy.yaml"}
}

func main() {
	text, err := page(root, manifests())
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "docs", "privileges.md"), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "privdocs:", err)
		os.Exit(1)
	}
}
