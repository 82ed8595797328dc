package dra

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"

	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// create does with an object what the API server does before it stores a new one: defaults, conversion, dropping of the fields of
// features that are off, validation, both kinds of it. It returns the object as it would be stored.
func create[T any](strategy rest.RESTCreateStrategy, resourceName, namespace string, object, internalObject runtime.Object) (*T, error) {
	given := object.DeepCopyObject()
	legacyscheme.Scheme.Default(given)
	if err := legacyscheme.Scheme.Convert(given, internalObject, nil); err != nil {
		return nil, err
	}
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), namespace)
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: resourceapi.GroupName, APIVersion: "v1", Resource: resourceName, Namespace: namespace,
	})
	accessor, err := meta.Accessor(internalObject)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(accessor)
	if err := rest.BeforeCreate(strategy, ctx, internalObject); err != nil {
		return nil, err
	}
	var stored T
	if err := legacyscheme.Scheme.Convert(internalObject, &stored, nil); err != nil {
		return nil, err
	}
	return &stored, nil
}

func createSlice(slice *resourceapi.ResourceSlice) (*resourceapi.ResourceSlice, error) {
	return create[resourceapi.ResourceSlice](resourceslice.Strategy, "resourceslices", "", slice, &internal.ResourceSlice{})
}

// TestAPIServerAcceptsGoldens sends every golden slice through the API server's code. It is stored as it was sent: nothing is dropped.
func TestAPIServerAcceptsGoldens(t *testing.T) {
	for name, list := range readGoldens(t) {
		t.Run(name, func(t *testing.T) {
			if err := pool.Validate(list); err != nil {
				t.Error(err)
			}
			for i := range list {
				stored, err := createSlice(&list[i])
				if err != nil {
					t.Errorf("%s: %v", list[i].Name, err)
				} else if !equality.Semantic.DeepEqual(stored.Spec, list[i].Spec) {
					t.Errorf("%s is stored with another content", list[i].Name)
				}
			}
		})
	}
}

// TestAPIServerAcceptsTaints has a taint on each device of the largest node, and as many taints as a device can have.
func TestAPIServerAcceptsTaints(t *testing.T) {
	list := readGoldens(t)["h100x8-dynamic"]
	for i := range list {
		for k := range list[i].Spec.Devices {
			for n := range resourceapi.DeviceTaintsMaxLength {
				list[i].Spec.Devices[k].Taints = append(list[i].Spec.Devices[k].Taints, resourceapi.DeviceTaint{
					Key: "gpu.berth.dev/health", Value: fmt.Sprint("state-", n), Effect: resourceapi.DeviceTaintEffectNoExecute,
				})
			}
		}
		if _, err := createSlice(&list[i]); err != nil {
			t.Error(err)
		}
	}
	if err := pool.Validate(list); err != nil {
		t.Error(err)
	}
}

