package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
)

// The values of the chart, where a host needs none of its own.
const (
	kubeletDir = "/var/lib/kubelet"
	cdiDir     = "/var/run/cdi"
)

// distributions returns the table of what is found on each host, and what has to be set there.
func distributions() (string, error) {
	var rows [][]string
	for _, name := range hosttest.Names() {
		row, err := distribution(name)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, row)
	}
	return table([]string{"host", "containers of pods", "configuration of the runtime", "CDI specs", "kubelet", "driver", "to set"}, rows), nil
}

func distribution(name string) ([]string, error) {
	host, err := hosttest.New(name)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	files := driverFiles()
	found := hostruntime.Find(hostruntime.Deps{HostRoot: host.Root, Proc: host.Proc, Library: files.Libraries[0], LibraryFolders: files.LibraryFolders})
	set, err := toSet(host.Root, found)
	if err != nil {
		return nil, err
	}
	config := found.Runtime.Config.Path
	if dir := found.Runtime.ConfigDir.Path; dir != "" {
		config += "`, `" + dir
	}
	return []string{
		host.Title, code(found.Runtime.State.Path), code(config), code(strings.Join(found.CDIDirs, "`, `")), code(found.Kubelet.Root.Path),
		code(found.Driver.Path), strings.Join(set, "; "),
	}, nil
}

// driverFiles returns the files of NVIDIA's driver.
func driverFiles() gpu.DriverFiles {
	for _, traits := range hardware.Traits() {
		if traits.Name == gpu.NVIDIA {
			return traits.Files
		}
	}
	return gpu.DriverFiles{}
}

// toSet lists the values of the chart and of the runtime that a host needs.
func toSet(root string, found *hostruntime.Host) ([]string, error) {
	var set []string
	if found.Runtime.Kind == hostruntime.Containerd {
		config, err := hostconfig.ReadContainerd(root, found.Runtime.Config.Path)
		if err != nil {
			return nil, err
		}
		if off := config.EnableCDI != nil && !*config.EnableCDI; off || config.EnableCDI == nil && config.Version < 3 {
			in := "containerd's configuration"
			if from := config.Generated.From; from != "" {
				in = code(from)
			}
			set = append(set, "`enable_cdi = true` in "+in)
		}
	}
	if dir := found.Kubelet.Root.Path; found.Local(dir) != found.Local(kubeletDir) {
		set = append(set, code("host.kubeletDir: "+dir))
	}
	if local := func(dir string) bool { return found.Local(dir) == found.Local(cdiDir) }; !slices.ContainsFunc(found.CDIDirs, local) {
		set = append(set, code("host.cdiDir: "+path.Clean(found.CDIDirs[len(found.CDIDirs)-1])))
	}
	return set, nil
}

func code(text string) string { return "`" + text + "`" }
