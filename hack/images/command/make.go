package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/program"
	"github.com/berth-gpu/berth/hack/images/sbom"
	"github.com/berth-gpu/berth/internal/core/version"
)

// makeOptions are the flags of `berth-images make`.
type makeOptions struct {
	bin      string
	output   string
	registry string
	tag      string
}

func makeCommand() *cobra.Command {
	var o makeOptions
	cmd := &cobra.Command{
		Use:   "make",
		Short: "Make the image of each program: an OCI layout, a tarball and a bill of materials",
		Long: `Make the image of each program, from the programs of a directory and the libraries of this machine that they are
linked with. The same programs give the same digests. For each program three things are written to the output directory:

  NAME/            the image as an OCI layout
  NAME.tar         the same as a tarball, for docker load, ctr image import and podman load
  NAME.cdx.json    the bill of materials (CycloneDX)`,
		Example: `  berth-images make --bin bin --output bin/images
  berth-images make --bin bin --output bin/images --registry registry.example.com/berth --tag v0.1.0
  ctr -n k8s.io image import bin/images/berth-agent.tar`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return makeAll(cmd, o) },
	}
	cmd.Flags().StringVar(&o.bin, "bin", "bin", "directory of the programs")
	cmd.Flags().StringVar(&o.output, "output", "bin/images", "directory of the results")
	cmd.Flags().StringVar(&o.registry, "registry", "berth.dev", "registry of the images' names, with or without a path")
	cmd.Flags().StringVar(&o.tag, "tag", "dev", "tag of the images' names")
	return cmd
}

// makeAll makes the images side by side, and prints the names and digests when all are made.
func makeAll(cmd *cobra.Command, o makeOptions) error {
	programs := program.All()
	made := make([]image.Named, len(programs))
	group, ctx := errgroup.WithContext(cmd.Context())
	for i, p := range programs {
		cmd.PrintErrf("making the image of %s\n", p.Name)
		group.Go(func() (err error) {
			made[i], err = o.makeOne(ctx, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, p := range programs {
		if err := printMade(cmd, made[i], o.layout(p)+".tar"); err != nil {
			return err
		}
	}
	return nil
}

// layout returns the directory of a program's image.
func (o makeOptions) layout(p program.Program) string { return filepath.Join(o.output, p.Name) }

func (o makeOptions) makeOne(ctx context.Context, p program.Program) (image.Named, error) {
	if err := p.CheckVersion(ctx, o.bin); err != nil {
		return image.Named{}, fmt.Errorf("make image of %s: %w", p.Name, err)
	}
	spec, err := p.Spec(o.bin)
	if err != nil {
		return image.Named{}, err
	}
	img, err := image.Make(o.registry+"/"+p.Name+":"+o.tag, spec)
	if err != nil {
		return image.Named{}, err
	}
	bill, err := sbom.Make(ctx, sbom.Subject{Name: p.Name, Version: version.Current().Version, Files: spec.Files})
	if err != nil {
		return image.Named{}, err
	}
	if err := image.Save(o.layout(p), img); err != nil {
		return image.Named{}, err
	}
	if err := image.WriteTarball(o.layout(p)+".tar", o.layout(p)); err != nil {
		return image.Named{}, err
	}
	if err := renameio.WriteFile(o.layout(p)+billSuffix, bill, 0o644); err != nil {
		return image.Named{}, fmt.Errorf("write bill of %s: %w", p.Name, err)
	}
	return img, nil
}

// billSuffix is added to the path of a layout for the path of its bill.
const billSuffix = ".cdx.json"

func printMade(cmd *cobra.Command, img image.Named, tarball string) error {
	digest, err := img.Image.Digest()
	if err != nil {
		return err
	}
	info, err := os.Stat(tarball)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s@%s  %s, %d MB\n", img.Name, digest, tarball, (info.Size()+999_999)/1_000_000)
	return err
}
