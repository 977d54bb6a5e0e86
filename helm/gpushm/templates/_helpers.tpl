{{/* The stem of all names. */}}
{{- define "gpushm.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $long := printf "%s-%s" .Release.Name $name -}}
{{- $full := ternary .Release.Name $long (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* (dict "root" $ "component" "plugin") -> labels that never change: selectors. */}}
{{- define "gpushm.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The same -> all labels. */}}
{{- define "gpushm.labels" -}}
{{ include "gpushm.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpushm
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The same -> a pod's labels. No version: what runs is replaced only where more than that changed.
*/}}
{{- define "gpushm.podLabels" -}}
{{ include "gpushm.selector" . }}
app.kubernetes.io/part-of: gpushm
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The same -> an object's metadata but for its name. */}}
{{- define "gpushm.metadata" -}}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gpushm.labels" . | nindent 2 }}
{{- end }}

{{/* (dict "root" $ "image" .Values.plugin.image) */}}
{{- define "gpushm.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end }}
{{- end }}

{{/* (dict "root" $ "name" <the configured class>) -> the class's line, or none. */}}
{{- define "gpushm.priority" -}}
{{- with ternary (include "gpushm.fullname" .root) .name .root.Values.priorityClass.create -}}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* What Pod Security "restricted" asks of a container. */}}
{{- define "gpushm.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A quantity such as 1Gi -> bytes; -1: not one of whole Ki, Mi, Gi or Ti. */}}
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

{{/* Of the plugin's configuration what it reads at its start only. */}}
{{- define "gpushm.pluginRestart" -}}
host-root: /host
state-folder: {{ .Values.stateFolder }}
{{- $simulated := printf "%s/driver-sim" .Values.stateFolder }}
driver-root: {{ ternary $simulated .Values.driver.root .Values.driver.simulated }}
unit: {{ .Values.unit }}
coexist: {{ .Values.coexist }}
{{- with pick .Values.plugin.config "status" "strategy" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The Secret with the injector's certificate. */}}
{{- define "gpushm.certificateSecret" -}}
{{- if eq .Values.certificates.mode "secret" -}}
{{ .Values.certificates.secret.name }}
{{- else -}}
{{ include "gpushm.fullname" . }}-injector-tls
{{- end }}
{{- end }}
