package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox/fakecri"
)

// RecordPath is the file in which a hollow node's container runtime records its requests: lines of [fakecri.Record].
func (n Node) RecordPath() string { return filepath.Join(n.dir(), "cri-record.jsonl") }

// startFakeCRI starts the runtime of a hollow node. It listens on containerd's socket, so that the kubelet needs no
// other configuration.
func (n Node) startFakeCRI(ctx context.Context) error {
	proc, err := n.start(procFakeCRI, nil, filepath.Join(n.c.state.Bin, "berth-sandbox"), "fake-cri", "--socket",
		containerdSocket, "--record", n.RecordPath())
	if err != nil {
		return err
	}
	return waitFor(ctx, "fake container runtime of "+n.name, []Process{proc}, n.runtimeReady)
}

// Records returns the requests to a hollow node's container runtime.
func (n Node) Records() ([]fakecri.Record, error) {
	f, err := os.Open(n.RecordPath())
	if err != nil {
		return nil, fmt.Errorf("read record of %s: %w", n.name, err)
	}
	defer f.Close()
	var out []fakecri.Record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20) // a container's configuration can be long
	for lines.Scan() {
		var r fakecri.Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return out, fmt.Errorf("read record of %s: line %d: %w", n.name, len(out)+1, err)
		}
		out = append(out, r)
	}
	return out, lines.Err()
}

// CreatedContainers returns the requests to create containers on a hollow node, in order, with devices, CDI devices,
// mounts and environment.
func (n Node) CreatedContainers() ([]*runtimeapi.CreateContainerRequest, error) {
	records, err := n.Records()
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.CreateContainerRequest
	for _, r := range records {
		if r.Method != "CreateContainer" || r.Error != "" {
			continue
		}
		var req runtimeapi.CreateContainerRequest
		if err := protojson.Unmarshal(r.Request, &req); err != nil {
			return nil, fmt.Errorf("read record of %s: %w", n.name, err)
		}
		out = append(out, &req)
	}
	return out, nil
}
