package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// envKubectl is the directory of the sandbox for which the test binary is kubectl.
const envKubectl = "BERTH_E2E_KUBECTL"

// standIn is the kubectl of the tests that run the commands of documents: the few forms that those have. kubectl itself would be another
// 200 packages to compile. What it does not know it refuses.
type standIn struct {
	*sandbox.Cluster
	namespace string
}

// kubectl is the main function of the test binary where it is called by this name.
func kubectl() {
	c, err := sandbox.Open(os.Getenv(envKubectl))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	k := &standIn{Cluster: c}
	root := &cobra.Command{Use: "kubectl", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&k.namespace, "namespace", "n", metav1.NamespaceDefault, "")
	root.AddCommand(k.get(), k.apply(), k.delete(), k.create(), k.uncordon(), k.patch())
	root.AddCommand(k.change("label", "labels"), k.change("annotate", "annotations"))
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}

// mapper finds resources by their names and kinds.
func (k *standIn) mapper() (meta.RESTMapper, error) {
	groups, err := restmapper.GetAPIGroupResources(k.Client().Discovery())
	if err != nil {
		return nil, err
	}
	return restmapper.NewDiscoveryRESTMapper(groups), nil
}

// get prints the objects of resources: in the columns that the API server has for them, or all of them with -o json.
func (k *standIn) get() *cobra.Command {
	var selector, output string
	var all bool
	cmd := &cobra.Command{Use: "get RESOURCE[,RESOURCE...]", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		var list metav1.List
		list.APIVersion, list.Kind = "v1", "List"
		for resource := range strings.SplitSeq(args[0], ",") {
			path, err := k.path(resource, all)
			if err != nil {
				return err
			}
			request := k.Client().Discovery().RESTClient().Get().AbsPath(path).Param("labelSelector", selector)
			if output == "" {
				request.SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
			}
			text, err := request.Do(cmd.Context()).Raw()
			switch {
			case err != nil:
				return err
			case output == "":
				var table metav1.Table
				if err := json.Unmarshal(text, &table); err != nil {
					return err
				}
				if err := printTable(cmd.OutOrStdout(), &table); err != nil {
					return err
				}
				continue
			case output != "json":
				return fmt.Errorf("-o %s: only json", output)
			}
			var objects unstructured.UnstructuredList
			if err := objects.UnmarshalJSON(text); err != nil {
				return err
			}
			for i := range objects.Items {
				list.Items = append(list.Items, runtime.RawExtension{Object: &objects.Items[i]})
			}
		}
		if output == "" {
			return nil
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
	}}
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "")
	cmd.Flags().StringVarP(&output, "output", "o", "", "")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "")
	return cmd
}

// path returns where the API server has the objects of a resource, of all namespaces or of one.
func (k *standIn) path(resource string, all bool) (string, error) {
	mapper, err := k.mapper()
	if err != nil {
		return "", err
	}
	kind, err := mapper.KindFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return "", err
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return "", err
	}
	path := "/apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "/api/" + kind.Version
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && !all {
		path += "/namespaces/" + k.namespace
	}
	return path + "/" + mapping.Resource.Resource, nil
}

func printTable(w io.Writer, table *metav1.Table) error {
	if len(table.Rows) == 0 {
		_, err := fmt.Fprintln(w, "No resources found")
		return err
	}
	columns := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	var head []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			head = append(head, strings.ToUpper(column.Name))
		}
	}
	fmt.Fprintln(columns, strings.Join(head, "\t"))
	for _, row := range table.Rows {
		var cells []string
		for n, cell := range row.Cells {
			if table.ColumnDefinitions[n].Priority == 0 {
				cells = append(cells, fmt.Sprint(cell))
			}
		}
		fmt.Fprintln(columns, strings.Join(cells, "\t"))
	}
	return columns.Flush()
}

// apply applies by the server, also where kubectl would do it by itself without --server-side.
func (k *standIn) apply() *cobra.Command {
	var file string
	cmd := &cobra.Command{Use: "apply", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		objects, err := objectsOf(file)
		if err != nil {
			return err
		}
		if err := k.ApplyObjects(cmd.Context(), objects...); err != nil {
			return err
		}
		for _, o := range objects {
			fmt.Fprintf(cmd.OutOrStdout(), "%s/%s serverside-applied\n", strings.ToLower(o.GetKind()), o.GetName())
		}
		return nil
	}}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "")
	cmd.Flags().Bool("server-side", false, "")
	return cmd
}

