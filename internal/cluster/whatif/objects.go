package whatif

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Bounds of a dump.
const (
	maxBytes   = 2 << 30
	maxObjects = 500_000
	maxNodes   = 20_000
	// maxNotes bounds the notes that are kept of one kind.
	maxNotes = 10
)

// Objects is what is read of a cluster, in any order.
type Objects struct {
	Nodes    []corev1.Node
	GPUNodes []v1alpha1.GPUNode
	Pods     []corev1.Pod
	// Notes say in one sentence each what could not be read.
	Notes []string

	// unread counts the GPUNodes that cannot be used.
	unread int
}

// DumpCommand is the command that writes what Read reads.
const DumpCommand = "kubectl get nodes,gpunodes,pods -A -o json"

// Read adds the objects of a dump, which is what DumpCommand writes: a list, or several objects or lists one after another. Objects of
// other kinds are skipped. The file is named in errors.
func (o *Objects) Read(file string, in io.Reader) error {
	limited := &io.LimitedReader{R: in, N: maxBytes + 1}
	decoder := json.NewDecoder(limited)
	found := false
	for {
		err := o.document(file, decoder)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if _, ours := errors.AsType[*dumpError](err); ours {
				return err
			}
			return &dumpError{file, fmt.Sprintf("at byte %d: %v", decoder.InputOffset(), err)}
		}
		found = true
		if limited.N <= 0 {
			return &dumpError{file, fmt.Sprintf("more than %d GiB", maxBytes>>30)}
		}
	}
	if !found {
		return &dumpError{file, "an empty file"}
	}
	return nil
}

// dumpError is what is wrong in a dump.
type dumpError struct {
	file string
	text string
}

func (e *dumpError) Error() string {
	return fmt.Sprintf("read %s: %s; want JSON as from %s", e.file, e.text, DumpCommand)
}

// document reads one object or list. io.EOF says that there is none.
func (o *Objects) document(file string, decoder *json.Decoder) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return fmt.Errorf("%v instead of an object", token)
	}
	fields := map[string]json.RawMessage{}
	list := false
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return unexpected(err)
		}
		if name == "items" {
			list = true
			if err := o.items(file, decoder, fields); err != nil {
				return err
			}
			continue
		}
		var field json.RawMessage
		if err := decoder.Decode(&field); err != nil {
			return unexpected(err)
		}
		fields[fmt.Sprint(name)] = field
	}
	if _, err := decoder.Token(); err != nil {
		return unexpected(err)
	}
	if list {
		return nil
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return o.add(file, whole, head{})
}

// unexpected is an end of the file within a document.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// items reads the objects of a list, of which these fields are known so far.
func (o *Objects) items(file string, decoder *json.Decoder, fields map[string]json.RawMessage) error {
	var of head
	_ = json.Unmarshal(fields["kind"], &of.Kind)
	_ = json.Unmarshal(fields["apiVersion"], &of.APIVersion)
	of.Kind = strings.TrimSuffix(of.Kind, "List")
	token, err := decoder.Token()
	switch {
	case err != nil:
		return unexpected(err)
	case token == nil:
		return nil
	case token != json.Delim('['):
		return fmt.Errorf("items is %v instead of a list", token)
	}
	for decoder.More() {
		var item json.RawMessage
		if err := decoder.Decode(&item); err != nil {
			return unexpected(err)
		}
		if err := o.add(file, item, of); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return unexpected(err)
	}
	return nil
}

// head is what all objects have.
type head struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
}

