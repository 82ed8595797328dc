package sandbox

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeReady checks that the node's container runtime can run pods.
func (n Node) runtimeReady(ctx context.Context) error {
	conn, err := n.dialContainerd()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	for _, cond := range st.GetStatus().GetConditions() {
		if !cond.Status && cond.Type == runtimeapi.RuntimeReady {
			return errors.New(cond.Message)
		}
	}
	return nil
}
