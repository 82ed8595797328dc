package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The release of the chart. Its namespace is that of the agents.
const (
	releaseName = "berth"
	// hookDir is below a directory that each node has of its own, unlike /opt, where the chart has it by default.
	hookDir = "/var/lib/berth/bin"
)

// chartArchive returns the chart as it is published, below the directory of the programs.
func chartArchive(bin string) string { return filepath.Join(bin, "chart", "berth-0.0.0-dev.tgz") }

// helmProgram returns the path of Helm.
func helmProgram(bin string) string { return filepath.Join(bin, "helm") }

// ChartArchive returns the chart as it is published.
func (c *Cluster) ChartArchive() string { return chartArchive(c.state.Bin) }

// renderedPath is the file with the chart as the nodes' own DaemonSets have it.
func (c *Cluster) renderedPath() string { return filepath.Join(c.dir, "chart.yaml") }

// MachineValues returns the values that a sandbox needs, since its nodes are not machines of their own: the simulated hardware, which
// each node has at one path, and the cgroup below which the kubelet keeps its pods. On API nodes nothing of the chart runs.
func (c *Cluster) MachineValues() map[string]any {
	hardware := c.hardwareDir()
	program := func() map[string]any {
		return map[string]any{
			"extraArgs":         []string{"--sim=" + hardware, "--cgroup-root=/" + filepath.Join(c.snapshot().Cgroup, "$(NODE_NAME)")},
			"extraVolumes":      []any{map[string]any{"name": "sandbox-hardware", "hostPath": map[string]any{"path": hardware}}},
			"extraVolumeMounts": []any{map[string]any{"name": "sandbox-hardware", "mountPath": hardware}},
		}
	}
	values := map[string]any{
		"host":      map[string]any{"hookDir": hookDir},
		"agent":     program(),
		"mps":       program(),
		"operator":  map[string]any{},
		"scheduler": map[string]any{},
		"web":       map[string]any{},
	}
	if c.snapshot().APINodes > 0 {
		for _, name := range []string{"agent", "mps", "operator", "scheduler", "web"} {
			values[name].(map[string]any)["affinity"] = realNodesOnly()
		}
	}
	return values
}

// renderedValues returns the values of the rendering: every right, so that tests can use each option, no configuration, so that the
// agent's arguments can name one, and no gate.
func (c *Cluster) renderedValues() map[string]any {
	values := c.MachineValues()
	values["rights"] = map[string]any{"dra": true, "nodeFeature": true, "taintUnhealthy": true}
	values["configs"] = map[string]any{"default": nil}
	// There is no operator that would validate the nodes.
	values["gate"] = map[string]any{"mode": "disabled"}
	values["mps"].(map[string]any)["enabled"] = true
	return values
}

// Helm runs Helm for the sandbox's API server, with values as its standard input (--values -). It leaves nothing in the user's own
// directories. On failure the error has what Helm printed.
func (c *Cluster) Helm(ctx context.Context, values map[string]any, args ...string) (string, error) {
	text, err := yaml.Marshal(values)
	if err != nil {
		return "", fmt.Errorf("write values: %w", err)
	}
	cmd := exec.CommandContext(ctx, helmProgram(c.state.Bin), args...)
	home := filepath.Join(c.dir, "tmp", "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = bytes.NewReader(text)
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(failure.String()))
	}
	return out.String(), nil
}

// renderChart renders the chart for the nodes' own DaemonSets.
func (c *Cluster) renderChart(ctx context.Context) error {
	text, err := c.Helm(ctx, c.renderedValues(), "template", releaseName, c.ChartArchive(), "--namespace", agentNamespace, "--values", "-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.renderedPath(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write rendered chart: %w", err)
	}
	return nil
}

// Rendered returns the objects of the chart with every right, in the order of Helm.
func (c *Cluster) Rendered() ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(c.renderedPath())
	if err != nil {
		return nil, fmt.Errorf("read rendered chart: %w", err)
	}
	objects, err := decodeObjects(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read rendered chart: %w", err)
	}
	if len(objects) == 0 {
		return nil, errors.New("the rendered chart has no objects")
	}
	return objects, nil
}

// installChart installs the chart with Helm, as users do, and waits until its pods are ready.
func (c *Cluster) installChart(ctx context.Context, files []string) error {
	args := []string{"install", releaseName, c.ChartArchive(), "--namespace", agentNamespace, "--create-namespace", "--values", "-"}
	for _, file := range files {
		args = append(args, "--values", file)
	}
	_, err := c.Helm(ctx, c.MachineValues(), append(args, "--wait", "--timeout", "2m")...)
	return err
}
