package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// Where the driver's device nodes and files are.
const (
	deviceFolder  = "/dev"
	capsFolder    = "/dev/nvidia-caps"
	gpusFolder    = "/proc/driver/nvidia/gpus"
	migMinorsFile = "/proc/driver/nvidia-caps/mig-minors"
	versionFile   = "/proc/driver/nvidia/version"
)

// sharedNodes are the device nodes without which no CUDA program starts, whichever GPU it uses.
func sharedNodes() []string { return []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} }

var (
	gpuNode = regexp.MustCompile(`^nvidia(\d+)$`)
	capNode = regexp.MustCompile(`^nvidia-cap(\d+)$`)
	// computeInstance is a line of mig-minors: the minor number of the capability of a compute instance.
	computeInstance = regexp.MustCompile(`(?m)^gpu\d+/gi\d+/ci\d+/access (\d+)$`)
	deviceMinor     = regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)\s*$`)
)

// nodes are the device nodes of the container.
type nodes struct {
	// gpus are the minor numbers of the GPUs, mig those of the capabilities of compute instances, each of which is a MIG device.
	gpus []int
	mig  []int
}

// count is the number of devices that the nodes are for.
func (n *nodes) count() int {
	if len(n.mig) > 0 {
		return len(n.mig)
	}
	return len(n.gpus)
}

// names returns the device nodes, one for each device.
func (n *nodes) names() []string {
	var names []string
	for _, minor := range n.mig {
		names = append(names, fmt.Sprintf("%s/nvidia-cap%d", capsFolder, minor))
	}
	if len(n.mig) > 0 {
		return names
	}
	for _, minor := range n.gpus {
		names = append(names, fmt.Sprintf("%s/nvidia%d", deviceFolder, minor))
	}
	return names
}

// findNodes checks that the container has the device nodes of what it requested, and that they can be opened.
func (r *run) findNodes(known found) (found, string, error) {
	gpus, err := r.numbers(deviceFolder, gpuNode)
	if err != nil {
		return known, "", err
	}
	caps, err := r.numbers(capsFolder, capNode)
	if err != nil {
		return known, "", err
	}
	known.nodes.gpus = gpus
	if len(caps) > 0 {
		if known.nodes.mig, err = r.migDevices(caps); err != nil {
			return known, "", err
		}
	}
	names := known.nodes.names()
	if len(names) < r.Expect {
		return known, "", fmt.Errorf("%s requested, and %s has the device nodes of %d: %s",
			devices(r.Expect), deviceFolder, len(names), cmpNone(phrase.Some(names, mostNames)))
	}
	all := append(sharedNodes(), names...)
	for i := range gpus {
		if name := fmt.Sprintf("%s/nvidia%d", deviceFolder, gpus[i]); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	var failed []error
	for _, name := range all {
		// ENXIO says that this container may open the node, and that no driver answers there: what CUDA says of that is better evidence.
		if err := r.Files.Open(name); err != nil && !errors.Is(err, syscall.ENXIO) {
			failed = append(failed, fmt.Errorf("open %s: %w", name, reason(err)))
		}
	}
	return known, phrase.Some(names, mostNames), join(failed)
}

// numbers lists the numbers in the names of the files of a folder, sorted.
func (r *run) numbers(folder string, pattern *regexp.Regexp) ([]int, error) {
	names, err := r.Files.Names(folder)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", folder, reason(err))
	}
	var numbers []int
	for _, name := range names {
		if match := pattern.FindStringSubmatch(name); match != nil {
			if number, err := strconv.Atoi(match[1]); err == nil {
				numbers = append(numbers, number)
			}
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// migDevices returns which of the capabilities are those of compute instances.
func (r *run) migDevices(caps []int) ([]int, error) {
	text, err := r.Files.Read(migMinorsFile)
	if err != nil {
		return nil, fmt.Errorf("%s has device nodes, and which of them are MIG devices cannot be read: %w", capsFolder, err)
	}
	known := map[int]bool{}
	for _, match := range computeInstance.FindAllStringSubmatch(text, -1) {
		if minor, err := strconv.Atoi(match[1]); err == nil {
			known[minor] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(caps), func(minor int) bool { return !known[minor] }), nil
}

// findForeign checks that the container has no device but those that it requested, and that it cannot open a GPU of the node whose
// device node it makes by itself.
func (r *run) findForeign(known found) (found, string, error) {
	if n := known.nodes.count(); n > r.Expect {
		return known, "", fmt.Errorf("%s requested, and %s has the device nodes of %d: %s",
			devices(r.Expect), deviceFolder, n, phrase.Some(known.nodes.names(), mostNames))
	}
	others, err := r.otherGPUs(known.nodes.gpus)
	if err != nil || len(others) == 0 || len(known.nodes.gpus) == 0 {
		return known, "the node has no other GPU", err
	}
	like := fmt.Sprintf("%s/nvidia%d", deviceFolder, known.nodes.gpus[0])
	var open []string
	for _, minor := range others {
		made, err := r.Files.OpenOther(like, minor)
		switch {
		case !made:
			return known, fmt.Sprintf("not tested on the %d other GPUs of the node, since this container may not make device nodes: %v", len(others), reason(err)), nil
		case !errors.Is(err, fs.ErrPermission): // what refuses a device is the device cgroup, with EPERM
			open = append(open, fmt.Sprintf("%s/nvidia%d", deviceFolder, minor))
		}
	}
	if len(open) > 0 {
		return known, "", fmt.Errorf("%s of a GPU that was not requested can be opened in this container after mknod", phrase.Some(open, mostNames))
	}
	return known, fmt.Sprintf("%d other GPUs of the node are refused", len(others)), nil
}

// otherGPUs lists the minor numbers of the GPUs of the node that have no device node here, sorted.
func (r *run) otherGPUs(own []int) ([]int, error) {
	folders, err := r.Files.Names(gpusFolder)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gpusFolder, reason(err))
	}
	var others []int
	for _, folder := range folders {
		text, err := r.Files.Read(path.Join(gpusFolder, folder, "information"))
		if err != nil {
			continue // a GPU that was removed since
		}
		if match := deviceMinor.FindStringSubmatch(text); match != nil {
			if minor, err := strconv.Atoi(match[1]); err == nil && !slices.Contains(own, minor) {
				others = append(others, minor)
			}
		}
	}
	slices.Sort(others)
	return others, nil
}

// devices is a number of devices, in words.
func devices(n int) string {
	if n == 1 {
		return "1 device was"
	}
	return fmt.Sprintf("%d devices were", n)
}

func cmpNone(text string) string {
	if strings.TrimSpace(text) == "" {
		return "none"
	}
	return text
}

// reason is the cause of an error of a file, without the path that the message has already.
func reason(err error) error {
	if inner, ok := errors.AsType[*fs.PathError](err); ok {
		return inner.Err
	}
	return err
}
