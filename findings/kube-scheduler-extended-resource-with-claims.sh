#!/usr/bin/env bash
# kube-scheduler 1.37.1 never binds a pod that has a ResourceClaim, of any driver, and requests an extended resource, to a node where a
# device plugin offers that resource, while a DeviceClass serves it on another node.
#
# Version: k8s.io/kubernetes v1.37.1, where the feature gate DRAExtendedResource is on and locked.
#
# Behaviour: the filters allow the node, as its device plugin has the resource free. For the resource the plugin DynamicResources then
# has a claim of its own (pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go): filterExtendedResources drops
# it where the device plugin has all the pod wants, but only if the pod has no other claims (line 258). With one, the claim stays,
# without requests. It is allocated beside the other, with no devices, and PreBind creates it in the API server, as an allocation is
# there (dynamicresources.go:1813 skips it only without one); then patchPodExtendedResourceClaimStatus refuses it for its lack of
# requests (line 574). The claim is deleted, and the next attempt does the same.
#
# Output seen (each attempt to bind makes one claim; the sixth line is broken here):
#
#     k8s.io/kubernetes v1.37.1
#     DRAExtendedResource: true
#     the pod without the claim: bound
#     the pod without the DeviceClass: bound
#     the pod on the node that the DeviceClass serves: bound
#     the pod on the node with the device plugin: not bound; claims made for the extended resource: 3; SchedulerError: running PreBind
#     plugin "DynamicResources": nil or empty request mappings, no update of pod default/pod ExtendedResourceClaimStatus
#     The behaviour is the same: a pod with a claim and an extended resource that a DeviceClass serves elsewhere is never bound.
#
# What runs: the scheduler in one process with its default plugins, and client-go's fake API server, which validates nothing and which
# is taught here names, versions, conflicts and bindings. Three controls are bound: the same pod without the claim, without the
# DeviceClass, and on the node where the DeviceClass serves the resource.
#
# It needs Go (1.26, or one that fetches it) and its module proxy. The first build takes some minutes, the scheduler seconds.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 it could not be tried.
set -euo pipefail

kubernetes=v1.37.1
staging=v0.37.1

command -v go >/dev/null || { echo "error: no go on the PATH (https://go.dev/dl)" >&2; exit 2; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

{
	printf 'module finding\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$kubernetes"
	for name in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap code-generator \
		component-base component-helpers controller-manager cri-api cri-client cri-streaming csi-translation-lib \
		dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy kube-scheduler \
		kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin sample-controller streaming; do
		printf '\tk8s.io/%s => k8s.io/%s %s\n' "$name" "$name" "$staging"
	done
	printf ')\n'
} >go.mod

cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

const (
	gpuResource = "example.com/gpu"
	gpuDriver   = "gpu.example.com"
	nicDriver   = "nic.example.com"
	sentence    = `PreBind plugin "DynamicResources": nil or empty request mappings`
	attempts    = 3
	patience    = 2 * time.Minute
)

// node has a NIC of a driver, and one GPU, by a device plugin or by a driver.
func node(name string, plugin bool) []runtime.Object {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	objects := []runtime.Object{slice(name, nicDriver)}
	if plugin {
		list[gpuResource] = resource.MustParse("1")
	} else {
		objects = append(objects, slice(name, gpuDriver))
	}
	labels := map[string]string{corev1.LabelHostname: name}
	return append(objects, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Capacity: list, Allocatable: list},
	})
}

// slice has one device of a driver on a node.
func slice(node, driver string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Devices: []resourceapi.Device{{Name: "device-0"}},
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
}

// class has the devices of a driver; extended is its extended resource, or nil.
func class(driver string, extended *string) *resourceapi.DeviceClass {
	of := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{of}, ExtendedResourceName: extended,
	}}
}

// newPod requests a GPU as an extended resource on a node; with claim, it also has the ResourceClaim "nic".
func newPod(node string, claim bool) *corev1.Pod {
	list := corev1.ResourceList{gpuResource: resource.MustParse("1")}
	container := corev1.Container{Name: "main", Image: "main", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "uid-pod"}, Spec: corev1.PodSpec{
		SchedulerName: corev1.DefaultSchedulerName, NodeSelector: map[string]string{corev1.LabelHostname: node},
	}}
	if claim {
		name := "nic"
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: name, ResourceClaimName: &name}}
		container.Resources.Claims = []corev1.ResourceClaim{{Name: name}}
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}

// server is a fake API server.
type server struct {
	*fake.Clientset
	mu      sync.Mutex
	version int
	created atomic.Int64 // claims that the scheduler made for extended resources
}

func newServer(objects []runtime.Object) *server {
	s := &server{Clientset: fake.NewClientset(objects...), version: 1000}
	for _, kind := range []string{"pods", "resourceclaims"} {
		s.PrependReactor("*", kind, s.write)
	}
	return s
}

