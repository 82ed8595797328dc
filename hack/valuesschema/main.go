// Command valuesschema writes charts/berth/values.schema.json, by which Helm refuses wrong values, from the types of internal/cli/values.
// The schema is closed at every level but for maps whose keys users choose. The configurations have the schema of AgentConfig.
//
// It must not be imported; go generate runs it, in its own directory.
package main

import (
	"fmt"
	"os"
)

//go:generate go run .

// The paths, from this package.
const (
	source      = "../../internal/cli/values"
	agentConfig = "../../api/v1alpha1/agentconfig.schema.json"
	target      = "../../charts/berth/values.schema.json"
	// embedded is a copy for berth values check, which can embed nothing of another directory.
	embedded = source + "/values.schema.json"
)

func main() {
	text, err := generate()
	if err == nil {
		err = os.WriteFile(target, text, 0o644)
	}
	if err == nil {
		err = os.WriteFile(embedded, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "valuesschema:", err)
		os.Exit(1)
	}
}
