package deviceplugin

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// callCount counts the running calls of an endpoint until their answers are sent, which is later than the end of their handlers.
// Streams do not count.
type callCount struct {
	mu      sync.Mutex
	running int
	// none is closed when the last call has ended; nil when nothing waits for it.
	none chan struct{}
}

type callKey struct{}

// TagRPC implements stats.Handler.
func (c *callCount) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	service := "/" + pluginapi.DevicePlugin_ServiceDesc.ServiceName + "/"
	if method, ours := strings.CutPrefix(info.FullMethodName, service); !ours || method == "ListAndWatch" {
		return ctx
	}
	return context.WithValue(ctx, callKey{}, true)
}

// HandleRPC implements stats.Handler.
func (c *callCount) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if ctx.Value(callKey{}) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch event.(type) {
	case *stats.Begin:
		c.running++
	case *stats.End:
		c.running--
		if c.running == 0 && c.none != nil {
			close(c.none)
			c.none = nil
		}
	}
}

// TagConn implements stats.Handler.
func (c *callCount) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (c *callCount) HandleConn(context.Context, stats.ConnStats) {}

// whenNone returns a channel that is closed when no call runs.
func (c *callCount) whenNone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	none := make(chan struct{})
	if c.running == 0 {
		close(none)
	} else {
		c.none = none
	}
	return none
}

// endStreams ends the peers' health streams with the endpoint. The kubelet's streams end themselves, after they have sent the last list.
func (e *endpoint) endStreams(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if service == any(e) {
		return handler(service, stream)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(e.closing, cancel)()
	return handler(service, endingStream{stream, ctx})
}

// endingStream is a stream with another context.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s endingStream) Context() context.Context { return s.ctx }
