{{/* The job of the release's servers. That of its fronts has eta-front in its place, unless frontJob says otherwise. */}}
{{- define "eta-server.job" -}}
{{- printf "eta-server/%s/%s" .Release.Namespace (include "eta-server.fullname" .) -}}
{{- end -}}

{{/* The rules of one file of deploy/prometheus, for this release: each series is asked for with its job, so that two
releases never see, record or page for one another's; and severities have the names that values give them. */}}
{{- define "eta-server.rules" -}}
{{- $values := .root.Values.metrics.prometheusRule -}}
{{- $job := default (include "eta-server.job" .root) $values.job -}}
{{- $front := default (include "eta-server.job" .root | replace "eta-server/" "eta-front/") $values.frontJob | printf `job=%q` -}}
{{- $server := printf `job=%q` $job -}}
{{- $series := `\b(job[a-z_]*:eta_[a-z0-9_:]+|eta_[a-z0-9_]+|process_start_time_seconds|up)` -}}
{{- $file := .root.Files.Get .path | fromYaml -}}
{{- range $group := $file.groups -}}
{{- range $rule := $group.rules -}}
{{- $asked := $rule.expr | replace `{job=~".*eta-server.*"}` "" -}}
{{- $asked = regexReplaceAll (printf `%s\{` $series) $asked (printf `${1}{%s,` $server) -}}
{{- $asked = regexReplaceAll (printf `%s([^a-z0-9_:{]|$)` $series) $asked (printf `${1}{%s}${2}` $server) -}}
{{- $asked = regexReplaceAll (printf `(\beta_front_[a-z0-9_]+\{)%s` (regexQuoteMeta $server)) $asked (printf `${1}%s` $front) -}}
{{- $_ := set $rule "expr" $asked -}}
{{- if $rule.alert -}}
{{- $_ := set $rule.labels "severity" (index $values.severities $rule.labels.severity) -}}
{{- if not (contains $front $asked) -}}
{{- $_ := set $rule.labels "job" $job -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $file -}}
{{- end -}}
