{{/* The annotations of the pod. gpushm's webhook reads them, and denies a pod with a mistake in one. */}}
{{- define "shared-weights.annotations" -}}
{{- range $name, $buffer := .Values.buffers }}
{{- $keys := dict }}
{{- range $key, $value := $buffer }}
{{- if ne (toJson $value) "null" }}{{ $keys = set $keys $key $value }}{{ end }}
{{- end }}
buffers.gpushm.io/{{ $name }}: {{ toJson $keys | quote }}
{{- end }}
{{- range $name, $server := .Values.servers }}
{{- with $server.private }}
private.gpushm.io/{{ $name }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.loader.private }}
private.gpushm.io/loader: {{ . | quote }}
{{- end }}
{{- if gt (int .Values.gpus) 1 }}
gpushm.io/gpus: {{ .Values.gpus | quote }}
{{- end }}
{{- if .Values.mps }}
gpushm.io/mps: "true"
{{- end }}
{{- end }}

{{- define "shared-weights.image" -}}
{{ required "image.repository is empty: set it to the image in your registry, such as registry.example/team/gpushm/demo" .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
