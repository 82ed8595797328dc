package kubeletconfig

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
func (p *process) topologyManagerPolicy() (string, error) {
	policy, err := p.fromFiles()
	if err != nil {
		return "", err
	}
	if value, set := flag(p.args, "topology-manager-policy"); set {
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
func (p *process) fromFiles() (string, error) {
	policy := ""
	if path, set := flag(p.args, "config"); set && path != "" {
		value, _, err := p.policyIn(path)
		if err != nil {
			return "", err
		}
		policy = value
	}
	dir, set := flag(p.args, "config-dir")
	if !set || dir == "" {
		return policy, nil
	}
	paths, err := p.dropIns(dir)
	if err != nil {
		return "", fmt.Errorf("read the kubelet's drop-ins: %w", err)
	}
	for _, path := range paths {
		value, set, err := p.policyIn(path)
		if err != nil {
			return "", err
		}
		if set {
			policy = value
		}
	}
	return policy, nil
}

// policyIn returns the policy in a file of the kubelet, and whether the file says anything of it: null, which a drop-in can have, is an
// empty policy.
func (p *process) policyIn(path string) (policy string, set bool, err error) {
	blob, err := p.read(path)
	if err != nil {
		return "", false, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	policy, set, err = parsePolicy(blob)
	if err != nil {
		return "", false, fmt.Errorf("read the kubelet's configuration %s: %w", path, err)
	}
	return policy, set, nil
}

// parsePolicy returns the policy in a KubeletConfiguration in YAML or JSON, of which only the first document counts.
func parsePolicy(blob []byte) (policy string, set bool, err error) {
	var content map[string]any
	if err := yaml.Unmarshal(blob, &content); err != nil {
		return "", false, err
	}
	version, _ := content["apiVersion"].(string)
	if kind, _ := content["kind"].(string); kind != "KubeletConfiguration" || !strings.HasPrefix(version, "kubelet.config.k8s.io/") {
		return "", false, fmt.Errorf("it is of kind %q of %q, want KubeletConfiguration of kubelet.config.k8s.io", kind, version)
	}
	value, set := content[fieldPolicy]
	if !set || value == nil {
		return "", set, nil
	}
	policy, ok := value.(string)
	if !ok {
		return "", false, fmt.Errorf("%s is %v, want a string", fieldPolicy, value)
	}
	return policy, true, nil
}

// dropIns returns the drop-ins below a directory in the order in which the kubelet reads them.
func (p *process) dropIns(dir string) ([]string, error) {
	absolute, err := p.absolute(dir)
	if err != nil {
		return nil, err
	}
	full, err := p.beneath(absolute)
	if err != nil {
		return nil, err
	}
	if parent, err := p.beneath(filepath.Dir(absolute)); err != nil || full != filepath.Join(parent, filepath.Base(absolute)) {
		return nil, errors.Join(fmt.Errorf("%s is a link, of which the kubelet reads nothing or all", absolute), err)
	}
	var paths []string
	entries := 0
	err = filepath.WalkDir(full, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > maxEntries {
			return fmt.Errorf("%s has more than %d entries", absolute, maxEntries)
		}
		inside := filepath.Join(absolute, strings.TrimPrefix(path, full))
		if entry.IsDir() {
			info, err := entry.Info()
			if err != nil {
				return err
			}
			return p.unchanged(inside, info)
		}
		if filepath.Ext(path) == ".conf" {
			paths = append(paths, inside)
		}
		return nil
	})
	return paths, err
}

// absolute returns the path of a file in the kubelet's root.
func (p *process) absolute(path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	cwd, err := os.Readlink(filepath.Join(p.dir, "cwd"))
	if err != nil {
		return "", err
	}
	return filepath.Join(cwd, path), nil
}

// beneath converts a path of the kubelet to one of this process.
func (p *process) beneath(path string) (string, error) {
	return hostconfig.Beneath(filepath.Join(p.dir, "root"), path)
}

// read reads a file of the kubelet, which must be as it was when the kubelet started.
func (p *process) read(path string) ([]byte, error) {
	absolute, err := p.absolute(path)
	if err != nil {
		return nil, err
	}
	full, err := p.beneath(absolute)
	if err != nil {
		return nil, err
	}
	blob, err := hostconfig.ReadFile(full)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(full) // After the content, so that no change between the two is missed.
	if err != nil {
		return nil, err
	}
	return blob, p.unchanged(absolute, info)
}

// unchanged returns an error for a file or directory that was changed, moved or renamed after the kubelet had started.
func (p *process) unchanged(path string, info fs.FileInfo) error {
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