func (k *standIn) delete() *cobra.Command {
	var file string
	var ignore bool
	cmd := &cobra.Command{Use: "delete", RunE: func(cmd *cobra.Command, args []string) error {
		objects, err := k.named(file, args)
		if err != nil {
			return err
		}
		mapper, err := k.mapper()
		if err != nil {
			return err
		}
		client, err := dynamic.NewForConfig(k.RESTConfig())
		if err != nil {
			return err
		}
		var errs []error
		for _, o := range objects {
			errs = append(errs, remove(cmd.Context(), client, mapper, o, ignore))
		}
		return errors.Join(errs...)
	}}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "")
	return cmd
}

// named returns the objects of a file, or pods by their names.
func (k *standIn) named(file string, args []string) (objects []*unstructured.Unstructured, err error) {
	switch {
	case file != "" && len(args) == 0:
		return objectsOf(file)
	case file != "" || len(args) < 2 || args[0] != "pod":
		return nil, fmt.Errorf("delete %v: only a file, or pods by their names", args)
	}
	for _, name := range args[1:] {
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": k.namespace, "name": name}}})
	}
	return objects, nil
}

// remove deletes an object, and what belongs to it, as kubectl does.
func remove(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, o *unstructured.Unstructured, ignore bool) error {
	mapping, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target = client.Resource(mapping.Resource).Namespace(cmp.Or(o.GetNamespace(), metav1.NamespaceDefault))
	}
	background := metav1.DeletePropagationBackground
	err = target.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
	if ignore && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (k *standIn) create() *cobra.Command {
	return &cobra.Command{Use: "create namespace NAME", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		if args[0] != "namespace" {
			return fmt.Errorf("create %s: only namespaces", args[0])
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: args[1]}}
		_, err := k.Client().CoreV1().Namespaces().Create(cmd.Context(), namespace, metav1.CreateOptions{})
		return err
	}}
}

// change is label or annotate: it sets or removes some values of namespaces, nodes or pods, one object after another as kubectl does.
func (k *standIn) change(verb, field string) *cobra.Command {
	var selector string
	use := verb + " RESOURCE [NAME...] KEY=VALUE...|KEY-..."
	cmd := &cobra.Command{Use: use, Args: cobra.MinimumNArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		values, names := map[string]any{}, []string{}
		for _, arg := range args[1:] {
			key, value, set := strings.Cut(arg, "=")
			removed, remove := strings.CutSuffix(arg, "-")
			switch {
			case set:
				values[key] = value
			case remove:
				values[removed] = nil
			default:
				names = append(names, arg)
			}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{field: values}})
		if err != nil {
			return err
		}
		if selector != "" {
			list, err := k.Client().CoreV1().Pods(k.namespace).List(cmd.Context(), metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				return err
			}
			for i := range list.Items {
				names = append(names, list.Items[i].Name)
			}
		}
		core, ctx := k.Client().CoreV1(), cmd.Context()
		for _, name := range names {
			switch args[0] {
			case "namespace":
				_, err = core.Namespaces().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			case "node":
				_, err = core.Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			case "pods":
				_, err = core.Pods(k.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			default:
				err = errors.New("only namespaces, nodes and pods")
			}
			if err != nil {
				return fmt.Errorf("%s %s %s: %w", verb, args[0], name, err)
			}
		}
		return nil
	}}
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "")
	cmd.Flags().Bool("overwrite", false, "")
	return cmd
}

// patch merges a patch into an object of a namespace.
func (k *standIn) patch() *cobra.Command {
	var kind, patch string
	cmd := &cobra.Command{Use: "patch RESOURCE.GROUP NAME", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		mapper, err := k.mapper()
		if err != nil {
			return err
		}
		resource, err := mapper.ResourceFor(schema.ParseGroupResource(args[0]).WithVersion(""))
		if err != nil {
			return err
		}
		if kind != "merge" {
			return fmt.Errorf("--type=%s: only merge", kind)
		}
		client, err := dynamic.NewForConfig(k.RESTConfig())
		if err != nil {
			return err
		}
		objects := client.Resource(resource).Namespace(k.namespace)
		_, err = objects.Patch(cmd.Context(), args[1], types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}}
	cmd.Flags().StringVar(&kind, "type", "strategic", "")
	cmd.Flags().StringVarP(&patch, "patch", "p", "", "")
	return cmd
}

func (k *standIn) uncordon() *cobra.Command {
	return &cobra.Command{Use: "uncordon NODE", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		patch := []byte(`{"spec":{"unschedulable":null}}`)
		_, err := k.Client().CoreV1().Nodes().Patch(cmd.Context(), args[0], types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}}
}

// objectsOf returns the objects of a file in YAML.
func objectsOf(path string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			objects = append(objects, &o)
		}
	}
}
