{{/* The labels of an object, on one line: include "berth.labels" "berth-agent". */}}
{{- define "berth.labels" -}}
{app.kubernetes.io/name: {{ . }}, app.kubernetes.io/part-of: berth}
{{- end -}}

{{/* The reference of an image: include "berth.image" (dict "root" $ "image" .Values.agent.image). */}}
{{- define "berth.image" -}}
{{- $at := printf "%s/%s" .root.Values.image.registry .image.name -}}
{{- if .image.digest -}}
{{ $at }}@{{ .image.digest }}
{{- else -}}
{{ $at }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The labels and annotations of a component's pods: include "berth.podMetadata" (dict "name" "berth-agent" "pod" .Values.agent). */}}
{{- define "berth.podMetadata" -}}
labels:
  app.kubernetes.io/name: {{ .name }}
{{- with omit (.pod.labels | default dict) "app.kubernetes.io/name" }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The fields of a pod that are the same for each component: include "berth.pod" (dict "root" $ "pod" .Values.agent). */}}
{{- define "berth.pod" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- {name: {{ . }}}
{{- end }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector:
  {{- toYaml (merge (dict "kubernetes.io/os" "linux") (.pod.nodeSelector | default dict)) | nindent 2 }}
{{- $affinity := .pod.affinity | default dict }}
{{- if .switched }}
{{- $affinity = include "berth.switched" $affinity | fromYaml }}
{{- end }}
{{- /* Several pods of a component run apart from one another, where they can; those of another revision do not count. */}}
{{- if gt (int .pod.replicas) 1 }}
{{- $own := dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" .name)) "matchLabelKeys" (list "pod-template-hash") }}
{{- $term := dict "weight" 100 "podAffinityTerm" (merge (dict "topologyKey" "kubernetes.io/hostname") $own) }}
{{- $affinity = merge (dict) $affinity (dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $term))) }}
topologySpreadConstraints:
- {{ merge (dict "maxSkew" 1 "topologyKey" "topology.kubernetes.io/zone" "whenUnsatisfiable" "ScheduleAnyway") $own | toYaml | nindent 2 | trim }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The PodDisruptionBudget of a component with several pods: include "berth.disruptionBudget" (dict "root" $ "name" "berth-operator" "pod" .Values.operator). */}}
{{- define "berth.disruptionBudget" -}}
{{- if gt (int .pod.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{ include "berth.labels" .name }}
spec:
  maxUnavailable: 1
  # A pod that is not ready keeps no node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}
{{- end -}}

{{/* An affinity that leaves out the nodes on which NVIDIA's operands are switched off or paused: include "berth.switched" .Values.agent.affinity.
device-plugin=false keeps NVIDIA's device plugin off a node, which is how Berth takes its place there. Each term of the affinity gets the
conditions, since one of them has to hold. */}}
{{- define "berth.switched" -}}
{{- $on := list
  (dict "key" "nvidia.com/gpu.deploy.operands" "operator" "NotIn" "values" (list "false"))
  (dict "key" "nvidia.com/gpu.deploy.device-plugin" "operator" "NotIn" "values" (list "paused-for-driver-upgrade" "paused-for-mig-change")) -}}
{{- $affinity := deepCopy (. | default dict) -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := list -}}
{{- range (get $required "nodeSelectorTerms" | default (list dict)) -}}
{{- $terms = append $terms (set . "matchExpressions" (concat (get . "matchExpressions" | default list) $on)) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- toYaml $affinity -}}
{{- end -}}

{{/* The tolerations of the gate's taint, under its key and under the default one: a change of gate.taintKey leaves no pod behind. */}}
{{- define "berth.gateTolerations" -}}
{{- range list "berth.dev/not-validated" .Values.gate.taintKey | uniq }}
- {key: {{ . }}, operator: Exists, effect: NoSchedule}
{{- end }}
{{- end -}}

{{/* The resources of a container: include "berth.resources" .Values.agent. */}}
{{- define "berth.resources" -}}
{{- with .resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The address and port of /metrics: include "berth.metricsListen" .Values.agent. */}}
{{- define "berth.metricsListen" -}}
{{- $address := .metricsAddress | default "" -}}
{{- if contains ":" $address }}{{ $address = printf "[%s]" $address }}{{ end -}}
{{ $address }}:{{ .metricsPort }}
{{- end -}}

{{/* Who may read /metrics, none with the values of a release from before there was a choice: include "berth.metricsAuth" $. */}}
{{- define "berth.metricsAuth" -}}
{{- dig "auth" "none" (.Values.metrics | default dict) -}}
{{- end -}}
