// Package cdihook is the program that container runtimes run as CDI hook: the container toolkit's hooks behind one
// command line.
//
// It guarantees that an unknown hook is a warning and does not keep the container from starting, so that the spec of
// another version of Berth does no harm.
//
// It must not import any package of Berth but internal/core/version: it runs on the host once per hook and container,
// so it is small. The toolkit's update-ldcache imports go-nvml through its configuration package although no hook calls
// NVML, so cgo is needed to link it; a static link (see cmd/berth-cdi-hook) makes it independent of the host's libc.
package cdihook

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/urfave/cli/v3"

	"github.com/berth-gpu/berth/internal/core/version"
)

// Run runs the hook named by args[1] with the arguments after it. It reads the container's state from stdin (OCI runtime spec,
// "POSIX-platform Hooks"). An error means that the hook failed.
func Run(ctx context.Context, log *slog.Logger, args []string) error {
	return command(log).Run(ctx, args)
}

// Names returns the hooks of the program, sorted.
func Names() []string {
	var names []string
	for _, c := range command(slog.New(slog.DiscardHandler)).Commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

func command(log *slog.Logger) *cli.Command {
	return commands.ConfigureCDIHookCommand(logger{log}, &cli.Command{
		Name:    "berth-cdi-hook",
		Version: version.Current().String(),
		Usage:   "CDI hooks, which a container runtime runs while it creates a GPU container",
	})
}

// logger implements the toolkit's logger interface.
type logger struct{ to *slog.Logger }

func (l logger) log(level slog.Level, format string, args []any) {
	//lint:ignore sloglint the message is the toolkit's
	l.to.Log(context.Background(), level, fmt.Sprintf(format, args...))
}

func (l logger) Tracef(format string, args ...any)   { l.log(slog.LevelDebug, format, args) }
func (l logger) Debugf(format string, args ...any)   { l.log(slog.LevelDebug, format, args) }
func (l logger) Infof(format string, args ...any)    { l.log(slog.LevelInfo, format, args) }
func (l logger) Warningf(format string, args ...any) { l.log(slog.LevelWarn, format, args) }
func (l logger) Errorf(format string, args ...any)   { l.log(slog.LevelError, format, args) }
