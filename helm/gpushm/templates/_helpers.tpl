{{/* The first part of all names. */}}
{{- define "gpushm.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $long := printf "%s-%s" .Release.Name $name -}}
{{- $full := ternary .Release.Name $long (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* (dict "root" $ "component" "plugin") -> labels that never change: selectors. */}}
{{- define "gpushm.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The same -> all labels, each once, as kustomize refuses a repeated key. The chart's own take
precedence over "labels" of the dict, and these over the common ones. */}}
{{- define "gpushm.labels" -}}
{{- $own := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/part-of" "gpushm"
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- toYaml (merge (include "gpushm.selector" . | fromYaml) $own (.labels | default dict) .root.Values.commonLabels) }}
{{- end }}

{{/* The same -> a pod's labels. They have no version, so that pods are not replaced when only the
version changes. */}}
{{- define "gpushm.podLabels" -}}
{{- toYaml (merge (include "gpushm.selector" . | fromYaml) (dict "app.kubernetes.io/part-of" "gpushm")
  (get .root.Values .component).podLabels .root.Values.commonLabels) }}
{{- end }}

{{/* The same -> an object's metadata without its name and namespace. "labels" and "annotations" of the
dict are added; these annotations take precedence over the common ones. */}}
{{- define "gpushm.clusterMetadata" -}}
labels:
  {{- include "gpushm.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The same, with the release's namespace. */}}
{{- define "gpushm.metadata" -}}
namespace: {{ .root.Release.Namespace }}
{{ include "gpushm.clusterMetadata" . }}
{{- end }}

{{/* (dict "root" $ "image" .Values.plugin.image) -> the repository to pull it from. */}}
{{- define "gpushm.repository" -}}
{{- if not (regexMatch "^([^/]*[.:][^/]*|localhost)/" .image.repository) -}}
{{ .root.Values.global.imageRegistry | default "registry.invalid" | trimSuffix "/" }}/
{{- end -}}
{{ .image.repository }}
{{- end }}

{{/* The same -> the image. */}}
{{- define "gpushm.image" -}}
{{- include "gpushm.repository" . -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ default .root.Chart.AppVersion .image.tag }}
{{- end }}
{{- end }}

{{/* (dict "root" $ "name" <the configured class>) -> the class's line, or nothing. */}}
{{- define "gpushm.priority" -}}
{{- with ternary (include "gpushm.fullname" .root) .name .root.Values.priorityClass.create -}}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* What Pod Security "restricted" requires of a container. */}}
{{- define "gpushm.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A quantity such as 1Gi -> bytes; -1 if it is not a whole number of Ki, Mi, Gi or Ti. */}}
{{- define "gpushm.bytes" -}}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if regexMatch "^[0-9]{1,6}(Ki|Mi|Gi|Ti)$" . -}}
{{ mul (regexFind "^[0-9]+" . | int64) (get $factors (regexFind "[KMGT]i$" .) | int64) }}
{{- else -}}
-1
{{- end }}
{{- end }}

{{/* CPUs such as 0.5 or 500m -> thousandths. */}}
{{- define "gpushm.millis" -}}
{{- $text := toString . -}}
{{- ternary (trimSuffix "m" $text | int64) (mulf 1000 (float64 $text) | int64) (hasSuffix "m" $text) -}}
{{- end }}

{{/* The plugin's configuration. It reads it at its start, so the DaemonSet has its checksum. */}}
{{- define "gpushm.pluginConfig" -}}
host-root: /host
state-folder: {{ .Values.stateFolder }}
{{- $simulated := printf "%s/driver-sim" .Values.stateFolder }}
driver-root: {{ ternary $simulated .Values.driver.root .Values.driver.simulated }}
unit: {{ .Values.unit }}
coexist: {{ .Values.coexist }}
{{- if eq .Values.plugin.allocation "dra" }}
allocation: dra
plugins-folder: {{ .Values.kubeletRootDir }}/plugins
{{- end }}
{{- with .Values.plugin.featuresFolder }}
features-folder: {{ . }}
{{- end }}
{{- $address := empty .Values.metrics.port | ternary "" (printf ":%v" .Values.metrics.port) }}
metrics: {address: {{ quote $address }}, sample-ms: {{ .Values.metrics.sampleMs }}, host-pids: {{ .Values.metrics.hostPids }}}
probes: {address: ":{{ .Values.plugin.probePort }}"}
{{- with .Values.plugin.config }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* How pods get their GPU memory if neither they nor their namespace say it. */}}
{{- define "gpushm.allocation" -}}
{{ default .Values.plugin.allocation .Values.injector.allocation }}
{{- end }}

{{/* Not empty if the injector makes ResourceClaimTemplates. */}}
{{- define "gpushm.claims" -}}
{{- if or .Values.injector.claims (eq (include "gpushm.allocation" .) "dra") (eq .Values.plugin.allocation "dra") -}}
true
{{- end }}
{{- end }}

{{/* (dict "root" $ "allocation" "dra") -> selects the namespaces whose pods are injected: those that
say this allocation in their label, or none if it is empty. */}}
{{- define "gpushm.namespacesThatSay" -}}
{{- $selector := include "gpushm.namespaceSelector" .root | fromYaml }}
{{- $label := dict "key" "gpushm.io/allocation" "operator" "In" "values" (list .allocation) }}
{{- if not .allocation }}
{{- $label = dict "key" "gpushm.io/allocation" "operator" "NotIn" "values" (list "device-plugin" "dra") }}
{{- end }}
{{- $_ := set $selector "matchExpressions" (append $selector.matchExpressions $label) }}
{{- toYaml $selector }}
{{- end }}

{{/* Selects the namespaces whose pods are injected. */}}
{{- define "gpushm.namespaceSelector" -}}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ prepend .Values.injector.excludeNamespaces .Release.Namespace | uniq | toJson }}
{{- with .Values.injector.namespaceSelector.matchExpressions }}
{{ toYaml . }}
{{- end }}
{{- with .Values.injector.namespaceSelector.matchLabels }}
matchLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where the injector's certificate comes from. `auto` never changes this for an existing
installation: the webhooks show who signs for them, even while a Secret is missing during renewal. */}}
{{- define "gpushm.certificates" -}}
{{- $name := printf "%s-injector" (include "gpushm.fullname" .) -}}
{{- if ne .Values.certificates.mode "auto" -}}
{{ .Values.certificates.mode }}
{{- else -}}
{{- $webhooks := lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" $name -}}
{{- $injected := dig "metadata" "annotations" "cert-manager.io/inject-ca-from" "" $webhooks -}}
{{- $offered := .Capabilities.APIVersions.Has "cert-manager.io/v1" -}}
{{- ternary "certManager" "helm" (ternary (not (empty $injected)) $offered (not (empty $webhooks))) -}}
{{- end -}}
{{- end }}

{{/* The Secret with the injector's certificate. */}}
{{- define "gpushm.certificateSecret" -}}
{{- if eq .Values.certificates.mode "secret" -}}
{{ .Values.certificates.secret.name }}
{{- else -}}
{{ include "gpushm.fullname" . }}-injector-tls
{{- end }}
{{- end }}
