package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/drafleet"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
)

const (
	// maxExpressions bounds the compiled expressions that are kept.
	maxExpressions = 1024
	// maxSteps bounds a prediction for a node. What needs more is scored by counts.
	maxSteps = firstfit.DefaultSteps
	// partStep is what a node loses for each whole GPU of which a pod takes a part, and baseStep what it begins with.
	partStep, baseStep = 10, 60
)

// Scorer scores nodes for claims.
type Scorer struct {
	manager   fwk.SharedDRAManager
	model     *model.Model
	converter *drafleet.Converter
	slices    *drafleet.Slices
	version   string
	nodes     map[string]*known
}

// known is what was computed for a node: its devices, and the score for claims (key) while these are held.
type known struct {
	node *drafleet.Node
	of   *corev1.Node
	key  string
	fits bool
	gpus picked
}

// picked are the GPUs that claims would get.
type picked struct {
	// whole are GPUs that are allocated whole, parts those of which a part is; free are those of which nothing is held.
	whole []string
	parts []string
	free  []string
}

// New returns a scorer.
func New(manager fwk.SharedDRAManager, m *model.Model) *Scorer {
	return &Scorer{manager: manager, model: m, converter: drafleet.New(maxExpressions), nodes: map[string]*known{}}
}

// Manager returns the devices and claims of the scheduler.
func (s *Scorer) Manager() fwk.SharedDRAManager { return s.manager }

// Of returns the claims of a pod that are not allocated yet, in the order of the pod; none where one of them does not exist yet.
func (s *Scorer) Of(pod *corev1.Pod) []*resourceapi.ResourceClaim {
	var list []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil
		}
		if name == nil {
			continue // The pod does not need this claim.
		}
		claim, err := s.manager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil
		}
		if claim.Status.Allocation == nil {
			list = append(list, claim)
		}
	}
	return list
}

// Shape returns what claims of the simple form request, as a shape of whole GPUs, with the pod's CPU and memory.
func Shape(base fleet.Shape, claims []*resourceapi.ResourceClaim) fleet.Shape {
	count := int64(0)
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			if exactly := claim.Spec.Devices.Requests[i].Exactly; exactly != nil {
				count += max(1, exactly.Count)
			}
		}
	}
	base.Resource, base.GPUs = fleetview.ResourceOfClaims, int32(min(max(1, count), fleet.MaxGPUs))
	return base
}

// Scores appends the score of each node for the claims of a pod, by the index of the model. Where nothing can be predicted, nodes with
// fewer whole GPUs are better.
func (s *Scorer) Scores(ctx context.Context, policy string, base fleet.Shape, claims []*resourceapi.ResourceClaim, nodes []fwk.NodeInfo, scores []fleet.Score) ([]fleet.Score, error) {
	if err := s.refresh(); err != nil {
		return nil, err
	}
	held, err := s.manager.ResourceClaims().ListAllAllocatedDevices()
	if err != nil {
		return nil, fmt.Errorf("list allocated devices: %w", err)
	}
	taken := map[firstfit.ID]bool{}
	for id := range held {
		taken[firstfit.ID{Driver: id.Driver.String(), Pool: id.Pool.String(), Device: id.Device.String()}] = true
	}
	key, err := keyOf(claims)
	if err != nil {
		return nil, err
	}
	for range s.model.Len() {
		scores = append(scores, fleet.NoFit)
	}
	for _, info := range nodes {
		i, ok := s.model.Index(info.Node().Name)
		if !ok {
			continue
		}
		k, err := s.predict(ctx, info.Node(), claims, key, taken)
		if err != nil {
			return nil, err
		}
		if scores[i], err = s.score(policy, i, base, k); err != nil {
			return nil, err
		}
	}
	return scores, nil
}

// refresh reads the slices when they are other ones than before.
func (s *Scorer) refresh() error {
	list, err := s.manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	var version strings.Builder
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	for _, slice := range list {
		fmt.Fprintf(&version, "%s %s %d\n", slice.Name, slice.ResourceVersion, taints(slice))
	}
	if s.slices == nil || version.String() != s.version {
		s.slices, s.version = drafleet.NewSlices(list), version.String()
		s.converter.Keep(list)
		clear(s.nodes)
	}
	return nil
}

