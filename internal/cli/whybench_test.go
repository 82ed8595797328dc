package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// claimedNode is a node of 8 GPUs in two islands; two pods have 3 GPUs of each, so that one of each island is free.
const claimedNode = `apiVersion: v1
kind: Node
metadata: {name: NODE, labels: {kubernetes.io/hostname: NODE, nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}}
status:
  allocatable: {cpu: "64", memory: "256Gi", pods: "110"}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: NODE-gpus, resourceVersion: "1"}
spec:
  driver: gpu.berth.dev
  nodeName: NODE
  pool: {name: NODE, generation: 1, resourceSliceCount: 1}
  devices: [%s]
---
%s
---
%s`

const claimingPod = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NODE-%[1]d, namespace: ml, uid: uid-claim-NODE-%[1]d}
spec:
  devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.berth.dev, allocationMode: ExactCount, count: 3}}]}
status:
  allocation: {devices: {results: [%[2]s]}, nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [NODE]}]}]}}
  reservedFor: [{resource: pods, name: NODE-%[1]d, uid: uid-NODE-%[1]d}]
---
apiVersion: v1
kind: Pod
metadata: {name: NODE-%[1]d, namespace: ml, uid: uid-NODE-%[1]d, creationTimestamp: "2026-11-20T10:00:00Z"}
spec:
  nodeName: NODE
  resourceClaims: [{name: gpus, resourceClaimName: NODE-%[1]d}]
  containers:
  - {name: main, image: example.com/main, resources: {requests: {cpu: "1"}, claims: [{name: gpus}]}}
status:
  phase: Running`

// claimedCluster is the situation of testdata/why/dra-linked.yaml on many nodes.
func claimedCluster(b *testing.B, nodes int) situation {
	b.Helper()
	s := readSituation(b, "testdata/why/dra-linked.yaml")
	kept := s.objects[:0]
	for _, object := range s.objects {
		if name := object.GetName(); name == "train" || object.GetKind() == "DeviceClass" {
			kept = append(kept, object)
		}
	}
	s.objects = kept
	var devices, pods []string
	for i := range 8 {
		devices = append(devices, fmt.Sprintf(`{name: gpu-%[1]d, attributes: {uuid: {string: GPU-NODE-%[1]d}, productName: {string: NVIDIA A100-SXM4-40GB},
    type: {string: gpu}, nvlinkIsland: {int: %[2]d}}, capacity: {memory: {value: "40Gi"}}}`, i, i/4))
	}
	for i := range 2 {
		var results []string
		for k := range 3 {
			results = append(results, fmt.Sprintf("{request: gpus, driver: gpu.berth.dev, pool: NODE, device: gpu-%d}", 4*i+k))
		}
		pods = append(pods, fmt.Sprintf(claimingPod, i, strings.Join(results, ", ")))
	}
	text := fmt.Sprintf(claimedNode, strings.Join(devices, ", "), pods[0], pods[1])
	for i := range nodes {
		for document := range strings.SplitSeq(strings.ReplaceAll(text, "NODE", fmt.Sprintf("node-%03d", i)), "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
				b.Fatal(err)
			}
			s.objects = append(s.objects, object)
		}
	}
	return s
}

// BenchmarkWhyClaims answers for a pod whose claim needs two linked GPUs, on 500 nodes without such a pair, from the objects that the API
// server has sent.
func BenchmarkWhyClaims(b *testing.B) {
	s := claimedCluster(b, 500)
	q := whyQuestion{namespace: "ml", name: "train"}
	read := whyReader{client: s.client(), now: time.Date(2026, 11, 24, 6, 0, 0, 0, time.UTC)}
	subject, err := read.subject(b.Context(), &q)
	if err != nil {
		b.Fatal(err)
	}
	objects, err := read.objects(b.Context(), subject)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		answer, err := answerWhy(b.Context(), objects, subject, &q)
		if err != nil {
			b.Fatal(err)
		}
		if answer.Nodes != 500 || len(answer.Changes) == 0 {
			b.Fatalf("the answer is %+v", answer)
		}
	}
}
