package fit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/yaml"
)

// The kinds of a file.
const (
	kindPod      = "Pod"
	kindClaim    = "ResourceClaim"
	kindTemplate = "ResourceClaimTemplate"
)

// Workload is what has to fit on one node.
type Workload struct {
	Kind      string
	Namespace string
	Name      string
	// Pod is nil for a claim.
	Pod *corev1.Pod
	// Claims are those of the pod, or the one.
	Claims []*resourceapi.ResourceClaim
	// made are the names of claims that Kubernetes would make from templates. Those in the cluster with such a name are others.
	made map[string]bool
}

// File is a parsed file, before the names in its pods are resolved.
type File struct {
	name      string
	pods      []*corev1.Pod
	claims    []*resourceapi.ResourceClaim
	templates []*resourceapi.ResourceClaimTemplate
	// order has the documents as KIND/NAMESPACE/NAME.
	order []string
}

// Parse reads the YAML or JSON documents of a file. Objects without a namespace are in the given one. Fields that do not exist, and
// claims that the API server would refuse, are errors, which name the document.
func Parse(name string, data []byte, namespace string, settings Settings) (*File, error) {
	file := &File{name: name}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = file.add(document, namespace, settings)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", name, number, err)
		}
	}
	if len(file.order) == 0 {
		return nil, fmt.Errorf("%s: it has no Pod, ResourceClaim or ResourceClaimTemplate", name)
	}
	return file, nil
}

// add reads one document. An empty one is left out.
func (f *File) add(document []byte, namespace string, settings Settings) error {
	var value any
	if err := yaml.Unmarshal(document, &value); err != nil {
		return fmt.Errorf("it is not YAML: %w", err)
	}
	if value == nil {
		return nil
	}
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(document, &head); err != nil {
		return fmt.Errorf("it is not an object of Kubernetes: %w", err)
	}
	switch resourceVersion := resourceapi.SchemeGroupVersion.String(); {
	case head.Kind == kindPod && head.APIVersion == "v1":
		pod := &corev1.Pod{}
		return f.addObject(document, pod, &pod.ObjectMeta, kindPod, namespace, func() error { return f.addPod(pod) })
	case head.Kind == kindClaim && head.APIVersion == resourceVersion:
		claim := &resourceapi.ResourceClaim{}
		return f.addObject(document, claim, &claim.ObjectMeta, kindClaim, namespace, func() error {
			claim.Status = resourceapi.ResourceClaimStatus{}
			f.claims = append(f.claims, claim)
			return complete(&claim.Spec, settings)
		})
	case head.Kind == kindTemplate && head.APIVersion == resourceVersion:
		template := &resourceapi.ResourceClaimTemplate{}
		return f.addObject(document, template, &template.ObjectMeta, kindTemplate, namespace, func() error {
			f.templates = append(f.templates, template)
			return complete(&template.Spec.Spec, settings)
		})
	}
	return fmt.Errorf("kind %q of apiVersion %q is not supported: want Pod of v1, or ResourceClaim or ResourceClaimTemplate of %s",
		head.Kind, head.APIVersion, resourceapi.SchemeGroupVersion)
}

// addObject decodes a document strictly, and then calls a function whose error it completes with the object's name.
func (f *File) addObject(document []byte, object any, meta *metav1.ObjectMeta, kind, namespace string, then func() error) error {
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	if meta.Name == "" {
		meta.Name = meta.GenerateName
	}
	if meta.Name == "" {
		return fmt.Errorf("%s: metadata.name is missing", kind)
	}
	if wrong := validation.IsDNS1123Subdomain(strings.TrimSuffix(meta.Name, "-")); len(wrong) > 0 {
		return fmt.Errorf("%s: metadata.name %q: %s", kind, oneLine(meta.Name), wrong[0])
	}
	if meta.Namespace == "" {
		meta.Namespace = namespace
	}
	if wrong := validation.IsDNS1123Label(meta.Namespace); len(wrong) > 0 {
		return fmt.Errorf("%s %s: metadata.namespace %q: %s", kind, meta.Name, oneLine(meta.Namespace), wrong[0])
	}
	key := kind + "/" + meta.Namespace + "/" + meta.Name
	if slices.Contains(f.order, key) {
		return fmt.Errorf("%s %s: an earlier document has the same kind, namespace and name", kind, meta.Name)
	}
	f.order = append(f.order, key)
	if err := then(); err != nil {
		return fmt.Errorf("%s %s: %w", kind, meta.Name, err)
	}
	return nil
}