// add adds an object of a dump; of is what its list says about it.
func (o *Objects) add(file string, object []byte, of head) error {
	if len(o.Nodes)+len(o.Pods)+len(o.GPUNodes) >= maxObjects {
		return &dumpError{file, fmt.Sprintf("more than %d objects", maxObjects)}
	}
	var h head
	if err := json.Unmarshal(object, &h); err != nil {
		return &dumpError{file, fmt.Sprintf("%s is not an object of Kubernetes: %v", excerpt(object), err)}
	}
	if h.Kind == "" {
		h.Kind, h.APIVersion = of.Kind, of.APIVersion
	}
	switch group, _, _ := strings.Cut(h.APIVersion, "/"); {
	case h.Kind == "Node" && h.APIVersion == "v1":
		return decode(file, object, &h, &o.Nodes)
	case h.Kind == "Pod" && h.APIVersion == "v1":
		return decode(file, object, &h, &o.Pods)
	case h.Kind == v1alpha1.KindGPUNode && group == v1alpha1.Group:
		o.AddGPUNode(h.Metadata.Name, h.APIVersion, func(node *v1alpha1.GPUNode) error { return json.Unmarshal(object, node) })
	case h.Kind == "":
		return &dumpError{file, excerpt(object) + " has no kind"}
	}
	return nil
}

// excerpt is the beginning of an object.
func excerpt(object []byte) string {
	const most = 60
	object = bytes.TrimSpace(object)
	if len(object) > most {
		return fmt.Sprintf("%q...", object[:most])
	}
	return fmt.Sprintf("%q", object)
}

func decode[T any](file string, object []byte, h *head, list *[]T) error {
	var one T
	if err := json.Unmarshal(object, &one); err != nil {
		return &dumpError{file, fmt.Sprintf("%s %q: %v", h.Kind, h.Metadata.Name, err)}
	}
	*list = append(*list, one)
	return nil
}

// AddGPUNode adds the GPUNode of that name and version that read decodes. One that cannot be used is a note: the counts of its Node decide.
func (o *Objects) AddGPUNode(name, version string, read func(*v1alpha1.GPUNode) error) {
	var node v1alpha1.GPUNode
	reason := ""
	if version != v1alpha1.APIVersion {
		reason = fmt.Sprintf("it is of %s, and this program reads %s", version, v1alpha1.APIVersion)
	} else if err := read(&node); err != nil {
		reason = err.Error()
	}
	if reason == "" {
		o.GPUNodes = append(o.GPUNodes, node)
		return
	}
	if o.unread++; o.unread <= maxNotes {
		o.Notes = append(o.Notes, fmt.Sprintf("GPUNode %s cannot be used: %s; the counts of the Node decide", name, reason))
	}
}

// PodsOfHolders makes pods of what GPUNodes say about holders, for a user who may not read pods: they have GPUs, and neither CPU nor
// memory. reason says why pods cannot be read.
func (o *Objects) PodsOfHolders(reason string) {
	o.Notes = append(o.Notes, "Pods: "+reason+"; those that hold GPUs are known by the GPUNodes, without CPU, memory and selectors, and no pod waits")
	pods := map[string]*corev1.Pod{}
	for i := range o.GPUNodes {
		node := &o.GPUNodes[i]
		add := func(list []v1alpha1.Holder) {
			for k := range list {
				if h := &list[k]; gpu.HolderKind(h.Kind) == gpu.HolderPod && h.Resource != "" {
					addHolder(pods, node.Name, h)
				}
			}
		}
		for k := range node.Status.Devices {
			d := &node.Status.Devices[k]
			add(d.Holders)
			for m := range d.MIGDevices {
				add(d.MIGDevices[m].Holders)
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		o.Pods = append(o.Pods, *pods[uid])
	}
}

// addHolder adds one device to the pod that holds it.
func addHolder(pods map[string]*corev1.Pod, node string, h *v1alpha1.Holder) {
	p := pods[h.PodUID]
	if p == nil {
		p = &corev1.Pod{}
		p.Namespace, p.Name, p.UID = h.Namespace, h.Pod, types.UID(h.PodUID)
		p.Spec.NodeName = node
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}}
		pods[h.PodUID] = p
	}
	limits := p.Spec.Containers[0].Resources.Limits
	count := limits[corev1.ResourceName(h.Resource)]
	count.Add(*resource.NewQuantity(1, resource.DecimalSI))
	limits[corev1.ResourceName(h.Resource)] = count
}
