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
	pod := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}, LogDirectory: "/var/log/pods/n_p_u"}
	sandbox, err := client.RunPodSandbox(call, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.CreateContainer(call, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId,
		SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "i"}, LogPath: "c/0.log",
			CDIDevices: []*runtimeapi.CDIDevice{{Name: "k8s.berth.dev/gpu=GPU-1"}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	status, err := client.ContainerStatus(call, &runtimeapi.ContainerStatusRequest{ContainerId: made.ContainerId})
	if want := "/var/log/pods/n_p_u/c/0.log"; err != nil || status.Status.LogPath != want {
		t.Errorf("the log of the container is %q, %v; want %s", status.GetStatus().GetLogPath(), err, want)
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

// TestLogPathIsNeverEmpty: the kubelet deletes all files whose path begins with that of a removed container's log.
func TestLogPathIsNeverEmpty(t *testing.T) {
	for name, made := range map[string]*runtimeapi.CreateContainerRequest{
		"no configuration": {},
		"no folder":        {Config: &runtimeapi.ContainerConfig{LogPath: "0.log"}},
		"no file":          {SandboxConfig: &runtimeapi.PodSandboxConfig{LogDirectory: "/var/log/pods"}},
		"unknown":          nil,
	} {
		r := &recorder{logs: map[string]string{}}
		if made != nil {
			r.addLogPath(made, &runtimeapi.CreateContainerResponse{ContainerId: "a"})
		}
		answer := &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: "a"}}
		r.addLogPath(&runtimeapi.ContainerStatusRequest{}, answer)
		if answer.Status.LogPath != noLog {
			t.Errorf("%s: the log is %q, want %s", name, answer.Status.LogPath, noLog)
		}
	}
}
