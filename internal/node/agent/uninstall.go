package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent/reset"
	"github.com/berth-gpu/berth/internal/node/allocatable"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// uninstall removes everything that agents left on the node and the node's object
// in the API, says each step, and goes on after one that failed.
func uninstall(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface, out io.Writer) error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"sockets in " + filepath.Join(config.KubeletDir, "device-plugins"), func() error { return deviceplugin.Remove(config.KubeletDir) }},
		{"CDI spec in " + config.CDIDir, func() error { return cdi.New(cdi.Deps{Dir: config.CDIDir}).Remove() }},
		{"hook programs in " + config.HookDir, func() error { return cdi.RemoveHooks(config.HookDir) }},
		{"sockets in " + config.StateDir, func() error { return pages.Remove(config.StateDir) }},
		{"ledger in " + config.StateDir, func() error { return removeState(config.StateDir) }},
		{"journals and last good configuration in " + config.PersistentDir, func() error { return removePersistent(config.PersistentDir) }},
		{"labels about the GPUs", func() error { return removeLabels(ctx, config, api) }},
		{"label " + configwatch.LabelMIGState + " of Node " + config.NodeName, func() error { return removeMIGState(ctx, api, config.NodeName) }},
		{"condition and taint of Node " + config.NodeName, func() error { return removeHealth(ctx, api, config.NodeName) }},
		{"GPUNode " + config.NodeName, func() error { return removeObject(ctx, api, config.NodeName) }},
	}
	var failed []error
	for _, step := range steps {
		if err := step.do(); err != nil {
			failed = append(failed, fmt.Errorf("remove %s: %w", step.what, err))
			continue
		}
		fmt.Fprintln(out, "removed", step.what)
	}
	return errors.Join(failed...)
}

func removeState(dir string) error {
	for _, name := range []string{
		"ledger", "ledger.lock", "ledger.tmp", "ledger.bak", reset.LockFile,
	} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range []string{allocatable.FileName, sliceFile, healthFile, libraryFile} {
		if err := statefile.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// A container that runs keeps its mount, and a runtime makes the folder of a grant again when it needs it.
	if err := removeEmpty(filepath.Join(dir, grantsFolder)); err != nil {
		return err
	}
	// The folder goes when it is empty; what others put there stays.
	_ = os.Remove(dir)
	return nil
}

// removeEmpty removes a folder of empty folders.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

func removePersistent(dir string) error {
	for _, name := range []string{
		migapply.JournalFile, migapply.LockFile,
	} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range configwatch.KeptFiles() {
		if err := statefile.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// The folder goes when it is empty; what others put there stays.
	_ = os.Remove(dir)
	return nil
}

// removeLabels takes labels away from every place that they may be in.
func removeLabels(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface) error {
	chosen, others, err := labelWriters(config, labelPlaces(config, api))
	if err != nil {
		return err
	}
	if chosen != nil {
		others = append(others, chosen)
	}
	var failed []error
	for _, writer := range others {
		left, err := writer.Read(ctx)
		if err != nil || len(left) == 0 {
			continue // Without Node Feature Discovery its places cannot even be read.
		}
		if err := writer.Remove(ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", writer.Place(), err))
		}
	}
	return errors.Join(failed...)
}

// removeMIGState removes the label if the agent wrote it; mig-manager's stays.
func removeMIGState(ctx context.Context, api dynamic.Interface, name string) error {
	if api == nil {
		return nil
	}
	// An apply to a Node that does not exist would create it.
	_, err := api.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		err = applyMIGState(ctx, api, name, "")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func removeObject(ctx context.Context, api dynamic.Interface, node string) error {
	if api == nil {
		return nil
	}
	err := api.Resource(v1alpha1.GPUNodes()).Delete(ctx, node, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
