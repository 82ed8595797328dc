package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

const (
	checkCDI = "CDI specs"
	// maxSpecs bounds how many files of a directory are read.
	maxSpecs = 256
)

// cdiSpecs checks each spec of each vendor, because the runtime resolves names from all of them.
func (c *checker) cdiSpecs() {
	before := len(c.out.Findings)
	specs, devices := 0, 0
	for _, dir := range c.deps.CDIDirs {
		list, err := names(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				c.unknown(checkCDI, "%s: %s", dir, reason(err))
			}
			continue
		}
		owners := map[string]string{}
		for _, name := range list[:min(len(list), maxSpecs)] {
			if extension := filepath.Ext(name); extension != ".json" && extension != ".yaml" {
				continue
			}
			path := filepath.Join(dir, name)
			spec, err := readSpec(path)
			switch {
			case err != nil && denied(err):
				c.unknown(checkCDI, "%s: %s", path, reason(err))
				continue
			case err != nil:
				c.problem(checkCDI, "CDI_SPEC_INVALID", "%s: %v", path, err)
				continue
			}
			if spec.Kind == cdi.Kind {
				c.berthSpecDir = dir
			}
			specs, devices = specs+1, devices+len(spec.Devices)
			c.spec(path, spec)
			c.twice(path, spec, owners)
		}
	}
	if why := c.agentSays.withoutCDI(); c.berthSpecDir == "" && why != "" {
		c.notChecked("CDI spec of Berth", "%s", why)
	} else if c.berthSpecDir == "" {
		c.problem(checkCDI, "CDI_SPEC_MISSING", "no file of kind %s in %s", cdi.Kind, strings.Join(c.deps.CDIDirs, ", "))
	}
	if len(c.out.Findings) == before {
		c.ok(checkCDI, "%s with %s, every path exists", phrase.Count(specs, "spec"), phrase.Count(devices, "device"))
	}
}

func readSpec(path string) (*cdi.Spec, error) {
	blob, err := hostconfig.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".yaml" {
		if blob, err = yaml.YAMLToJSON(blob); err != nil {
			return nil, err
		}
	}
	return cdi.ParseSpec(blob)
}

// spec checks the paths and device numbers of one spec.
func (c *checker) spec(path string, spec *cdi.Spec) {
	var paths []string
	var nodes []gpu.DeviceNode
	add := func(edits cdi.Edits) {
		for _, mount := range edits.Mounts {
			paths = append(paths, mount.HostPath)
		}
		for _, hook := range edits.Hooks {
			paths = append(paths, hook.Path)
		}
		for _, node := range edits.Nodes {
			if node.HostPath == "" {
				node.HostPath = node.Path
			}
			nodes, paths = append(nodes, node), append(paths, node.HostPath)
		}
	}
	add(spec.Common)
	for _, device := range spec.Devices {
		add(device.Edits)
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	var missing []string
	for _, one := range paths {
		switch found, err := exists(c.deps.HostRoot, one); {
		case err != nil:
			c.unknown(checkCDI, "%s names %s: %s", path, one, reason(err))
		case !found:
			missing = append(missing, one)
		}
	}
	if len(missing) > 0 {
		c.problem(checkCDI, "CDI_SPEC_PATH", "%s names %d of %d files that do not exist: %s", path, len(missing), len(paths), phrase.Some(missing, mostNames))
	}
	if differ := c.numbersDiffer(nodes); len(differ) > 0 {
		c.problem(checkCDI, "CDI_SPEC_NUMBERS", "%s: %s", path, phrase.Some(differ, mostNames))
	}
}

// numbersDiffer compares the device numbers in a spec with those of the host's nodes.
func (c *checker) numbersDiffer(nodes []gpu.DeviceNode) []string {
	var differ []string
	for _, node := range nodes {
		if node.Major == 0 && node.Minor == 0 {
			continue // the runtime uses the host's numbers
		}
		full, err := hostconfig.Beneath(c.deps.HostRoot, node.HostPath)
		if err != nil {
			continue
		}
		got, err := characterDevice(full)
		if err == nil && (got != number{node.Major, node.Minor}) {
			differ = append(differ, fmt.Sprintf("%s is %d:%d, the spec says %d:%d", node.HostPath, got.major,
				got.minor, node.Major, node.Minor))
		}
	}
	slices.Sort(differ)
	return slices.Compact(differ)
}

// twice reports devices that another spec in the same directory defines too. Directories have priorities, so the same
// name in two directories is not a conflict.
func (c *checker) twice(path string, spec *cdi.Spec, owners map[string]string) {
	clashes := map[string][]string{}
	var files []string
	for _, device := range spec.Devices {
		name := spec.Kind + "=" + device.Name
		if other, taken := owners[name]; taken {
			if clashes[other] == nil {
				files = append(files, other)
			}
			clashes[other] = append(clashes[other], name)
			continue
		}
		owners[name] = path
	}
	for _, other := range files {
		c.problem(checkCDI, "CDI_DEVICE_TWICE", "%s and %s both have %s", other, path, phrase.Some(clashes[other], mostNames))
	}
}