// addPod completes the requests of a pod's containers with their limits, as the API server does.
func (f *File) addPod(pod *corev1.Pod) error {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			resources := &list[i].Resources
			for name, limit := range resources.Limits {
				if _, ok := resources.Requests[name]; ok {
					continue
				}
				if resources.Requests == nil {
					resources.Requests = corev1.ResourceList{}
				}
				resources.Requests[name] = limit
			}
		}
	}
	if len(pod.Spec.ResourceClaims) == 0 && len(ExtendedNames(pod)) == 0 {
		return errors.New("it requests no extended resource and has no spec.resourceClaims, so it needs no device")
	}
	f.pods = append(f.pods, pod)
	return nil
}

// Unresolved returns the templates, as NAMESPACE/NAME, that pods of the file name and that are not in it.
func (f *File) Unresolved() (names []string) {
	for _, pod := range f.pods {
		for i := range pod.Spec.ResourceClaims {
			ref := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName
			if ref != nil && f.template(pod.Namespace, *ref, nil) == nil {
				names = append(names, pod.Namespace+"/"+*ref)
			}
		}
	}
	return names
}

func (f *File) template(namespace, name string, more []resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplate {
	for _, template := range f.templates {
		if template.Namespace == namespace && template.Name == name {
			return template
		}
	}
	for i := range more {
		if more[i].Namespace == namespace && more[i].Name == name {
			return &more[i]
		}
	}
	return nil
}

func (f *File) claim(namespace, name string, cluster []resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	for _, claim := range f.claims {
		if claim.Namespace == namespace && claim.Name == name {
			return claim
		}
	}
	for i := range cluster {
		if cluster[i].Namespace == namespace && cluster[i].Name == name {
			return &cluster[i]
		}
	}
	return nil
}

// Workloads returns what the file asks for, in its order: each pod with its claims, and each claim and template that no pod of the file
// names. Claims and templates that are not in the file are those of the cluster.
func (f *File) Workloads(claims []resourceapi.ResourceClaim, templates []resourceapi.ResourceClaimTemplate) ([]Workload, error) {
	byKey := map[string]Workload{}
	used := map[string]bool{}
	for _, pod := range f.pods {
		w := Workload{Kind: kindPod, Namespace: pod.Namespace, Name: pod.Name, Pod: pod, made: map[string]bool{}}
		for i := range pod.Spec.ResourceClaims {
			entry := &pod.Spec.ResourceClaims[i]
			claim, from, err := f.resolve(pod, entry, claims, templates)
			if err != nil {
				return nil, fmt.Errorf("%s: Pod %s: %w", f.name, pod.Name, err)
			}
			if claim == nil {
				continue
			}
			used[from] = true
			w.made[claim.Name] = claim.UID == "" && entry.ResourceClaimTemplateName != nil
			w.add(claim)
		}
		byKey[kindPod+"/"+pod.Namespace+"/"+pod.Name] = w
	}
	for _, claim := range f.claims {
		byKey[kindClaim+"/"+claim.Namespace+"/"+claim.Name] = Workload{
			Kind: kindClaim, Namespace: claim.Namespace, Name: claim.Name, Claims: []*resourceapi.ResourceClaim{claim},
		}
	}
	for _, template := range f.templates {
		byKey[kindTemplate+"/"+template.Namespace+"/"+template.Name] = Workload{
			Kind: kindTemplate, Namespace: template.Namespace, Name: template.Name,
			Claims: []*resourceapi.ResourceClaim{claimFrom(template, template.Name)}, made: map[string]bool{template.Name: true},
		}
	}
	var list []Workload
	for _, key := range f.order {
		if !used[key] {
			list = append(list, byKey[key])
		}
	}
	return list, nil
}

// add adds a claim once: two entries of a pod can name the same.
func (w *Workload) add(claim *resourceapi.ResourceClaim) {
	for _, other := range w.Claims {
		if other.Name == claim.Name {
			return
		}
	}
	w.Claims = append(w.Claims, claim)
}

// resolve returns the claim of an entry of a pod, and the document that it is from, as KIND/NAMESPACE/NAME. It returns nil for an entry
// of a pod of the cluster for which Kubernetes has made no claim on purpose.
func (f *File) resolve(pod *corev1.Pod, entry *corev1.PodResourceClaim, claims []resourceapi.ResourceClaim,
	templates []resourceapi.ResourceClaimTemplate,
) (*resourceapi.ResourceClaim, string, error) {
	switch {
	case (entry.ResourceClaimName == nil) == (entry.ResourceClaimTemplateName == nil):
		return nil, "", fmt.Errorf("spec.resourceClaims entry %q: want either resourceClaimName or resourceClaimTemplateName", entry.Name)
	case entry.ResourceClaimName != nil:
		claim := f.claim(pod.Namespace, *entry.ResourceClaimName, claims)
		if claim == nil {
			return nil, "", fmt.Errorf("ResourceClaim %q of spec.resourceClaims entry %q is neither in the file nor in namespace %s of the cluster",
				*entry.ResourceClaimName, entry.Name, pod.Namespace)
		}
		return claim, kindClaim + "/" + claim.Namespace + "/" + claim.Name, nil
	}
	// A pod that was read from the cluster can have its claim already.
	switch name, _, err := resourceclaim.Name(pod, entry); {
	case err == nil && name == nil:
		return nil, "", nil
	case err == nil:
		if claim := f.claim(pod.Namespace, *name, claims); claim != nil && claim.UID != "" {
			return claim, kindTemplate + "/" + pod.Namespace + "/" + *entry.ResourceClaimTemplateName, nil
		}
	}
	template := f.template(pod.Namespace, *entry.ResourceClaimTemplateName, templates)
	if template == nil {
		return nil, "", fmt.Errorf("ResourceClaimTemplate %q of spec.resourceClaims entry %q is neither in the file nor in namespace %s of the cluster",
			*entry.ResourceClaimTemplateName, entry.Name, pod.Namespace)
	}
	// Kubernetes adds random characters to this name.
	return claimFrom(template, pod.Name+"-"+entry.Name), kindTemplate + "/" + template.Namespace + "/" + template.Name, nil
}

func claimFrom(template *resourceapi.ResourceClaimTemplate, name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: template.Namespace, Name: name}, Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// UsesClaims returns whether an object of the file is a claim or a template, or a pod that names one.
func (f *File) UsesClaims() bool {
	return len(f.claims) > 0 || len(f.templates) > 0 ||
		slices.ContainsFunc(f.pods, func(pod *corev1.Pod) bool { return len(pod.Spec.ResourceClaims) > 0 })
}

// UsesPlugins returns whether a pod of the file requests an extended resource that a device plugin advertises on a node: only then the
// pods of the cluster matter.
func (f *File) UsesPlugins(nodes []corev1.Node) bool {
	for _, pod := range f.pods {
		for _, name := range ExtendedNames(pod) {
			for i := range nodes {
				if quantity := nodes[i].Status.Allocatable[name]; !quantity.IsZero() {
					return true
				}
			}
		}
	}
	return false
}