// TestAPIServerAcceptsClasses creates the default classes.
func TestAPIServerAcceptsClasses(t *testing.T) {
	made, err := class.Classes(class.Settings{Profiles: class.DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range made {
		stored, err := create[resourceapi.DeviceClass](deviceclass.Strategy, "deviceclasses", "", &made[i], &internal.DeviceClass{})
		if err != nil {
			t.Errorf("%s: %v", made[i].Name, err)
		} else if !equality.Semantic.DeepEqual(stored.Spec, made[i].Spec) {
			t.Errorf("%s is stored with another content: %v", made[i].Name, stored.Spec)
		}
	}
}

// TestLimitsAreTheAPIServers breaks one limit at a time. The API server refuses each of these slices, and so does pool.Validate before
// they are sent.
func TestLimitsAreTheAPIServers(t *testing.T) {
	long := "x123456789012345678901234567890123456789012345678901234567890123456789"
	type spec = resourceapi.ResourceSliceSpec
	more := func(s *spec, n int) {
		for i := len(s.Devices); i < n; i++ {
			device := *s.Devices[0].DeepCopy()
			device.Name = fmt.Sprint("more-", i)
			s.Devices = append(s.Devices, device)
		}
	}
	one := func() resourceapi.Counter {
		return resourceapi.Counter{Value: *resource.NewQuantity(1, resource.DecimalSI)}
	}
	const devices, counters = 0, 4 // the slices
	for name, test := range map[string]struct {
		slice  int
		breaks func(*spec)
	}{
		"65 devices that take counters": {devices, func(s *spec) { more(s, 65) }},
		"9 counter sets": {counters, func(s *spec) {
			s.SharedCounters = append(s.SharedCounters, *s.SharedCounters[0].DeepCopy())
			s.SharedCounters[8].Name = "more"
		}},
		"33 counters": {counters, func(s *spec) {
			for i := range 33 {
				s.SharedCounters[0].Counters[fmt.Sprint("c", i)] = one()
			}
		}},
		"counters and devices": {counters, func(s *spec) { s.Devices = []resourceapi.Device{{Name: "one"}} }},
		"3 counter sets of a device": {devices, func(s *spec) {
			for i := range 2 {
				consumes := *s.Devices[0].ConsumesCounters[0].DeepCopy()
				consumes.CounterSet = fmt.Sprint("set-", i)
				s.Devices[0].ConsumesCounters = append(s.Devices[0].ConsumesCounters, consumes)
			}
		}},
		"33 counters of a device": {devices, func(s *spec) {
			for i := range 33 {
				s.Devices[0].ConsumesCounters[0].Counters[fmt.Sprint("c", i)] = one()
			}
		}},
		"33 attributes": {devices, func(s *spec) {
			for i := range 33 {
				s.Devices[0].Attributes[resourceapi.QualifiedName(fmt.Sprint("x", i))] = s.Devices[0].Attributes["type"]
			}
		}},
		"a text of 70 bytes": {devices, func(s *spec) { s.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{StringValue: &long} }},
		"a name of 70 bytes": {devices, func(s *spec) { s.Devices[0].Name = long }},
		"an attribute's name": {devices, func(s *spec) {
			s.Devices[0].Attributes[resourceapi.QualifiedName(long[:33])] = s.Devices[0].Attributes["type"]
		}},
		"a version of NVIDIA's": {devices, func(s *spec) {
			v := "580.95.05"
			s.Devices[0].Attributes["x"] = resourceapi.DeviceAttribute{VersionValue: &v}
		}},
		"17 taints":              {devices, func(s *spec) { s.Devices[0].Taints = make([]resourceapi.DeviceTaint, 17) }},
		"an effect of Nodes":     {devices, func(s *spec) { s.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "a", Effect: "PreferNoSchedule"}} }},
		"one name twice":         {devices, func(s *spec) { s.Devices[1].Name = s.Devices[0].Name }},
		"a counter's name":       {counters, func(s *spec) { s.SharedCounters[0].Counters["memory slice"] = one() }},
		"no node":                {devices, func(s *spec) { s.NodeName = nil }},
		"no pool":                {devices, func(s *spec) { s.Pool.Name = "" }},
		"the driver's name":      {devices, func(s *spec) { s.Driver = long }},
		"the number of slices":   {devices, func(s *spec) { s.Pool.ResourceSliceCount = 0 }},
		"a negative generation":  {devices, func(s *spec) { s.Pool.Generation = -1 }},
		"an empty counter set":   {counters, func(s *spec) { s.SharedCounters[0].Counters = nil }},
		"a device takes nothing": {devices, func(s *spec) { s.Devices[0].ConsumesCounters[0].Counters = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			list := readGoldens(t)["h100x8-dynamic"]
			test.breaks(&list[test.slice].Spec)
			if _, err := createSlice(&list[test.slice]); !apierrors.IsInvalid(err) {
				t.Errorf("the API server does not refuse it, so the limit has changed: %v", err)
			}
			if err := pool.Validate(list); err == nil {
				t.Error("pool.Validate accepts it")
			}
		})
	}
}

// TestMoreThan64Devices proves why no slice may have more: the API server accepts 128 devices until one of them has a taint.
func TestMoreThan64Devices(t *testing.T) {
	slice := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: pool.DefaultDriver, NodeName: new(string), Pool: resourceapi.ResourcePool{Name: nodeName, ResourceSliceCount: 1},
	}}
	*slice.Spec.NodeName = nodeName
	for i := range 65 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("d", i)})
	}
	if _, err := createSlice(&slice); err != nil {
		t.Errorf("65 devices without taints: %v", err)
	}
	slice.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "gpu.berth.dev/health", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	if _, err := createSlice(&slice); !apierrors.IsInvalid(err) {
		t.Errorf("65 devices, one with a taint, are not refused, so the limit has changed: %v", err)
	}
	if err := pool.Validate([]resourceapi.ResourceSlice{slice}); err == nil {
		t.Error("pool.Validate accepts 65 devices")
	}
}
