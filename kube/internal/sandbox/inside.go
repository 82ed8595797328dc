package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// Streams are a program's input and output.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// RunInside runs a program of the host in the node's mount and network namespaces, with KUBECONFIG set to an
// administrator's. Paths must be absolute.
func (n Node) RunInside(ctx context.Context, streams Streams, argv ...string) error {
	if len(argv) == 0 {
		return errors.New("run inside node: no command given")
	}
	return onFreshThread(func() error {
		if err := n.c.enterNetwork(); err != nil {
			return err
		}
		if err := enterNamespace(n.PID()); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.In, streams.Out, streams.Err
		cmd.Env = append(n.c.childEnv(), "KUBECONFIG="+n.c.pkiPath("admin.conf"))
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s inside node %s: %w", argv[0], n.name, err)
		}
		return nil
	})
}
