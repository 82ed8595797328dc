package scheduler

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGangDevicesTwin: what Kubernetes' own scheduler places one by one, a gang gets: GPUs of a device plugin, of claims and of an extended
// resource that a DeviceClass serves, shared claims, and devices of another driver, on small clusters with other pods.
func TestGangDevicesTwin(t *testing.T) {
	count, seed := 10, uint64(time.Now().UnixNano())
	if os.Getenv("BERTH_SOAK") == "1" {
		count = 400
	}
	if text := os.Getenv("BERTH_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("[walks] %d", count)
	for i := range uint64(count) {
		t.Run(fmt.Sprint(seed+i), func(t *testing.T) {
			t.Parallel()
			c := drawDeviceCase(rand.New(rand.NewPCG(seed+i, 0)))
			stock, reports := deviceLab(c.nodes, c.mapped)
			stock.runDevices(t, profileOfKubernetes, reports)
			var wants []string
			for _, pod := range c.pods {
				node := stock.placeOne(t, pod.make(t, stock, false))
				if node == "" && pod.gang {
					return // The members do not fit one by one.
				}
				wants = append(wants, node)
			}
			l, reports := deviceLab(c.nodes, c.mapped)
			l.runDevices(t, profileWithPodGroups, reports)
			var gang []*corev1.Pod
			for i, pod := range c.pods {
				switch made := pod.make(t, l, true); {
				case pod.gang:
					gang = append(gang, made)
				case wants[i] != "":
					made.Spec.NodeSelector = map[string]string{corev1.LabelHostname: wants[i]}
					if got := l.placeOne(t, made); got != wants[i] {
						t.Fatalf("pod %s is on %q; want %s: %s\n%s", made.Name, got, wants[i], l.why(t, made.Name), c)
					}
				}
			}
			for _, pod := range gang {
				l.add(t, pod)
			}
			end := time.Now().Add(30 * time.Second)
			for len(nodesOf(l.placed(t), "train")) < len(gang) {
				if time.Now().After(end) {
					t.Fatalf("of the gang %v are on nodes; one by one its members are on %v: %s\n%s", l.placed(t), wants, l.sentences(t, "train"), c)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// placeOne creates a pod and waits until it has a node, which it returns, or a reason why it has none.
func (l *lab) placeOne(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	l.add(t, pod)
	node := ""
	await(t, 30*time.Second, func() string {
		if node = l.placed(t)[pod.Name]; node != "" || len(l.why(t, pod.Name)) > len(": ") {
			return ""
		}
		return "pod " + pod.Name + " has neither a node nor a reason"
	})
	return node
}

// deviceCase is a cluster with pods, of which the last ones are the members of a gang.
type deviceCase struct {
	nodes  []deviceNode
	mapped bool
	pods   []devicePod
}

// devicePod is one that needs devices.
type devicePod struct {
	name   string
	gang   bool
	least  int
	gpus   int
	claims map[string]int64
	// shared is a claim that others use too, for devices of a class.
	shared      string
	sharedClass string
}

func (c *deviceCase) String() string { return fmt.Sprintf("%+v", *c) }

func drawDeviceCase(r *rand.Rand) *deviceCase {
	c := &deviceCase{mapped: r.IntN(2) == 0}
	for range 2 + r.IntN(2) {
		c.nodes = append(c.nodes, deviceNode{dra: r.IntN(2) == 0, nics: r.IntN(3)})
	}
	others, members := r.IntN(4), 2+r.IntN(3)
	shared := []string{"", "", class, nicDriver}[r.IntN(4)]
	kinds := []devicePod{c.drawPod(r), c.drawPod(r)}
	for i := range others + members {
		pod := kinds[r.IntN(2)]
		pod.name, pod.gang, pod.least = fmt.Sprintf("other-%d", i), i >= others, members
		if pod.gang {
			pod.name = fmt.Sprintf("train-%d", i-others)
			if shared != "" && r.IntN(4) > 0 {
				pod.shared, pod.sharedClass = "shared", shared
			}
		} else {
			pod = c.drawPod(r)
			pod.name = fmt.Sprintf("other-%d", i)
		}
		c.pods = append(c.pods, pod)
	}
	return c
}

func (c *deviceCase) drawPod(r *rand.Rand) devicePod {
	pod := devicePod{gpus: r.IntN(3), claims: map[string]int64{}}
	if r.IntN(2) == 0 {
		pod.claims[nicDriver] = 1
	}
	if r.IntN(3) == 0 {
		pod.gpus, pod.claims[class] = 0, int64(1+r.IntN(2))
	}
	return pod
}

// make creates the claims of the pod, and returns it, as a member of a gang or alone.
func (p *devicePod) make(t *testing.T, l *lab, labelled bool) *corev1.Pod {
	pod := makePod(p.name, p.gpus, 1)
	if p.gang {
		pod = member("train", int(p.name[len(p.name)-1]-'0'), p.least, p.gpus)
	}
	if !labelled {
		pod.Labels = nil
	}
	for _, class := range []string{class, nicDriver} {
		if count := p.claims[class]; count > 0 {
			name := p.name + "-" + class
			l.claimOf(t, name, class, count)
			uses(pod, name)
		}
	}
	if p.shared != "" {
		if _, err := l.client.ResourceV1().ResourceClaims("ml").Get(t.Context(), p.shared, metav1.GetOptions{}); err != nil {
			l.claimOf(t, p.shared, p.sharedClass, 1)
		}
		uses(pod, p.shared)
	}
	return pod
}
