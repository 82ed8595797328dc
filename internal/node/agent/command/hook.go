package command

import (
	"fmt"
	"os"
	"path/filepath"
)

// hookName is the hook program that is built beside berth-agent.
const hookName = "berth-cdi-hook"

// hookSource returns the path of the hook program beside this one.
func hookSource() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the CDI hook: %w", err)
	}
	return filepath.Join(filepath.Dir(self), hookName), nil
}
