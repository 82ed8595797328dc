package sandbox

import "path/filepath"

// StartController starts a program of Bin as one more controller of the cluster: in the sandbox's network, whose API server reaches what it
// serves at 127.0.0.1, and with all rights. It ends with the sandbox.
func (c *Cluster) StartController(program string, args ...string) (Process, error) {
	argv := append([]string{filepath.Join(c.state.Bin, program), "--kubeconfig=" + c.AdminKubeconfigInside()}, args...)
	return c.start(launch{name: program, argv: argv})
}
