package kubeletsync

import (
	"context"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/filewatch"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// watchCheckpoint signals changes of the kubelet's checkpoint. While its directory does not exist, or cannot be watched,
// the periodic looks remain, and it tries again after each interval.
func (s *Sync) watchCheckpoint(ctx context.Context) <-chan struct{} {
	return filewatch.Watch(ctx, filewatch.Deps{
		Files: []string{filepath.Join(s.deps.KubeletDir, kubelet.CheckpointFile)}, Ops: filewatch.Any, Pause: lookInterval, Clock: s.deps.Clock, Log: s.deps.Log,
	})
}
