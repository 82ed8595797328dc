package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
)

func newClassesCommand(deps Deps) *cobra.Command {
	var file string
	var out output
	cmd := &cobra.Command{
		Use:   "classes",
		Short: "Print the DeviceClasses for GPUs that are allocated through DRA",
		Long: `Print the DeviceClasses of the DRA driver, gpu.berth.dev, for kubectl apply: one for whole
GPUs, and one for each MIG profile of the GPUs that can be partitioned.

Each class has the extended resource name under which the device plugin advertises the same
devices, such as nvidia.com/gpu, so that pods need no change. They are objects of the cluster,
which no agent writes. A node reports DEVICE_CLASS_MISSING and DEVICE_CLASS_AMBIGUOUS.

--file adds the MIG profiles that only the layouts of an agent's configuration have, and takes
the name of the driver from it (draDriverName).`,
		Example: `  berth classes | kubectl apply -f -        create or update the classes
  berth classes | kubectl diff -f -         what would change
  berth classes --file config.yaml          with the profiles of this configuration's layouts
  berth classes -o json | jq -r '.items[].metadata.name'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := out.check(); err != nil {
				return err
			}
			settings := class.Settings{Profiles: class.DefaultProfiles()}
			if file != "" {
				agent, err := readAllocating(file)
				if err != nil {
					return err
				}
				settings.Driver, settings.Profiles = agent.DRADriverName, append(settings.Profiles, layoutProfiles(agent)...)
			}
			classes, err := class.Classes(settings)
			if err != nil {
				return fmt.Errorf("compute the DeviceClasses: %w", err)
			}
			return printClasses(deps.Out, classes, &out.Flags)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "an agent's configuration, with the name of the driver and layouts that can have further MIG profiles")
	out.AddTo(cmd.Flags(), print.Offer{List: "items", Field: "metadata.name", Named: true, NoTable: true})
	return cmd
}

// readAllocating reads an agent's configuration. It is an error when the configuration allocates nothing through DRA.
func readAllocating(file string) (*v1alpha1.AgentConfig, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of --file: %w", err)
	}
	agent, err := config.Parse(file, data, nil)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(agent.GPUs, func(rule v1alpha1.GPURule) bool {
		return rule.Allocation != nil && rule.Allocation.API == v1alpha1.AllocationDRA || config.IsAuto(&rule)
	}) {
		return nil, &hintError{
			fmt.Errorf("%s: no rule of gpus has allocation.api: dra, so its nodes need no DeviceClass", file),
			"fix: add gpus: [{allocation: {api: dra}}] to it, or leave out --file to print the classes for all nodes",
		}
	}
	return agent, nil
}

// layoutProfiles returns the MIG profiles of a configuration's layouts that are not among the default ones, sorted.
func layoutProfiles(agent *v1alpha1.AgentConfig) []string {
	more := map[string]bool{}
	for _, entries := range agent.MIGLayouts {
		for _, entry := range entries {
			for profile := range entry.MIGDevices {
				if !slices.Contains(class.DefaultProfiles(), profile) {
					more[profile] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(more))
}

// printClasses writes the classes as YAML documents with their comments, or as a list in another format.
func printClasses(w io.Writer, classes []resourceapi.DeviceClass, view *print.Flags) error {
	if view.Format() == print.YAML {
		text, err := class.YAML(classes)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": classes}
	rows := print.Of(classes, func(c *resourceapi.DeviceClass) string { return "deviceclass.resource.k8s.io/" + c.Name })
	return view.Print(w, list, rows, nil)
}
