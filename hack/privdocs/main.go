// Command privdocs writes docs/privileges.md from the rendering of the chart with every option: each right in the API and each
// privilege on a node, with the reason that stands beside it in the template. It fails on a right or privilege without a reason.
//
// It must not be imported; go generate runs it, in its own directory.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

// root is the directory of the repository, relative to this package.
const root = "../.."

// rendering is the chart with every option, below root. A test of the chart keeps it equal to what Helm renders.
const rendering = "charts/testdata/golden/everything.yaml"

func main() {
	text, err := page(root)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "docs", "privileges.md"), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "privdocs:", err)
		os.Exit(1)
	}
}
