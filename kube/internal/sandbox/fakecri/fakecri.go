// Package fakecri serves the container runtime interface with a runtime that runs nothing and records the requests.
// With it, a real kubelet makes a node without the cost of containers.
package fakecri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// Record is a line of the record: a call that changed something.
type Record struct {
	Time    time.Time       `json:"time"`
	Method  string          `json:"method"`
	Request json.RawMessage `json:"request"`
	Error   string          `json:"error,omitempty"`
}

// recorded reports whether a call is recorded; read-only calls are not.
func recorded(method string) bool {
	switch method {
	case "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "PullImage":
		return true
	}
	return false
}

// Serve serves on a Unix socket until ctx ends, and appends to the file record.
func Serve(ctx context.Context, socket, record string) error {
	out, err := os.OpenFile(record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open record: %w", err)
	}
	defer out.Close()
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serve container runtime: %w", err)
	}
	r := &recorder{out: json.NewEncoder(out), logs: map[string]string{}}
	server := grpc.NewServer(grpc.UnaryInterceptor(r.intercept))
	runtime := newRuntime()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime)
	runtimeapi.RegisterImageServiceServer(server, runtime)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve container runtime: %w", err)
	}
	return nil
}

func newRuntime() *fake.RemoteRuntime {
	r := fake.NewFakeRemoteRuntime()
	r.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	r.RuntimeService.FakeLinuxConfiguration = &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}
	// The kubelet treats an image without a size as missing.
	r.ImageService.SetFakeImageSize(1)
	// The kubelet needs the file system usage for its eviction manager.
	usage := []*runtimeapi.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(),
		FsId:      &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{},
	}}
	r.ImageService.SetFakeFilesystemUsage(usage)
	r.ImageService.SetFakeContainerFilesystemUsage(usage)
	return r
}

type recorder struct {
	mu  sync.Mutex
	out *json.Encoder
	// logs are the paths of the containers' logs, by ID.
	logs map[string]string
}

// noLog is the path of a log that does not exist.
const noLog = "/nonexistent/berth-sandbox-no-log"

// addLogPath adds the path of a container's log to its status, which the fake runtime leaves out. It is never empty: when a container is
// removed, the kubelet deletes all files whose path begins with that of the log, and with an empty one it would begin with those of its
// working directory.
func (r *recorder) addLogPath(req, resp any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch answer := resp.(type) {
	case *runtimeapi.CreateContainerResponse:
		if made, ok := req.(*runtimeapi.CreateContainerRequest); ok && answer != nil {
			dir, file := made.GetSandboxConfig().GetLogDirectory(), made.GetConfig().GetLogPath()
			if dir != "" && file != "" {
				r.logs[answer.ContainerId] = path.Join(dir, file)
			}
		}
	case *runtimeapi.ContainerStatusResponse:
		if answer.GetStatus() != nil {
			answer.Status.LogPath = cmp.Or(r.logs[answer.Status.Id], noLog)
		}
	}
}

func (r *recorder) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	r.addLogPath(req, resp)
	method := path.Base(info.FullMethod)
	msg, ok := req.(proto.Message)
	if !ok || !recorded(method) {
		return resp, err
	}
	line := Record{Time: time.Now(), Method: method}
	if err != nil {
		line.Error = err.Error()
	}
	data, jsonErr := protojson.Marshal(msg)
	if jsonErr != nil {
		return nil, fmt.Errorf("record %s: %w", method, jsonErr)
	}
	line.Request = data
	r.mu.Lock()
	defer r.mu.Unlock()
	if recErr := r.out.Encode(line); recErr != nil {
		// A gap in the record would look like a call that was not made.
		return nil, fmt.Errorf("record %s: %w", method, recErr)
	}
	return resp, err
}
