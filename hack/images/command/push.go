package command

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/program"
	"github.com/berth-gpu/berth/hack/images/publish"
)

func pushCommand() *cobra.Command {
	var images string
	cmd := &cobra.Command{
		Use:   "push REGISTRY",
		Short: "Push the images that berth-images make wrote, each with its bill of materials",
		Long: `Push the images that berth-images make wrote. Each keeps its tag and its digest; its bill of materials is attached to
it as a referrer. The credentials are those of docker or podman: $DOCKER_CONFIG/config.json, ~/.docker/config.json or
$REGISTRY_AUTH_FILE, the content of which is also what a pull secret of Kubernetes has.`,
		Example: `  docker login registry.example.com
  berth-images push registry.example.com/berth
  berth-images push 127.0.0.1:5000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return push(cmd, images, args[0]) },
	}
	cmd.Flags().StringVar(&images, "images", "bin/images", "directory that berth-images make wrote")
	return cmd
}

func push(cmd *cobra.Command, images, registry string) error {
	progress := &progress{cmd: cmd}
	publisher, err := publish.New(publish.Deps{Registry: registry, Progress: progress.report})
	if err != nil {
		return err
	}
	for _, p := range program.All() {
		layout := filepath.Join(images, p.Name)
		img, err := image.Load(layout)
		if err != nil {
			return fmt.Errorf("%w; make the images first: make images", err)
		}
		bill, err := os.ReadFile(layout + billSuffix)
		if err != nil {
			return fmt.Errorf("read bill of %s: %w; make the images first: make images", p.Name, err)
		}
		progress.begin(p.Name)
		reference, err := publisher.Push(cmd.Context(), img, bill)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), reference); err != nil {
			return err
		}
	}
	return nil
}

// progress prints at most one line per second about a push.
type progress struct {
	cmd  *cobra.Command
	name string
	last time.Time
}

func (p *progress) begin(name string) { p.name, p.last = name, time.Now() }

func (p *progress) report(sent, all int64) {
	if now := time.Now(); now.Sub(p.last) >= time.Second {
		p.last = now
		p.cmd.PrintErrf("pushing %s: %d of %d MB\n", p.name, sent/1_000_000, (all+999_999)/1_000_000)
	}
}
