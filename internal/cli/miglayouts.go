package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/config"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// layoutsKey is the key of the layouts in a ConfigMap.
	layoutsKey = "config.yaml"
	// ofHardware is the source of layouts that follow from the GPUs.
	ofHardware = "hardware"
)

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// layoutSet contains the layouts that can be applied, each with its source.
type layoutSet struct {
	byName map[string]mig.Layout
	source map[string]string
	// notRead are sources that could not be read; elsewhere is a source that cannot be read from here.
	notRead   []v1alpha1.TraceNotRead
	elsewhere string
}

func (s *layoutSet) add(source string, layouts map[string][]v1alpha1.MIGLayoutEntry) {
	for name, entries := range layouts {
		s.byName[name], s.source[name] = config.Layout(entries), source
	}
}

// layouts returns the layouts of the hardware, overridden by those of the agent's configuration, overridden by those of
// its ConfigMap, which is the agent's order. With a file, the file's layouts override those of the hardware.
func (s *migSubject) layouts(ctx context.Context, file string) (*layoutSet, error) {
	set := &layoutSet{byName: mig.HardwareLayouts(s.gpus), source: map[string]string{}}
	for name := range set.byName {
		set.source[name] = ofHardware
	}
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the layouts of --file: %w", err)
		}
		layouts, err := config.ParseMIGLayouts(file, data)
		if err != nil {
			return nil, err
		}
		set.add(file, layouts)
		return set, nil
	}
	if s.object == nil {
		return set, nil
	}
	status := s.object.Status.Config
	if parts := strings.SplitN(status.Source, "/", 3); len(parts) == 3 && parts[0] != "" {
		s.addConfigMap(ctx, set, parts[0]+"/"+parts[1], parts[2],
			func(source string, data []byte) (map[string][]v1alpha1.MIGLayoutEntry, error) {
				agent, err := config.Parse(source, data, nil)
				if err != nil {
					return nil, err
				}
				return agent.MIGLayouts, nil
			})
	} else if status.Source != "" {
		set.elsewhere = "layouts that the agent's own file " + status.Source + " defines cannot be read from here"
	}
	if status.MIGConfigMap != "" {
		s.addConfigMap(ctx, set, status.MIGConfigMap, layoutsKey, config.ParseMIGLayouts)
	}
	return set, nil
}

// addConfigMap adds the layouts in a key of a ConfigMap, or the reason why there are none.
func (s *migSubject) addConfigMap(ctx context.Context, set *layoutSet, name, key string,
	parse func(string, []byte) (map[string][]v1alpha1.MIGLayoutEntry, error)) {
	source := name + "/" + key
	layouts, err := func() (map[string][]v1alpha1.MIGLayoutEntry, error) {
		namespace, short, _ := strings.Cut(name, "/")
		object, err := s.api.Client.Resource(configMaps()).Namespace(namespace).Get(ctx, short, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		text, found, err := unstructured.NestedString(object.Object, "data", key)
		if err != nil || !found {
			return nil, fmt.Errorf("no key %s", key)
		}
		return parse(source, []byte(text))
	}()
	if err != nil {
		set.notRead = append(set.notRead, v1alpha1.TraceNotRead{Source: v1alpha1.TraceSource{Kind: "ConfigMap",
			Path: source}, Why: err.Error()})
		return
	}
	set.add(source, layouts)
}

// object returns the layouts as the versioned object that is printed.
func (s *layoutSet) object(node string) *v1alpha1.MIGLayoutList {
	list := &v1alpha1.MIGLayoutList{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindMIGLayoutList), Node: node, Items: []v1alpha1.MIGLayout{}, NotRead: s.notRead}
	for _, name := range mig.LayoutNames(s.byName) {
		list.Items = append(list.Items, v1alpha1.MIGLayout{Name: name, Source: s.source[name]})
	}
	return list
}

func layoutsTable(w io.Writer, list *v1alpha1.MIGLayoutList, view *print.Flags) error {
	var rows [][]string
	for i := range list.Items {
		rows = append(rows, []string{list.Items[i].Name, list.Items[i].Source})
	}
	if err := view.Table(w, []string{"LAYOUT", "DEFINED BY"}, rows); err != nil || view.RowsOnly() {
		return err
	}
	return notReadTable(w, list.NotRead)
}

// plan plans the GPUs for a layout of the set.
func (s *layoutSet) plan(subject *migSubject, name string) (*migPlan, error) {
	layout, err := mig.FindLayout(s.byName, name)
	if err != nil {
		var hints []string
		for _, one := range s.notRead {
			hints = append(hints, fmt.Sprintf("not read: %s %s: %s", one.Kind, one.Path, one.Why))
		}
		if s.elsewhere != "" {
			hints = append(hints, s.elsewhere)
		}
		if len(hints) > 0 {
			err = &hintError{err, strings.Join(hints, "\n")}
		}
		return nil, fmt.Errorf("find layout of %s: %w", orElse(subject.node, "this hardware"), err)
	}
	if len(subject.gpus) == 0 {
		return nil, errors.New("plan layout: there are no GPUs")
	}
	return &migPlan{
		subject: subject, layout: name, source: s.source[name], gpus: planNode(subject.gpus, layout, subject.object), notRead: s.notRead,
	}, nil
}
