// Command deadexports lists the exported functions, methods, types and variables of packages below internal/ that no other package of the
// repository uses, and fails when there is one. Tests do not count as users, so that code which only tests call is found. Out of scope are
// struct fields and constants, which belong to lists of values, packages that no program links (helpers of tests), generated files, and
// methods with the name and the signature of a method of an interface.
//
// It runs in the root of the repository, with the modules that import internal packages as arguments: deadexports . kube hack/images.
package main

import (
	"fmt"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const berth = "github.com/berth-gpu/berth/"

// The reasons for which a name may be exported without a user.
const (
	fromKubernetes = "it has the name that plugins have in Kubernetes' scheduler"
	ownTests       = "its own tests are in a package of their own"
	otherTests     = "tests of other packages call it"
	simulation     = "tests control the simulated hardware with it"
	endToEnd       = "the end-to-end tests control the cluster with it"
)

// exceptions are names, without the module, with the reason. One that ends in a dot stands for all names of a package.
var exceptions = map[string]string{
	"internal/cluster/operator/gpunodes.Keep":       ownTests,
	"internal/cluster/operator/gpuquota.New":        ownTests,
	"internal/cluster/operator/stack.New":           ownTests,
	"internal/cluster/operator/agents.New":          "as the constructors of the other reconcilers",
	"internal/cluster/operator/validation.New":      "as the constructors of the other reconcilers",
	"internal/cluster/scheduler/binding.Plugin":     fromKubernetes,
	"internal/cluster/scheduler/gangs.Args":         fromKubernetes,
	"internal/cluster/scheduler/gangs.Plugin":       fromKubernetes,
	"internal/cluster/scheduler/placement.Args":     fromKubernetes,
	"internal/cluster/scheduler/placement.Plugin":   fromKubernetes,
	"internal/cluster/scheduler/podgroups.Plugin":   fromKubernetes,
	"internal/core/fleet.Fleet.Remove":              otherTests,
	"internal/core/fleet.GPUSet.Has":                otherTests,
	"internal/core/gpu.ParseTopology":               otherTests,
	"internal/core/health.Facts":                    ownTests,
	"internal/core/nodeop.Active":                   ownTests,
	"internal/core/placement.Node.All":              otherTests,
	"internal/core/placement/shared.Cache.Stats":    "its own tests compare what is computed, which nothing else shows",
	"internal/core/trace.Device.Fact":               otherTests,
	"internal/hardware/nvidia.Sampler.Sample":       otherTests,
	"internal/hardware/nvidia/cdiedits.Nvcdi":       otherTests,
	"internal/hardware/nvidia/cdihook.Names":        otherTests,
	"internal/hardware/nvidia/cuda.Error":           "callers get it by errors.As",
	"internal/hardware/nvidia/cuda.Library.Version": "its own tests check the simulated library with it",
	"internal/hardware/sim.":                        simulation,
	"internal/hardware/sim/tools.":                  simulation,
	"internal/node/agent/drasync.Syncer.Sockets":    otherTests,
	"internal/node/agent/healthsync.Devices":        otherTests,
	"internal/node/agent/healthsync.Summarize":      otherTests,
	"internal/node/agent/migsync.Syncer.Computed":   otherTests,
	"internal/node/agent/serve.Server.State":        otherTests,
	"internal/node/dra/pool.Changes.Touched":        otherTests,
	"internal/node/dra/pool.Compare":                otherTests,
	"internal/node/hostruntime/hosttest.Parse":      otherTests,
	"internal/node/inventory.Diff":                  ownTests,
	"internal/node/inventory.Equal":                 ownTests,
	"internal/node/kubelet.Containers.LiveIn":       otherTests,
	"internal/node/kubelet.DevicesEnv":              otherTests,
	"internal/node/kubelet.ParseKeys":               otherTests,
	"internal/node/kubelet/checkpoint.Encode":       "tests write the file as the kubelet does",
	"internal/node/nodeapi.ClaimNotPrepared":        ownTests,
	"internal/node/nodeapi.ConditionChanged":        ownTests,
	"internal/node/nodeapi.Retry.Pause":             ownTests,
	"internal/node/nodeapi.StateLost":               ownTests,
	"internal/node/nodeapi.StateUnwritable":         ownTests,
	"internal/node/cdi.ReadSpec":                    otherTests,
	"internal/node/cdi.Spec.Fingerprint":            ownTests,
	"internal/node/gate.BringFiles":                 otherTests,
	"kube/internal/devices.Devices":                 fromKubernetes,
	"kube/internal/plugins.For":                     otherTests,
	"kube/internal/preemption.Plugin":               fromKubernetes,
	"kube/internal/sandbox.":                        endToEnd,
	"kube/internal/workload.Devices":                otherTests,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "deadexports:", err)
		os.Exit(1)
	}
}