// write gives names and versions to pods and claims, refuses an update of an old version, and stores the node of a binding in the pod.
func (s *server) write(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gvr, namespace := action.GetResource(), action.GetNamespace()
	change := clienttesting.ObjectReaction(s.Tracker())
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		if binding, ok := a.Object.(*corev1.Binding); ok {
			stored, err := s.Tracker().Get(gvr, namespace, binding.Name)
			if err != nil {
				return true, nil, err
			}
			pod := stored.(*corev1.Pod).DeepCopy()
			pod.Spec.NodeName, pod.ResourceVersion = binding.Target.Name, s.next()
			return true, binding, s.Tracker().Update(gvr, pod, namespace)
		}
		a.Object = a.Object.DeepCopyObject()
		object, _ := meta.Accessor(a.Object)
		object.SetResourceVersion(s.next())
		if object.GetName() == "" {
			object.SetName(object.GetGenerateName() + s.next())
			object.SetUID(types.UID("uid-" + object.GetName()))
		}
		if object.GetAnnotations()[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
			s.created.Add(1)
		}
		return change(a)
	case clienttesting.UpdateActionImpl:
		a.Object = a.Object.DeepCopyObject()
		object, _ := meta.Accessor(a.Object)
		stored, err := s.Tracker().Get(gvr, namespace, object.GetName())
		if err != nil {
			return true, nil, err
		}
		if known, _ := meta.Accessor(stored); known.GetResourceVersion() != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(gvr.GroupResource(), object.GetName(), fmt.Errorf("it has changed"))
		}
		object.SetResourceVersion(s.next())
		return change(a)
	case clienttesting.PatchActionImpl:
		_, changed, err := change(a)
		if err != nil {
			return true, nil, err
		}
		changed = changed.DeepCopyObject()
		object, _ := meta.Accessor(changed)
		object.SetResourceVersion(s.next())
		return true, changed, s.Tracker().Update(gvr, changed, namespace)
	}
	return false, nil, nil
}

func (s *server) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

// try runs the scheduler until it has bound the pod, or has tried to bind it several times, or patience ends. It returns the pod's node
// and the message of its condition, and how many claims were made for extended resources.
func try(node string, claim bool, objects []runtime.Object) (bound, message string, created int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := newServer(objects)
	informerFactory := informers.NewSharedInformerFactory(s, 0)
	recorders := profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: s.EventsV1()}))
	sched, err := scheduler.New(ctx, s, informerFactory, nil, recorders, scheduler.WithPodInitialBackoffSeconds(1))
	if err != nil {
		return "", "", 0, err
	}
	informerFactory.Start(ctx.Done())
	informerFactory.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil {
		return "", "", 0, err
	}
	go sched.Run(ctx)
	if claim {
		mode := resourceapi.DeviceAllocationModeExactCount
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: nicDriver, AllocationMode: mode, Count: 1}
		made := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nic", UID: "uid-nic"}}
		made.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "nic", Exactly: exactly}}
		if _, err := s.ResourceV1().ResourceClaims("default").Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return "", "", 0, err
		}
	}
	pods := s.CoreV1().Pods("default")
	pod, err := pods.Create(ctx, newPod(node, claim), metav1.CreateOptions{})
	for err == nil && pod.Spec.NodeName == "" && ctx.Err() == nil && (s.created.Load() < attempts || message == "") {
		time.Sleep(50 * time.Millisecond)
		if pod, err = pods.Get(context.Background(), "pod", metav1.GetOptions{}); err != nil {
			break
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
				message = fmt.Sprintf("%s: %s", c.Reason, c.Message)
			}
		}
	}
	if err == nil && pod.Spec.NodeName == "" && message == "" {
		err = fmt.Errorf("the scheduler has not tried the pod within %v", patience)
	}
	if err != nil {
		return "", "", 0, err
	}
	return pod.Spec.NodeName, message, s.created.Load(), nil
}

func main() {
	klog.SetLogger(logr.Discard())
	fmt.Printf("DRAExtendedResource: %t\n", feature.DefaultFeatureGate.Enabled(features.DRAExtendedResource))
	same := true
	for _, test := range []struct {
		name         string
		node         string
		claim, class bool
		never        bool
	}{
		{"the pod without the claim", "plugin", false, true, false},
		{"the pod without the DeviceClass", "plugin", true, false, false},
		{"the pod on the node that the DeviceClass serves", "driver", true, true, false},
		{"the pod on the node with the device plugin", "plugin", true, true, true},
	} {
		objects := append(append(node("plugin", true), node("driver", false)...), class(nicDriver, nil))
		if extended := gpuResource; test.class {
			objects = append(objects, class(gpuDriver, &extended))
		}
		bound, message, created, err := try(test.node, test.claim, objects)
		switch {
		case err != nil:
			fmt.Fprintf(os.Stderr, "error: %s: %v\n", test.name, err)
			os.Exit(2)
		case bound != "":
			fmt.Printf("%s: bound\n", test.name)
			same = same && !test.never
		default:
			fmt.Printf("%s: not bound; claims made for the extended resource: %d; %s\n", test.name, created, message)
			same = same && test.never && created >= attempts && strings.Contains(message, sentence)
		}
	}
	if !same {
		fmt.Println("The behaviour is no longer the same.")
		os.Exit(1)
	}
	fmt.Println("The behaviour is the same: a pod with a claim and an extended resource that a DeviceClass serves elsewhere is never bound.")
}
GO

export GOWORK=off GOFLAGS=-mod=mod
go build -o finding . || { echo "error: the program does not build" >&2; exit 2; }
go list -m k8s.io/kubernetes
./finding
