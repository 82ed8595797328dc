package pages

import (
	"cmp"
	"os"
)

// DefaultInstance returns the name that distinguishes this agent from another one of the node: the name of its pod, or
// the host name where there is no pod.
func DefaultInstance() string {
	name, _ := os.Hostname() // An error leaves the name empty, which Serve refuses with a hint.
	return cmp.Or(os.Getenv("POD_NAME"), name)
}
