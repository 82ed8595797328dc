package sim

import (
	"bytes"
	"debug/elf"
	_ "embed" // the symbols
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// release is a version of the driver, and what it lacks of the newest one's interface.
type release struct {
	Version string `json:"version"`
	// CUDA counts as cuDriverGetVersion does: 1000*major + 10*minor.
	CUDA int `json:"cuda"`
	// Without are the symbols that libnvidia-ml of this version does not export.
	Without []string `json:"without,omitempty"`
	// FieldsBelow is one more than the last field of nvmlDeviceGetFieldValues that it has; 0 is all.
	FieldsBelow uint32 `json:"fieldsBelow,omitempty"`
	// MIGProfilesInMIGMode is as in Options.
	MIGProfilesInMIGMode bool `json:"migProfilesInMIGMode,omitempty"`
	// Files is the folder of the files with code, below driverFolder; empty when libraries and programs are stand-ins without code.
	Files string `json:"files,omitempty"`
	// Computes is true when these have a libcuda.so.1.
	Computes bool `json:"computes,omitempty"`
}

// driverFolder has the driver's files with code, a folder per installation. The tree has hard links to them, so that a
// driver that was unloaded comes back with the same files, and one that was upgraded with others.
const driverFolder = machineFolder + "/driver"

// The files in such a folder.
const (
	libraryFile  = "libnvidia-ml.so"
	programsFile = "programs"
)

// programNames are the programs of the driver that are simulated.
func programNames() []string { return []string{"nvidia-smi", "nvidia-cuda-mps-control"} }

// symbols lists the functions of NVML by the CUDA version of the first nvml.h that declares them, from the headers in the
// releases of go-nvml (CUDA 11.1, 11.6, 12.0, 12.4, 13.0, 13.4). Those of CUDA 11.1 are not listed.
//
//go:embed symbols.txt
var symbols string

// symbolsAfter returns the functions that the nvml.h of a CUDA version, written as in release.CUDA, does not declare.
func symbolsAfter(cuda int) []string {
	var after []string
	for line := range strings.Lines(symbols) {
		var major, minor int
		var name string
		if _, err := fmt.Sscanf(line, "%d.%d %s", &major, &minor, &name); err == nil && 1000*major+10*minor > cuda {
			after = append(after, name)
		}
	}
	return after
}

// releases are the versions of the driver that can be simulated, the newest first.
func releases() []release {
	const (
		// R535 comes with CUDA 12.2, whose nvml.h has up to 40 functions more than the one before it that go-nvml has.
		headerOfR535 = 12000
		// NVML_FI_MAX of the headers.
		fieldsOfR550, fieldsOfR535, fieldsOfR455 = 200, 197, 147
	)
	return []release{
		{Version: driverVersion, CUDA: cudaVersion, Without: symbolsAfter(cudaVersion)},
		{Version: "550.54.15", CUDA: 12040, Without: symbolsAfter(12040), FieldsBelow: fieldsOfR550},
		{Version: "535.183.01", CUDA: 12020, Without: symbolsAfter(headerOfR535), FieldsBelow: fieldsOfR535, MIGProfilesInMIGMode: true},
		// A release of the first year of MIG: without the second versions of its functions.
		{Version: "455.45.01", CUDA: 11010, Without: symbolsAfter(11010), FieldsBelow: fieldsOfR455, MIGProfilesInMIGMode: true},
	}
}

// Drivers are the versions of the driver that can be simulated, the newest first.
func Drivers() []string {
	var versions []string
	for _, one := range releases() {
		versions = append(versions, one.Version)
	}
	return versions
}

func findRelease(version string) (release, error) {
	all := releases()
	if version == "" {
		return all[0], nil
	}
	for _, one := range all {
		if one.Version == version {
			return one, nil
		}
	}
	return release{}, fmt.Errorf("driver %s is not simulated; want one of %s", version, strings.Join(Drivers(), ", "))
}

// with is the machine with the driver that was installed last.
func (hw *hardware) with(st *state) *hardware {
	if st.Driver == nil {
		return hw
	}
	upgraded := *hw
	upgraded.setRelease(*st.Driver)
	return &upgraded
}

func (hw *hardware) setRelease(r release) {
	hw.Driver, hw.NVML, hw.CUDA = r.Version, fmt.Sprintf("%d.%s", r.CUDA/1000, r.Version), r.CUDA
	hw.MIGProfilesInMIGMode, hw.Without, hw.FieldsBelow, hw.Files, hw.Computes = r.MIGProfilesInMIGMode, r.Without, r.FieldsBelow, r.Files, r.Computes
}

// Files are the driver's files that have code. The zero value is a driver whose files are stand-ins: it can be used in this process only
// (Machine.NVML).
type Files struct {
	// Library is the simulated libnvidia-ml.so.1, Programs the simulated programs in one, CUDA the simulated libcuda.so.1.
	Library  string
	Programs string
	CUDA     string
}

// FindFiles returns the files as `make build` puts them into a folder. An error names the one that is missing or is another
// file, and the fix.
func FindFiles(folder string) (Files, error) {
	files := Files{
		Library: filepath.Join(folder, "libnvidia-ml.so.1"), Programs: filepath.Join(folder, "berth-sim-tools"),
		CUDA: filepath.Join(folder, "libcuda.so.1"),
	}
	for _, file := range []string{files.Library, files.Programs, files.CUDA} {
		if _, err := os.Stat(file); err != nil {
			return Files{}, fmt.Errorf("find the simulated driver: there is no %s (build it with: make build)", file)
		}
	}
	for _, library := range []struct{ file, first string }{{files.Library, "nvmlInit_v2"}, {files.CUDA, "cuInit"}} {
		if err := checkLibrary(library.file, library.first); err != nil {
			return Files{}, fmt.Errorf("find the simulated driver: %s is another file: %w (build it with: make build)", library.file, err)
		}
	}
	programs, err := elf.Open(files.Programs)
	if err != nil {
		return Files{}, fmt.Errorf("find the simulated driver: %s is no ELF file: %w (build it with: make build)", files.Programs, err)
	}
	_ = programs.Close() // it was only read
	return files, nil
}

// checkLibrary returns an error for a file that is no library with that function.
func checkLibrary(path, first string) error {
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("it is no ELF file: %w", err)
	}
	defer func() { _ = file.Close() }()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == first }) {
		return fmt.Errorf("it does not export %s", first)
	}
	return nil
}

