{{/* Recording rules and alerts, as YAML: monitoring/rules.yaml with this release's thresholds. */}}
{{- define "gpushm.rules" -}}
{{- $rule := .Values.metrics.prometheusRule -}}
{{- $text := .Files.Get "monitoring/rules.yaml" -}}
{{- range $name, $value := $rule.thresholds -}}
{{- $plain := kindIs "string" $value | ternary (include "gpushm.bytes" (toString $value)) (toString $value) -}}
{{- $text = replace (printf "@%s@" $name) $plain $text -}}
{{- end -}}
{{- $parsed := fromYaml $text -}}
{{- with $parsed.Error }}{{ fail (printf "monitoring/rules.yaml: %s" .) }}{{ end -}}
{{- $groups := list -}}
{{- range $group := $parsed.groups -}}
{{- $rules := list -}}
{{- range $group.rules -}}
{{- if not (has .alert $rule.disabled) -}}
{{- if .alert -}}
{{- $url := printf "%s#%s" $rule.runbookUrl (lower .alert) -}}
{{- $_ := set .annotations "runbook_url" $url -}}
{{- $_ := set .labels "severity" (get $rule.severities .alert | default .labels.severity) -}}
{{- end -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" $group.name "rules" $rules) -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end }}

{{/* (dict "root" $ "component" "plugin") -> the names of targets. They are the same for every release,
so that rules and dashboards do not depend on it. */}}
{{- define "gpushm.relabelings" -}}
- {action: replace, targetLabel: job, replacement: gpushm-{{ .component }}}
- {action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- if eq .component "plugin" }}
# A node's series continue when its plugin's pod is replaced. The labels pod and container are those
# of the pod that a metric describes.
- {action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
- {action: labeldrop, regex: namespace|pod|container|service|endpoint}
{{- end }}
{{- end }}

{{/* (dict "root" $ "port" <port>) -> annotations by which a Prometheus without the
Prometheus Operator finds it. */}}
{{- define "gpushm.scrapeAnnotations" -}}
{{- if and .port .root.Values.metrics.scrapeAnnotations -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- end }}
