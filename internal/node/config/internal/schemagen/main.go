// Command schemagen writes the JSON schema of AgentConfig, for editors and for checks
// before a file reaches a node, and docs/configuration.md. Names, types, the values of
// enumerations and the descriptions come from the source of api/v1alpha1, defaults from config.
//
// It must not be imported; go generate runs it, in internal/node/config.
package main

import (
	"fmt"
	"os"
)

// The paths, from internal/node/config.
const (
	source = "../../../api/v1alpha1"
	target = "../../../api/v1alpha1/agentconfig.schema.json"
	manual = "../../../docs/configuration.md"
)

func main() {
	text, err := generate(source)
	if err == nil {
		err = os.WriteFile(target, text, 0o644)
	}
	if err == nil {
		text, err = document(source)
	}
	if err == nil {
		err = os.WriteFile(manual, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "schemagen:", err)
		os.Exit(1)
	}
}