func run(modules []string) error {
	loaded, err := load(modules)
	if err != nil {
		return err
	}
	dead := find(loaded)
	for _, line := range dead {
		fmt.Println(line)
	}
	if len(dead) > 0 {
		return fmt.Errorf("%d exported names have no user in another package: unexport or remove them, or add an exception with its reason to hack/deadexports", len(dead))
	}
	return nil
}

// load reads the packages of modules without their tests.
func load(modules []string) ([]*packages.Package, error) {
	var all []*packages.Package
	for _, dir := range modules {
		config := &packages.Config{
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
			Dir:  dir,
			Env:  append(os.Environ(), "GOFLAGS="),
		}
		patterns := []string{"./..."}
		switch dir {
		case ".":
			// As the scripts compile the root module, so that its compiled packages are shared.
			config.Env = append(config.Env, "GOFLAGS=-trimpath")
		case "kube":
			// kube/cmd/hyperkube is left out: it imports no package of Berth and takes an hour to compile.
			patterns = []string{"./internal/...", "./test/...", "./cmd/berth-scheduler", "./cmd/berth-sandbox", "./cmd/workload"}
		}
		loaded, err := packages.Load(config, patterns...)
		if err != nil {
			return nil, err
		}
		for _, p := range loaded {
			if len(p.Errors) > 0 {
				return nil, p.Errors[0]
			}
		}
		all = append(all, loaded...)
	}
	return all, nil
}

// find returns a line for each exported name without a user, and for each exception that has none.
func find(all []*packages.Package) []string {
	s := search{used: usedNames(all), methods: interfaceMethods(all), needed: map[string]bool{}}
	linked := linkedByPrograms(all)
	for _, p := range all {
		if strings.Contains(p.PkgPath, "/internal/") && linked[p.PkgPath] {
			s.checkPackage(p)
		}
	}
	for exception := range exceptions {
		if !s.needed[exception] {
			s.dead = append(s.dead, exception+": the exception is not needed")
		}
	}
	slices.Sort(s.dead)
	return s.dead
}

// usedNames returns the names that another package uses.
func usedNames(all []*packages.Package) map[string]bool {
	used := map[string]bool{}
	for _, p := range all {
		for _, object := range p.TypesInfo.Uses {
			if object.Pkg() != nil && object.Pkg().Path() != p.PkgPath {
				used[name(object)] = true
			}
		}
	}
	return used
}

// search looks for exported names without a user.
type search struct {
	used    map[string]bool // names
	methods map[string]bool // of interfaces
	needed  map[string]bool // exceptions
	dead    []string
}

func (s *search) checkPackage(p *packages.Package) {
	named := signatureTypes(p.Types)
	for _, title := range p.Types.Scope().Names() {
		object := p.Types.Scope().Lookup(title)
		if _, constant := object.(*types.Const); constant || !object.Exported() {
			continue
		}
		if !named[object] {
			s.check(p, object)
		}
		if typed, is := object.Type().(*types.Named); is && typed.Obj() == object {
			for method := range typed.Methods() {
				if !s.methods[signature(method)] {
					s.check(p, method)
				}
			}
		}
	}
}

// check reports an object that is exported and not used, unless it is an exception.
func (s *search) check(p *packages.Package, object types.Object) {
	where := position(p, object.Pos())
	if !object.Exported() || s.used[name(object)] || strings.Contains(where, "/zz_generated.") {
		return
	}
	full := strings.TrimPrefix(name(object), berth)
	for _, exception := range []string{full, strings.TrimPrefix(p.PkgPath, berth) + "."} {
		if exceptions[exception] != "" {
			s.needed[exception] = true
			return
		}
	}
	s.dead = append(s.dead, fmt.Sprintf("%s: %s", where, full))
}

