package deviceplugin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// options are those of the registration and of GetDevicePluginOptions. With PreStartRequired, containers would fail to restart after the
// kubelet has lost its checkpoint.
func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements v1beta1.DevicePlugin.
func (e *endpoint) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch implements v1beta1.DevicePlugin: it sends the list, and again after each change, until the kubelet ends the stream or the
// endpoint is closed.
func (e *endpoint) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	e.streamOpened()
	defer e.streamClosed()
	var sent uint64
	for closing := false; ; {
		now := e.server.published.load()
		if !now.standby && now.version != sent {
			if err := stream.Send(now.list); err != nil {
				return err
			}
			sent = now.version
			e.server.stats.lists.Add(1)
			continue
		}
		if closing {
			return nil
		}
		select {
		case <-now.next:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-e.closing.Done():
			// The latest version is sent before the end.
			closing = true
		}
	}
}

// GetPreferredAllocation implements v1beta1.DevicePlugin.
func (e *endpoint) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	s := e.server
	v := s.view.Load()
	blocked := func(key gpu.DeviceKey) bool {
		_, blocked := s.ledger.BlockedBy(s.resource, key)
		return blocked
	}
	response := &pluginapi.PreferredAllocationResponse{}
	for _, r := range request.ContainerRequests {
		q := v.request(r.AvailableDeviceIDs, r.MustIncludeDeviceIDs, int(r.AllocationSize))
		q.listed = s.ledger.Offered(s.resource, v.keys(make([]gpu.DeviceKey, 0, len(q.free)), q.free))
		ids, err := v.prefer(q, blocked)
		if err != nil {
			s.stats.refusals.Add(1)
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	s.stats.prefers.Add(1)
	return response, nil
}

// Allocate implements v1beta1.DevicePlugin. The kubelet shows its error on the pod, which has then failed.
func (e *endpoint) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	s := e.server
	v := s.view.Load()
	response := &pluginapi.AllocateResponse{}
	var keys []gpu.DeviceKey
	var warnings []string
	for _, r := range request.ContainerRequests {
		picked, err := v.pick(r.DevicesIds)
		code := codes.NotFound
		if err == nil {
			code, err = codes.InvalidArgument, v.limit(picked)
		}
		if err != nil {
			s.stats.refusals.Add(1)
			return nil, status.Error(code, err.Error())
		}
		keys = v.keys(keys, picked)
		warnings = append(warnings, v.sharedWarning(picked))
		response.ContainerResponses = append(response.ContainerResponses, s.viewer.answer(v, picked))
	}
	if err := s.hold(keys, response); err != nil {
		s.stats.refusals.Add(1)
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	s.stats.allocations.Add(1)
	for _, warning := range warnings {
		s.report(warning)
	}
	return response, nil
}

// hold records the allocation of the devices, with a grant that it mounts into the containers.
func (s *server) hold(keys []gpu.DeviceKey, response *pluginapi.AllocateResponse) error {
	if s.grants == nil {
		return s.ledger.Allocate(s.resource, "", keys)
	}
	id := s.grants.Take()
	if err := s.ledger.Allocate(s.resource, id, keys); err != nil {
		s.grants.Return(id)
		return err
	}
	host, container := s.grants.Paths(id)
	for _, r := range response.ContainerResponses {
		r.Mounts = append(r.Mounts, &pluginapi.Mount{HostPath: host, ContainerPath: container, ReadOnly: true})
	}
	return nil
}

// report logs a warning about an allocation and passes it on. An empty one is none.
func (s *server) report(message string) {
	if message == "" {
		return
	}
	//lint:ignore sloglint the message is also the event's
	s.log.Warn(message)
	if s.warn != nil {
		s.warn(s.resource, message)
	}
}

// PreStartContainer implements v1beta1.DevicePlugin. It does nothing.
func (e *endpoint) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}
