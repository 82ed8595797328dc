package uninstall

import (
	"cmp"
	"context"
	"errors"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// releaseAnnotation is Helm's annotation with the name of the release that an object belongs to.
const releaseAnnotation = "meta.helm.sh/release-name"

// survey is what the cluster has of Berth before the first write.
type survey struct {
	stack      *v1alpha1.GPUStack
	nodes      []v1alpha1.GPUNode
	operations []v1alpha1.NodeOperation
	// agent is the agent's DaemonSet, and hosts the one that cleans the nodes; nil when there is none.
	agent *appsv1.DaemonSet
	hosts *appsv1.DaemonSet
	// namespace is false when the namespace does not exist.
	namespace bool
	// podSecurity is the level that the namespace enforces.
	podSecurity string
	// release is the name of the Helm release; empty where no object names one.
	release string
	// driver is the name of the DRA driver.
	driver string
}

// needsHosts reports whether nodes may have files of an agent. Where nothing in the API says so, the user may, by an image.
func (r *remover) needsHosts() bool {
	s := &r.found
	return s.agent != nil || s.hosts != nil || len(s.nodes) > 0 || r.Image != ""
}

// survey reads what there is.
func (r *remover) survey(ctx context.Context) error {
	s := &r.found
	stacks, err := listOf[v1alpha1.GPUStack](ctx, r, v1alpha1.GPUStacks(), "", "")
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(stacks, func(one v1alpha1.GPUStack) bool { return one.Name == v1alpha1.GPUStackName }); at >= 0 {
		s.stack = &stacks[at]
	}
	r.Namespace = cmp.Or(r.Namespace, s.stackSpec().Namespace, DefaultNamespace)
	if s.nodes, err = listOf[v1alpha1.GPUNode](ctx, r, v1alpha1.GPUNodes(), "", ""); err != nil {
		return err
	}
	if s.operations, err = listOf[v1alpha1.NodeOperation](ctx, r, v1alpha1.NodeOperations(), "", ""); err != nil {
		return err
	}
	sets, err := listOf[appsv1.DaemonSet](ctx, r, daemonSets(), r.Namespace, ofBerth)
	if err != nil {
		return err
	}
	for i := range sets {
		switch set := &sets[i]; {
		case set.Name == Name:
			s.hosts = set
		case set.Labels[labelName] == "berth-agent":
			s.agent, s.release = set, set.Annotations[releaseAnnotation]
		}
	}
	namespace, err := r.get(ctx, namespaces(), "", r.Namespace)
	if err != nil {
		return err
	}
	if namespace != nil {
		s.namespace, s.podSecurity = true, namespace.GetLabels()["pod-security.kubernetes.io/enforce"]
	}
	s.driver = s.draDriver()
	return nil
}

func (s *survey) stackSpec() v1alpha1.GPUStackSpec {
	if s.stack == nil {
		return v1alpha1.GPUStackSpec{}
	}
	return s.stack.Spec
}

// draDriver returns the name of the DRA driver. The agent's DaemonSet has it in the path of a volume.
func (s *survey) draDriver() string {
	for _, set := range []*appsv1.DaemonSet{s.agent, s.hosts} {
		if set == nil {
			continue
		}
		if name := set.Annotations[driverAnnotation]; name != "" {
			return name
		}
		if name := driverOf(&set.Spec.Template.Spec); name != "" {
			return name
		}
	}
	return cmp.Or(s.stackSpec().Host.DRADriverName, defaultDriver)
}

// image returns the image of the pods that clean the nodes.
func (r *remover) image() (string, error) {
	s := &r.found
	image := r.Image
	for _, set := range []*appsv1.DaemonSet{s.agent, s.hosts} {
		if set != nil && image == "" {
			image = agentContainer(&set.Spec.Template.Spec).Image
		}
	}
	for _, component := range s.stackSpec().Components {
		if component.Name == "agent" {
			image = cmp.Or(image, component.Image)
		}
	}
	if image == "" {
		return "", errors.New("nodes have to be cleaned, and neither the agent's DaemonSet nor a GPUStack says with which image\nfix: give --image IMAGE, that of berth-agent")
	}
	return image, nil
}

// named returns a function that selects an object by its name.
func named(name string) func(*unstructured.Unstructured) bool {
	return func(object *unstructured.Unstructured) bool { return object.GetName() == name }
}
