package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// Apply creates or updates the objects in the given files; for a folder, those in its .yaml, .yml and .json files.
func (c *Cluster) Apply(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		objects, err := readObjects(path)
		if err != nil {
			return err
		}
		if err := c.ApplyObjects(ctx, objects...); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// ApplyObjects creates or updates objects, in order.
func (c *Cluster) ApplyObjects(ctx context.Context, objects ...*unstructured.Unstructured) error {
	known := map[schema.GroupVersionKind]*meta.RESTMapping{}
	for _, o := range objects {
		if err := c.apply(ctx, o, known, nil); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// DryRun makes the API server check objects as if they were created or updated. It returns the errors of all.
func (c *Cluster) DryRun(ctx context.Context, objects ...*unstructured.Unstructured) error {
	known := map[schema.GroupVersionKind]*meta.RESTMapping{}
	var errs []error
	for _, o := range objects {
		if err := c.apply(ctx, o, known, []string{metav1.DryRunAll}); err != nil {
			errs = append(errs, fmt.Errorf("check %s %s: %w", o.GetKind(), o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// apply applies an object. It keeps the resource of each kind in known.
func (c *Cluster) apply(ctx context.Context, o *unstructured.Unstructured, known map[schema.GroupVersionKind]*meta.RESTMapping, dryRun []string) error {
	mapping := known[o.GroupVersionKind()]
	if mapping == nil {
		var err error
		if mapping, err = c.mapping(ctx, o); err != nil {
			return err
		}
		known[o.GroupVersionKind()] = mapping
	}
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if o.GetNamespace() == "" {
			o.SetNamespace(metav1.NamespaceDefault)
		}
		target = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	force := true
	_, err = target.Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "berth-sandbox", Force: &force, DryRun: dryRun})
	return err
}

// mapping finds the resource of an object. It retries, because the API server serves a new definition with a short
// delay.
func (c *Cluster) mapping(ctx context.Context, o *unstructured.Unstructured) (*meta.RESTMapping, error) {
	gvk := o.GroupVersionKind()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		groups, err := restmapper.GetAPIGroupResources(c.client.Discovery())
		if err == nil {
			m, mapErr := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
			if mapErr == nil {
				return m, nil
			}
			err = mapErr
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func readObjects(path string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if ext := strings.ToLower(filepath.Ext(file)); file != path && ext != ".yaml" && ext != ".yml" && ext != ".json" {
			return nil
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		more, err := decodeObjects(f)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, more...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return objects, nil
}

func decodeObjects(r io.Reader) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	var objects []*unstructured.Unstructured
	for {
		var o unstructured.Unstructured
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue // an empty document
		}
		if o.GetKind() == "" || o.GetName() == "" {
			return nil, fmt.Errorf("document %d has no kind or no name", len(objects)+1)
		}
		objects = append(objects, &o)
	}
}
