// Command docgen writes docs/metrics.md from the catalogue of metrics.
//
// It must not be imported; go generate runs it, in internal/node/metrics.
package main

import (
	"fmt"
	"os"
)

// target is the place of the document, from internal/node/metrics.
const target = "../../../docs/metrics.md"

func main() {
	queries, err := os.ReadFile(queriesFile)
	if err == nil {
		err = os.WriteFile(target, document(string(queries)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}
