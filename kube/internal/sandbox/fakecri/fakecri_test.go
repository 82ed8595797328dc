package fakecri

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestRecordsRequestsThatCreate(t *testing.T) {
	dir := t.TempDir()
	socket, record := filepath.Join(dir, "s"), filepath.Join(dir, "record")
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, socket, record) }()

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	call, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := client.Status(call, &runtimeapi.StatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	pod := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}}
	sandbox, err := client.RunPodSandbox(call, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CreateContainer(call, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId,
		SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "i"},
			CDIDevices: []*runtimeapi.CDIDevice{{Name: "k8s.berth.dev/gpu=GPU-1"}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StopContainer(call, &runtimeapi.StopContainerRequest{ContainerId: "unknown"}); err == nil {
		t.Error("stop an unknown container: want an error")
	}
	stop()
	if err := <-served; err != nil {
		t.Fatal(err)
	}

	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var methods []string
	for line := range bytes.SplitSeq(bytes.TrimSpace(data), []byte("\n")) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		methods = append(methods, r.Method)
		if r.Method == "CreateContainer" && !bytes.Contains(r.Request, []byte("k8s.berth.dev/gpu=GPU-1")) {
			t.Errorf("the record of CreateContainer lacks the CDI device: %s", r.Request)
		}
		if (r.Method == "StopContainer") != (r.Error != "") {
			t.Errorf("%s: error %q", r.Method, r.Error)
		}
	}
	if len(methods) != 3 || methods[0] != "RunPodSandbox" || methods[1] != "CreateContainer" {
		t.Errorf("recorded calls: want the three that change something, got %v", methods)
	}
}
