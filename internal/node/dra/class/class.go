// Package class has the DeviceClasses of Berth's DRA driver: one for whole GPUs and one for each MIG profile.
//
// It guarantees that a class carries the extended resource name under which the device plugin advertises the same devices, so that a
// pod that requests nvidia.com/gpu gets a GPU on nodes of both kinds, and that no two classes have one name. DeviceClasses are objects
// of the cluster, which no agent writes. The package is a pure computation and must not import anything that talks to the API server.
package class

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Settings are the operator's settings.
type Settings struct {
	// Driver is the name of the DRA driver, and of the class of whole GPUs; empty means pool.DefaultDriver.
	Driver string
	// ResourceName is the extended resource name of whole GPUs; empty means offer.DefaultResource.
	ResourceName string
	// Profiles are the MIG profiles that get a class, such as "1g.10gb+me".
	Profiles []string
}

// Classes returns the classes, that of whole GPUs first, then those of the profiles in their order. Its error names the first class
// that the API server would refuse, or the resource that two classes would have.
func Classes(settings Settings) ([]resourceapi.DeviceClass, error) {
	driver := cmp.Or(settings.Driver, pool.DefaultDriver)
	classes := []resourceapi.DeviceClass{
		deviceClass(driver, cmp.Or(settings.ResourceName, offer.DefaultResource), driver, condition(driver, pool.AttributeType, pool.TypeGPU)),
	}
	for _, profile := range settings.Profiles {
		resource := offer.MIGResource(profile)
		_, short, _ := strings.Cut(resource, "/")
		classes = append(classes, deviceClass(short+"."+driver, resource, driver,
			condition(driver, pool.AttributeType, pool.TypeMIG), condition(driver, pool.AttributeProfile, profile)))
	}
	for i := range classes {
		if err := check(&classes[i], classes[:i]); err != nil {
			return nil, err
		}
	}
	return classes, nil
}

// check returns why a class cannot stand beside those before it.
func check(class *resourceapi.DeviceClass, before []resourceapi.DeviceClass) error {
	resource := *class.Spec.ExtendedResourceName
	if faults := validation.IsDNS1123Subdomain(class.Name); len(faults) > 0 {
		return fmt.Errorf("DeviceClass %q: the name is invalid: %s", class.Name, strings.Join(faults, "; "))
	}
	if fault := offer.CheckResource(resource); fault != "" {
		return fmt.Errorf("DeviceClass %s: the extended resource name %q is invalid: %s", class.Name, resource, fault)
	}
	same := func(other resourceapi.DeviceClass) bool {
		return other.Name == class.Name || *other.Spec.ExtendedResourceName == resource
	}
	if at := slices.IndexFunc(before, same); at >= 0 {
		return fmt.Errorf("DeviceClasses %s and %s: both would have the extended resource name %s, and Kubernetes would use one of them: "+
			"list each profile once, and give whole GPUs a name of their own", before[at].Name, class.Name, resource)
	}
	return nil
}

// condition compares an attribute of a device in CEL.
func condition(driver, attribute, value string) string {
	return fmt.Sprintf("device.attributes[%s].%s == %s", strconv.Quote(driver), attribute, strconv.Quote(value))
}

// deviceClass returns a class whose devices are the driver's and meet each condition.
func deviceClass(name, resource, driver string, conditions ...string) resourceapi.DeviceClass {
	expression := strings.Join(append([]string{"device.driver == " + strconv.Quote(driver)}, conditions...), " && ")
	return resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: &resource,
			Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	}
}

// YAML prints classes as documents that kubectl apply reads.
func YAML(classes []resourceapi.DeviceClass) ([]byte, error) {
	var out bytes.Buffer
	for i := range classes {
		text, err := yaml.Marshal(&classes[i])
		if err != nil {
			return nil, fmt.Errorf("print DeviceClass %s: %w", classes[i].Name, err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
