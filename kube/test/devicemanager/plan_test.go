package devicemanager

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// plan describes a pod and its life.
type plan struct {
	name string
	// init are the init containers, in order; main are the others.
	init []step
	main []step
	// life is how long the containers of main run.
	life time.Duration
	// restarts is how often the first container of main restarts in that time.
	restarts int
	end      ending
	// claims are the names of the ResourceClaims of the first container of main.
	claims []string
	// linger is how long the processes outlive a pod that is deleted by force.
	linger time.Duration
}

// step is a container.
type step struct {
	name string
	gpus int
	nics int
	// resource is that of the gpus; empty for gpuResource.
	resource v1.ResourceName
	// life is how long a plain init container runs.
	life    time.Duration
	sidecar bool
}

// ending is how a pod ends.
type ending string

// The endings.
const (
	finish      ending = "finish"       // it succeeds and its object stays
	deleted     ending = "delete"       // it is deleted gracefully
	forceDelete ending = "force delete" // its object is deleted at once, while its processes still run
)

// single is a pod of one container.
func single(name string, gpus int, life time.Duration, end ending) plan {
	return plan{name: name, main: []step{{name: "main", gpus: gpus}}, life: life, end: end}
}

// pod returns the object, with a new UID.
func (p *plan) pod() *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.name, UID: types.UID(uuid.NewUUID())},
		Spec:       v1.PodSpec{NodeName: nodeName, RestartPolicy: v1.RestartPolicyNever},
		Status:     v1.PodStatus{Phase: v1.PodPending},
	}
	for _, s := range p.init {
		c := s.container()
		if s.sidecar {
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for _, s := range p.main {
		pod.Spec.Containers = append(pod.Spec.Containers, s.container())
	}
	for _, name := range p.claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		first := &pod.Spec.Containers[0].Resources
		first.Claims = append(first.Claims, v1.ResourceClaim{Name: name})
	}
	return pod
}

func (s *step) container() v1.Container {
	limits := v1.ResourceList{}
	if s.gpus > 0 {
		limits[cmp.Or(s.resource, gpuResource)] = *resource.NewQuantity(int64(s.gpus), resource.DecimalSI)
	}
	if s.nics > 0 {
		limits[nicResource] = *resource.NewQuantity(int64(s.nics), resource.DecimalSI)
	}
	return v1.Container{Name: s.name, Image: "none", Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}
}

// counted returns what the scheduler counts for the pod.
func (p *plan) counted() int {
	sidecars, most := 0, 0
	for _, s := range p.init {
		if s.sidecar {
			sidecars += s.gpus
			most = max(most, sidecars)
		} else {
			most = max(most, sidecars+s.gpus)
		}
	}
	sum := sidecars
	for _, s := range p.main {
		sum += s.gpus
	}
	return max(most, sum)
}

// randomPlan returns a random pod: most have one container, live for 10 to 120 ms and are jobs.
func randomPlan(random *rand.Rand, i int) plan {
	life := time.Duration(10+random.IntN(110)) * time.Millisecond
	gpus := 1
	if random.IntN(4) == 0 {
		gpus = 1 + random.IntN(3)
	}
	p := single(fmt.Sprintf("pod-%d", i), gpus, life, finish)
	switch random.IntN(10) {
	case 0:
		p.init = []step{{name: "init", gpus: 1 + random.IntN(gpus), life: 20 * time.Millisecond}}
	case 1:
		p.init = []step{{name: "sidecar", gpus: 1, sidecar: true}}
	case 2:
		p.init = []step{{name: "first", gpus: 1, life: 10 * time.Millisecond},
			{name: "sidecar", gpus: 1, sidecar: true}, {name: "second", gpus: 1, life: 10 * time.Millisecond}}
	case 3:
		p.main = append(p.main, step{name: "other", gpus: 1})
	case 4:
		p.restarts = 1 + random.IntN(2)
	}
	switch random.IntN(10) {
	case 0, 1, 2:
		p.end = deleted
	case 3:
		p.end, p.linger = forceDelete, time.Duration(random.IntN(200))*time.Millisecond
	}
	return p
}
