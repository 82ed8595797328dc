package hostruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// The policies of the topology manager (kubelet.config.k8s.io/v1beta1).
const (
	PolicyNone           = "none"
	PolicyBestEffort     = "best-effort"
	PolicyRestricted     = "restricted"
	PolicySingleNUMANode = "single-numa-node"
)

const (
	fieldPolicy = "topologyManagerPolicy"
	// maxEntries bounds what is read of the directory of drop-ins.
	maxEntries = 1000
)

// topologyManagerPolicy returns the policy of a kubelet.
func (p *kubeletProcess) topologyManagerPolicy() (string, error) {
	policy, err := p.fromFiles()
	if err != nil {
		return "", err
	}
	if value, set := flag(p.args, "--topology-manager-policy"); set {
		policy = value
	} else if policy == "" {
		policy = PolicyNone
	}
	if !slices.Contains([]string{PolicyNone, PolicyBestEffort, PolicyRestricted, PolicySingleNUMANode}, policy) {
		return "", fmt.Errorf("the kubelet has the topology manager policy %q, which this agent does not know", policy)
	}
	return policy, nil
}

// fromFiles returns what the kubelet's files say; empty when they say nothing.
func (p *kubeletProcess) fromFiles() (string, error) {
	from := files{root: filepath.Join(p.dir, "root"), unchanged: p.unchanged}
	var err error
	if path, set := flag(p.args, "--config"); set && path != "" {
		if from.file, err = p.absolute(path); err != nil {
			return "", err
		}
	}
	if dir, set := flag(p.args, "--config-dir"); set && dir != "" {
		if from.dir, err = p.absolute(dir); err != nil {
			return "", err
		}
	}
	policy, _, err := from.text(fieldPolicy)
	return policy, err
}

// readText returns a field that is a text of a kubelet's configuration, and the path of the file that it is from: of the last drop-in in
// the directory that has it, or else of the file. The paths are absolute, those of the host below its root, and can be empty. Beside an
// error the result is what the files say that were read before it.
func readText(root, file, dir, field string) (text, from string, err error) {
	return files{root: root, file: file, dir: dir, unchanged: func(string, fs.FileInfo) error { return nil }}.text(field)
}

// files are those of a kubelet's configuration, by their absolute paths below a root directory; each can be empty.
type files struct {
	root string
	file string
	dir  string
	// unchanged returns why a file or directory is not as the kubelet has read it.
	unchanged func(path string, info fs.FileInfo) error
}

// text returns a field that is a text, and the file that it is from; empty when no file has it.
func (f files) text(field string) (text, from string, err error) {
	if f.file != "" {
		value, set, err := f.textIn(f.file, field)
		if err != nil {
			return "", "", err
		}
		if set {
			text, from = value, f.file
		}
	}
	if f.dir == "" {
		return text, from, nil
	}
	paths, err := f.dropIns()
	if err != nil {
		return text, from, fmt.Errorf("read the kubelet's drop-ins: %w", err)
	}
	for _, path := range paths {
		value, set, err := f.textIn(path, field)
		if err != nil {
			return text, from, err
		}
		if set {
			text, from = value, path
		}
	}
	return text, from, nil
}

// textIn returns the field in a file, and whether the file says anything of it: null, which a drop-in can have, is an empty text.
func (f files) textIn(path, field string) (text string, set bool, err error) {
	blob, err := f.read(path)
	if err != nil {
		return "", false, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	text, set, err = parseText(blob, field)
	if err != nil {
		return "", false, fmt.Errorf("read the kubelet's configuration %s: %w", path, err)
	}
	return text, set, nil
}

// parseText returns a field in a KubeletConfiguration in YAML or JSON, of which only the first document counts.
func parseText(blob []byte, field string) (text string, set bool, err error) {
	var content map[string]any
	if err := yaml.Unmarshal(blob, &content); err != nil {
		return "", false, err
	}
	version, _ := content["apiVersion"].(string)
	if kind, _ := content["kind"].(string); kind != "KubeletConfiguration" || !strings.HasPrefix(version, "kubelet.config.k8s.io/") {
		return "", false, fmt.Errorf("it is of kind %q of %q, want KubeletConfiguration of kubelet.config.k8s.io", kind, version)
	}
	value, set := content[field]
	if !set || value == nil {
		return "", set, nil
	}
	text, ok := value.(string)
	if !ok {
		return "", false, fmt.Errorf("%s is %v, want a string", field, value)
	}
	return text, true, nil
}

// dropIns returns the drop-ins below the directory in the order in which the kubelet reads them.
func (f files) dropIns() ([]string, error) {
	full, err := hostconfig.Beneath(f.root, f.dir)
	if err != nil {
		return nil, err
	}
	if parent, err := hostconfig.Beneath(f.root, filepath.Dir(f.dir)); err != nil || full != filepath.Join(parent, filepath.Base(f.dir)) {
		return nil, errors.Join(fmt.Errorf("%s is a link, of which the kubelet reads nothing or all", f.dir), err)
	}
	var paths []string
	err = hostconfig.Walk(f.root, f.dir, maxEntries, func(path string, entry fs.DirEntry) error {
		if entry.IsDir() {
			info, err := entry.Info()
			if err != nil {
				return err
			}
			return f.unchanged(path, info)
		}
		if filepath.Ext(path) == ".conf" {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// read reads a file, which must be as it was when the kubelet started.
func (f files) read(path string) ([]byte, error) {
	full, err := hostconfig.Beneath(f.root, path)
	if err != nil {
		return nil, err
	}
	blob, err := hostconfig.ReadBeneath(f.root, path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(full) // After the content, so that no change between the two is missed.
	if err != nil {
		return nil, err
	}
	return blob, f.unchanged(path, info)
}

// absolute returns the path of a file in the kubelet's root.
func (p *kubeletProcess) absolute(path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	cwd, err := os.Readlink(filepath.Join(p.dir, "cwd"))
	if err != nil {
		return "", err
	}
	return filepath.Join(cwd, path), nil
}

// unchanged returns an error for a file or directory that was changed, moved or renamed after the kubelet had started.
func (p *kubeletProcess) unchanged(path string, info fs.FileInfo) error {
	at := info.ModTime()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		if inode := time.Unix(stat.Ctim.Unix()); inode.After(at) {
			at = inode
		}
	}
	if at.After(p.started.Add(inaccuracy)) {
		return fmt.Errorf("%s was changed at %s, after the kubelet had started at %s; it is read again when the kubelet is restarted",
			path, at.UTC().Format(time.RFC3339), p.started.UTC().Format(time.RFC3339))
	}
	return nil
}
