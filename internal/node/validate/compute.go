package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// driverMismatch is the CUresult CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: library and kernel module are of different versions.
const driverMismatch = 803

// length is how many numbers the vectors have: more than a kernel's block, and not a multiple of it.
const length = 1<<20 + 17

// libraryVersion is the version in a file's name, such as libcuda.so.580.95.05.
var libraryVersion = regexp.MustCompile(`\.so\.(\d+\.\d+(?:\.\d+)*)$`)

func (r *run) load(known found) (found, string, error) {
	library, err := r.Load()
	if err != nil {
		return known, "", err
	}
	known.library = library
	return known, library.File(), nil
}

// compareVersions compares the kernel module with the library. Neither works with another version of the other.
func (r *run) compareVersions(known found) (found, string, error) {
	text, err := r.Files.Read(versionFile)
	if errors.Is(err, fs.ErrNotExist) {
		return known, versionFile + " is not in this container, so cuInit decides", nil
	}
	if err != nil {
		return known, "", fmt.Errorf("the version of the kernel module cannot be read: %w", err)
	}
	if known.driver = gpu.ModuleVersion(text); known.driver == "" {
		return known, "", fmt.Errorf("%s has no version: %q", versionFile, strings.TrimSpace(text))
	}
	file, err := r.Files.Target(known.library.File())
	if err != nil {
		return known, "", fmt.Errorf("find the file of the library: %w", err)
	}
	library := libraryVersion.FindStringSubmatch(path.Base(file))
	if library == nil {
		return known, fmt.Sprintf("kernel module %s; the name %s says no version, so cuInit decides", known.driver, file), nil
	}
	if library[1] != known.driver {
		return known, "", fmt.Errorf("the kernel module is of version %s (%s), the library of version %s (%s)", known.driver, versionFile, library[1], file)
	}
	return known, known.driver, nil
}

func (r *run) initCUDA(known found) (found, string, error) {
	err := known.library.Init()
	var with interface{ Result() int }
	if errors.As(err, &with) && with.Result() == driverMismatch {
		return known, "", &coded{codeVersion, fmt.Errorf("the library and the kernel module are of different versions: %w", err)}
	}
	return known, "", err
}

// count compares the devices that CUDA shows with those that were requested. Of several MIG devices CUDA shows a process one (NVIDIA's
// MIG user guide, "CUDA Device Enumeration").
func (r *run) count(known found) (found, string, error) {
	count, err := known.library.Count()
	if err != nil {
		return known, "", err
	}
	var unknown error
	for i := range count {
		uuid, name, err := known.library.Device(i)
		if err != nil {
			unknown = fmt.Errorf("device %d of %d: %w", i, count, err)
			break
		}
		known.devices = append(known.devices, device{index: i, uuid: uuid, name: name})
	}
	want, note := r.Expect, ""
	if len(known.nodes.mig) > 1 {
		want, note = 1, fmt.Sprintf(" of %d MIG devices, since CUDA shows a process one", len(known.nodes.mig))
	}
	if count != want {
		return known, "", fmt.Errorf("%s requested, and CUDA shows %d%s", devices(r.Expect), count, note)
	}
	return known, fmt.Sprintf("%d%s", count, note), unknown
}

// compute adds two vectors on each device, and says which devices failed.
func (r *run) compute(known found) (found, string, error) {
	a, b := make([]uint32, length), make([]uint32, length)
	for i := range a {
		a[i], b[i] = uint32(i), 2654435761*uint32(i)+1 // Knuth's factor: neighbours differ in all bits
	}
	var failed []error
	for i := range known.devices {
		d := &known.devices[i]
		text := d.String()
		r.device.Store(&text)
		sum, err := known.library.Add(d.index, a, b)
		if err == nil {
			err = compare(a, b, sum)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", d, err))
		}
	}
	if len(failed) > 0 {
		return known, "", fmt.Errorf("%d of %d failed: %w", len(failed), len(known.devices), join(failed))
	}
	return known, fmt.Sprintf("%d numbers added on each device", length), nil
}

// compare compares a sum with that of the processor.
func compare(a, b, sum []uint32) error {
	if len(sum) != len(a) {
		return fmt.Errorf("the sum has %d numbers, want %d", len(sum), len(a))
	}
	wrong, first := 0, -1
	for i := range a {
		if sum[i] != a[i]+b[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d sums are wrong, the first at %d: %d+%d is %d", wrong, len(a), first, a[first], b[first], sum[first])
	}
	return nil
}
