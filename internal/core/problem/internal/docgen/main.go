// Command docgen writes docs/problems.md from the catalogue of problems.
//
// It must not be imported; go generate runs it, in internal/core/problem.
package main

import (
	"fmt"
	"os"
)

// target is the place of the document, from internal/core/problem.
const target = "../../../docs/problems.md"

func main() {
	if err := os.WriteFile(target, document(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}
