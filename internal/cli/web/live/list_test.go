package live

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node},
	}
}

func unstructuredOf(t *testing.T, object runtime.Object) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// TestList checks that a list follows creations, changes and deletions, and is not returned without the API server.
func TestList(t *testing.T) {
	client := fake.NewSimpleDynamicClient(scheme.Scheme, pod("b", "x", ""), pod("a", "z", ""), pod("a", "y", "node-0"))
	var failed atomic.Bool
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if failed.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	pods := client.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	list := New[corev1.Pod](t.Context(), client, client, corev1.SchemeGroupVersion.WithResource("pods"), nil)
	list.share = 0
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	get := func() (text string, all []corev1.Pod) {
		t.Helper()
		all, err := list.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range all {
			names = append(names, all[i].Namespace+"/"+all[i].Name+"@"+all[i].Spec.NodeName)
		}
		return strings.Join(names, " "), all
	}
	wait := func(want string) {
		t.Helper()
		for {
			got, _ := get()
			if got == want {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("got %q, want %q", got, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	first, kept := get()
	if want := "a/y@node-0 a/z@ b/x@"; first != want {
		t.Fatalf("got %q, want %q", first, want)
	}
	if _, err := pods.Namespace("a").Create(ctx, unstructuredOf(t, pod("a", "aa", "")), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("a/aa@ a/y@node-0 a/z@ b/x@")
	if _, err := pods.Namespace("b").Update(ctx, unstructuredOf(t, pod("b", "x", "node-1")), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("a/aa@ a/y@node-0 a/z@ b/x@node-1")
	if err := pods.Namespace("a").Delete(ctx, "y", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("a/aa@ a/z@ b/x@node-1")
	if kept[2].Spec.NodeName != "" {
		t.Error("a later event has changed an object that was returned before")
	}
	failed.Store(true)
	if all, err := list.Get(ctx); err == nil || all != nil {
		t.Errorf("without the API server got %v, %v", all, err)
	}
	failed.Store(false)
	get()
}

// TestRefusedList checks that the error of the first list is returned.
func TestRefusedList(t *testing.T) {
	client := fake.NewSimpleDynamicClient(scheme.Scheme)
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	if _, err := New[corev1.Pod](t.Context(), client, client, corev1.SchemeGroupVersion.WithResource("pods"), nil).Get(t.Context()); err == nil {
		t.Error("want an error")
	}
}

// TestListEnds checks that a request which ends does not wait for the first list.
func TestListEnds(t *testing.T) {
	client := fake.NewSimpleDynamicClient(scheme.Scheme)
	first := true
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if first {
			first = false
			return false, nil, nil
		}
		return true, nil, errors.New("connection refused")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New[corev1.Pod](t.Context(), client, client, corev1.SchemeGroupVersion.WithResource("pods"), nil).Get(ctx); err == nil {
		t.Error("want an error")
	}
}
