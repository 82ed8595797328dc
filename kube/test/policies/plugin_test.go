package policies

import (
	"context"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/cel/environment"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"sigs.k8s.io/yaml"
)

const (
	// rendering has every object of the chart.
	rendering = "../../../charts/testdata/golden/everything.yaml"
	// namespace is that of the release.
	namespace = "berth-system"
)

// documents returns the objects of the chart that have a kind, in their order.
func documents[T any](t *testing.T, kind string) []*T {
	t.Helper()
	text, err := os.ReadFile(rendering)
	if err != nil {
		t.Fatal(err)
	}
	var all []*T
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if meta.Kind != kind {
			continue
		}
		object := new(T)
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		all = append(all, object)
	}
	return all
}

// plugin is the API server's plugin with the policies of the chart.
type plugin struct{ *validating.Plugin }

func newPlugin(t *testing.T) plugin {
	t.Helper()
	objects := []runtime.Object{}
	for _, name := range []string{namespace, "default"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	for _, policy := range documents[admissionv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		objects = append(objects, withDefaults(policy))
	}
	for _, binding := range documents[admissionv1.ValidatingAdmissionPolicyBinding](t, "ValidatingAdmissionPolicyBinding") {
		objects = append(objects, binding)
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	p, err := validating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.SetExternalKubeInformerFactory(factory)
	p.SetExternalKubeClientSet(client)
	p.SetRESTMapper(meta.NewDefaultRESTMapper(nil))
	p.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()))
	p.SetDrainedNotification(t.Context().Done())
	p.SetUnconditionalAuthorizer(authorizerfactory.NewAlwaysAllowAuthorizer())
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !p.WaitForReady() {
		t.Fatal("the plugin did not read the policies")
	}
	return plugin{p}
}

// withDefaults sets what the API server sets in a policy that leaves it out.
func withDefaults(policy *admissionv1.ValidatingAdmissionPolicy) *admissionv1.ValidatingAdmissionPolicy {
	match := policy.Spec.MatchConstraints
	equivalent, all := admissionv1.Equivalent, admissionv1.AllScopes
	match.MatchPolicy = &equivalent
	for _, selector := range []**metav1.LabelSelector{&match.NamespaceSelector, &match.ObjectSelector} {
		if *selector == nil {
			*selector = &metav1.LabelSelector{}
		}
	}
	for i := range match.ResourceRules {
		match.ResourceRules[i].Scope = &all
	}
	return policy
}

// request is a request about a pod; before is nil for a creation.
type request struct {
	user        string
	namespace   string
	subresource string
	pod         runtime.Object
	before      runtime.Object
}

// admit returns the answer of the plugin.
func (p plugin) admit(ctx context.Context, r request) error {
	operation := admission.Create
	if r.before != nil {
		operation = admission.Update
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	attributes := admission.NewAttributesRecord(r.pod, r.before, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, r.namespace, "x", pods, r.subresource,
		operation, nil, true, &user.DefaultInfo{Name: r.user})
	return p.Validate(ctx, attributes, admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme))
}

// decode reads a pod as the API server does, with its defaults.
func decode(t *testing.T, pod string) runtime.Object {
	t.Helper()
	object, _, err := legacyscheme.Codecs.UniversalDecoder(legacyscheme.Scheme.PrioritizedVersionsForGroup("")...).Decode([]byte(pod), nil, nil)
	if err != nil {
		t.Fatalf("%v: %s", err, pod)
	}
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatalf("%v: %s", err, pod)
	}
	return internal
}

// TestCompile compiles each expression of each policy as API servers of several versions do: a function that came later than one of
// them is refused there.
func TestCompile(t *testing.T) {
	policies := documents[admissionv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy")
	if len(policies) < 5 {
		t.Fatalf("%d policies", len(policies))
	}
	for _, minor := range []uint{31, 34, 37} {
		compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, minor)))
		if err != nil {
			t.Fatal(err)
		}
		for _, policy := range policies {
			for _, e := range expressions(policy) {
				result := compiler.CompileCELExpression(e, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)
				if named, ok := e.(*validating.Variable); ok && result.Error == nil {
					compiler.CompileAndStoreVariable(named, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)
				}
				if result.Error != nil {
					t.Errorf("1.%d: %s: %v: %s", minor, policy.Name, result.Error, e.GetExpression())
				}
			}
		}
	}
}

// expressions returns those of a policy, the variables first and in their order.
func expressions(policy *admissionv1.ValidatingAdmissionPolicy) []cel.ExpressionAccessor {
	var all []cel.ExpressionAccessor
	for _, v := range policy.Spec.Variables {
		all = append(all, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	for _, c := range policy.Spec.MatchConditions {
		all = append(all, &validating.ValidationCondition{Expression: c.Expression})
	}
	for _, v := range policy.Spec.Validations {
		all = append(all, &validating.ValidationCondition{Expression: v.Expression})
		if v.MessageExpression != "" {
			all = append(all, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
		}
	}
	return all
}