// linkedByPrograms returns the packages that a program other than those of kube/test links.
func linkedByPrograms(all []*packages.Package) map[string]bool {
	byPath, linked := map[string]*packages.Package{}, map[string]bool{}
	for _, p := range all {
		byPath[p.PkgPath] = p
	}
	var visit func(*packages.Package)
	visit = func(p *packages.Package) {
		if p == nil || linked[p.PkgPath] {
			return
		}
		linked[p.PkgPath] = true
		for path := range p.Imports {
			visit(byPath[path])
		}
	}
	for _, p := range all {
		if p.Name == "main" && !strings.HasPrefix(p.PkgPath, berth+"kube/test/") {
			visit(p)
		}
	}
	return linked
}

// interfaceMethods returns the methods of all interfaces of the packages and of what they import, by name and signature, and those that
// the standard library looks for without naming an interface.
func interfaceMethods(all []*packages.Package) map[string]bool {
	methods := map[string]bool{"Unwrap func() error": true, "Is func(error) bool": true}
	add := func(t types.Type) {
		if i, is := t.Underlying().(*types.Interface); is {
			for method := range i.Methods() {
				methods[signature(method)] = true
			}
		}
	}
	seen := map[*types.Package]bool{}
	var visit func(*types.Package)
	visit = func(p *types.Package) {
		if seen[p] {
			return
		}
		seen[p] = true
		for _, title := range p.Scope().Names() {
			if object, is := p.Scope().Lookup(title).(*types.TypeName); is {
				add(object.Type())
			}
		}
		for _, imported := range p.Imports() {
			visit(imported)
		}
	}
	for _, p := range all {
		visit(p.Types)
		for _, value := range p.TypesInfo.Types {
			if value.IsType() {
				add(value.Type)
			}
		}
	}
	return methods
}

// signatureTypes returns the types that exported names of a package have in their signature or definition: who uses these names uses
// the types without naming them.
func signatureTypes(p *types.Package) map[types.Object]bool {
	found, seen := map[types.Object]bool{}, map[types.Type]bool{}
	var visit func(types.Type)
	visit = func(t types.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		if declared, is := t.(interface{ Obj() *types.TypeName }); is {
			found[declared.Obj()] = true
		}
		for _, part := range parts(t) {
			visit(part)
		}
	}
	for _, title := range p.Scope().Names() {
		object := p.Scope().Lookup(title)
		if !object.Exported() {
			continue
		}
		typed, is := object.Type().(*types.Named)
		if !is || typed.Obj() != object {
			visit(object.Type())
			continue
		}
		visit(typed.Underlying())
		for method := range typed.Methods() {
			if method.Exported() {
				visit(method.Type())
			}
		}
	}
	return found
}

// parts returns the types that a type is made of; a declared one has its type arguments.
func parts(t types.Type) []types.Type {
	var list []types.Type
	switch t := t.(type) {
	case *types.Named:
		list = slices.AppendSeq(list, t.TypeArgs().Types())
	case *types.Map:
		list = append(list, t.Key(), t.Elem())
	case interface{ Elem() types.Type }:
		list = append(list, t.Elem())
	case *types.Signature:
		list = append(list, t.Params(), t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			list = append(list, v.Type())
		}
	case *types.Struct:
		for field := range t.Fields() {
			if field.Exported() {
				list = append(list, field.Type())
			}
		}
	case *types.Interface:
		for method := range t.Methods() {
			list = append(list, method.Type())
		}
	}
	return list
}

// name returns the package's path and the name of an object, with the type of a method before it.
func name(object types.Object) string {
	title := object.Name()
	if f, is := object.(*types.Func); is && f.Signature().Recv() != nil {
		receiver := f.Origin().Signature().Recv().Type()
		if pointer, is := receiver.(*types.Pointer); is {
			receiver = pointer.Elem()
		}
		if typed, is := receiver.(*types.Named); is {
			title = typed.Obj().Name() + "." + title
		}
	}
	return object.Pkg().Path() + "." + title
}

func signature(method *types.Func) string {
	s := method.Signature()
	return method.Name() + " " + types.TypeString(types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic()), nil)
}

// unnamed is a tuple without the names of its variables.
func unnamed(tuple *types.Tuple) *types.Tuple {
	var variables []*types.Var
	for v := range tuple.Variables() {
		variables = append(variables, types.NewVar(token.NoPos, nil, "", v.Type()))
	}
	return types.NewTuple(variables...)
}

// position is where an object is declared, relative to the repository where the compiler's record says so.
func position(p *packages.Package, at token.Pos) string {
	where := p.Fset.Position(at)
	folder, _ := os.Getwd()
	return fmt.Sprintf("%s:%d", strings.TrimPrefix(where.Filename, folder+"/"), where.Line)
}