// installFiles copies the files below the root, without the symbols that this version does not have. number distinguishes installations.
func installFiles(root string, r *release, files Files, number uint64) error {
	if files == (Files{}) {
		return nil
	}
	r.Files = fmt.Sprintf("%s-%d", r.Version, number)
	folder := filepath.Join(root, driverFolder, r.Files)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("install simulated driver: %w", err)
	}
	sources := map[string]string{libraryFile: files.Library, programsFile: files.Programs}
	if r.Computes = files.CUDA != ""; r.Computes {
		sources[cudaLibrary] = files.CUDA
	}
	for name, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("install simulated driver: %w", err)
		}
		if name == libraryFile {
			content = withoutSymbols(content, r.Without)
		}
		target := filepath.Join(folder, name)
		if err := os.WriteFile(target+".new", content, 0o755); err != nil {
			return fmt.Errorf("install simulated driver: %w", err)
		}
		if err := os.Rename(target+".new", target); err != nil {
			return fmt.Errorf("install simulated driver: %w", err)
		}
	}
	return nil
}

// withoutSymbols renames symbols in the string table of a library, so that they are not found by their names.
func withoutSymbols(library []byte, names []string) []byte {
	library = bytes.Clone(library)
	for _, name := range names {
		from := []byte("\x00" + name + "\x00")
		for {
			at := bytes.Index(library, from)
			if at < 0 {
				break
			}
			library[at+1] = '_'
		}
	}
	return library
}

// lacks reports whether libnvidia-ml of this driver does not export a symbol.
func (hw *hardware) lacks(symbol string) bool { return slices.Contains(hw.Without, symbol) }

// UpgradeDriver installs a driver, another version or the same again, and loads it. Processes that have the old library
// open keep it, and its Init returns LIB_RM_VERSION_MISMATCH if the version is another.
func (m *Machine) UpgradeDriver(version string, files Files) error {
	r, err := findRelease(version)
	if err != nil {
		return fmt.Errorf("upgrade simulated driver: %w", err)
	}
	err = m.change(func(st *state) ([]event, error) {
		if m.hw.with(st).Files != "" && files == (Files{}) {
			return nil, errors.New("name the files of the new driver")
		}
		if err := installFiles(m.root, &r, files, st.DriverLoads+1); err != nil {
			return nil, err
		}
		st.Driver = &r
		st.loadDriver()
		return []event{{Type: eventSetting, Note: "driver " + r.Version}}, nil
	})
	if err != nil {
		return fmt.Errorf("upgrade simulated driver: %w", err)
	}
	return nil
}

// addCode adds the driver's files that have code; false when there are none.
func addCode(b *treeBuilder, hw *hardware, name, as string) bool {
	if hw.Files == "" {
		return false
	}
	b.same(name, path.Join(driverFolder, hw.Files, as))
	return true
}

// removeOtherFiles removes what earlier installations left; processes that have such a file open keep it.
func removeOtherFiles(root string, hw *hardware) error {
	entries, err := os.ReadDir(filepath.Join(root, driverFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove files of the earlier driver: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == hw.Files {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, driverFolder, entry.Name())); err != nil {
			return fmt.Errorf("remove files of the earlier driver: %w", err)
		}
	}
	return nil
}
