// Command berth-cdi-hook is run by the container runtime, as configured in the CDI spec of the node, while a GPU
// container is created: it creates links, refreshes the library cache and sets driver options inside the container.
//
// The agent copies it to the host, so it has to run on any host: link it statically
// with
//
//	go build -tags netgo,osusergo -ldflags '-s -w -linkmode external -extldflags -static' ./cmd/berth-cdi-hook
//
// because no GPU container can start if the hook does not load with the host's libc. (CGO_ENABLED=0 cannot link it: see
// internal/hardware/nvidia/cdihook.)
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/berth-gpu/berth/internal/hardware/nvidia/cdihook"
)

func main() {
	level := slog.LevelWarn
	if os.Getenv("NVIDIA_CTK_DEBUG") == "true" {
		level = slog.LevelDebug
	}
	// The runtime shows on the pod what a failing hook prints on stderr.
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := cdihook.Run(context.Background(), log, os.Args); err != nil {
		log.Error("the container is not started because its CDI hook failed", "args", os.Args, "error", err)
		os.Exit(1)
	}
}