// taints counts the taints of a slice, which rules change without changing its version.
func taints(slice *resourceapi.ResourceSlice) int {
	count := 0
	for i := range slice.Spec.Devices {
		count += len(slice.Spec.Devices[i].Taints)
	}
	return count
}

// keyOf names what claims request.
func keyOf(claims []*resourceapi.ResourceClaim) (string, error) {
	var text strings.Builder
	for _, claim := range claims {
		spec, err := json.Marshal(claim.Spec)
		if err != nil {
			return "", fmt.Errorf("encode the spec of ResourceClaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		text.Write(spec)
	}
	return text.String(), nil
}

// predict returns which GPUs the claims would get on a node.
func (s *Scorer) predict(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, key string, taken map[firstfit.ID]bool) (*known, error) {
	k := s.nodes[node.Name]
	if k == nil || k.of != node {
		made, err := s.converter.Node(node, s.slices)
		if err != nil {
			return &known{}, nil // A node selector that cannot be parsed: nothing is allocated from it.
		}
		k = &known{node: made, of: node}
		s.nodes[node.Name] = k
	}
	held := k.node.Held(func(id firstfit.ID) bool { return taken[id] })
	text := []byte(key)
	for _, h := range held {
		text = append(text, "01"[b2i(h)])
	}
	if k.key == string(text) {
		return k, nil
	}
	k.key, k.fits, k.gpus = string(text), false, picked{free: k.node.Rest(held, nil).Whole}
	values, err := k.node.Claims(ctx, claims, s.class)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, firstfit.ErrNotSimple), errors.Is(err, drafleet.ErrNoClass):
		return k, nil
	case err != nil:
		return nil, err
	}
	result, err := k.node.Predict(values, held, maxSteps)
	if err == nil && result.Outcome == firstfit.Fits {
		k.fits = true
		k.take(held, result.Picks)
	}
	return k, nil
}

// take notes the GPUs that are picked.
func (k *known) take(held []bool, picks []firstfit.Pick) {
	rest := k.node.Rest(held, picks).Whole
	for _, pick := range picks {
		uuid, whole := k.node.GPU(pick.Device)
		switch {
		case uuid == "":
		case whole:
			k.gpus.whole = append(k.gpus.whole, uuid)
		case slices.Contains(k.gpus.free, uuid) && !slices.Contains(rest, uuid) && !slices.Contains(k.gpus.parts, uuid):
			k.gpus.parts = append(k.gpus.parts, uuid)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// class returns a DeviceClass, or nil.
func (s *Scorer) class(name string) *resourceapi.DeviceClass {
	class, err := s.manager.DeviceClasses().Get(name)
	if err != nil {
		return nil
	}
	return class
}

// score scores the GPUs that were predicted.
func (s *Scorer) score(policy string, i int, base fleet.Shape, k *known) (fleet.Score, error) {
	view := s.model.View(i)
	entries := view.Entries(fleetview.ResourceOfClaims)
	if !k.fits || len(entries) == 0 {
		// Fewer whole GPUs are better, and any is better than a node that does not fit.
		return fleet.Score(max(0, fleet.MaxGPUs-len(k.gpus.free))), nil
	}
	n := view.Node
	n.GPUs = slices.Clone(n.GPUs)
	for _, at := range entries {
		n.GPUs[at].Free = 0
	}
	for _, uuid := range k.gpus.free {
		if at, ok := entries[uuid]; ok {
			n.GPUs[at].Free = fleet.Whole
		}
	}
	var gpus fleet.GPUSet
	for _, uuid := range k.gpus.whole {
		if at, ok := entries[uuid]; ok {
			gpus = gpus.With(at)
		}
	}
	if gpus == 0 {
		return fleet.PartScore(int32(max(0, baseStep-partStep*len(k.gpus.parts)))), nil
	}
	base.Resource, base.GPUs = fleetview.ResourceOfClaims, int32(gpus.Len())
	return s.model.Judge(policy, &n, base, gpus)
}
