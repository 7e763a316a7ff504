{{/* The command line of eta-server. What stands here may not stand in flags: values.schema.json. */}}
{{- define "eta-server.args" -}}
- --model={{ .Values.model.path }}
{{- with .Values.model.name }}
- --model_name={{ . }}
{{- end }}
{{- range $file, $digest := .Values.model.sha256 }}
- --sha256={{ $file }}={{ $digest }}
{{- end }}
{{- if .Values.gpu.enabled }}
- --backend=cuda
- --device={{ join "," (until (int .Values.gpu.count)) }}
- --kv_pool_fraction={{ .Values.kvCache.gpuFraction }}
{{- else }}
- --backend=cpu
- --kv_pool_bytes={{ .Values.kvCache.bytes }}
{{- end }}
{{- if .Values.front.enabled }}
# Where front/upstream.conf looks for it. Clients reach the front, and nobody the server.
- --listen=unix:/run/eta/server.sock
- --health_listen={{ .Values.server.listenHost }}:{{ .Values.server.healthPort }}
{{- if .Values.gateway.enabled }}
# Of --vllm_listen, which the NetworkPolicy opens to the gateway's pods alone.
- --allow_plaintext_network
- --allow_unauthenticated_network
{{- end }}
{{- else }}
- --listen={{ .Values.server.listenHost }}:{{ .Values.server.port }}
# Other pods reach the port: the NetworkPolicy says which. What the server is not told to do itself, a mesh or a proxy
# in front must.
{{- if .Values.tls.enabled }}
- --tls_cert=/etc/eta/tls/{{ .Values.tls.certKey }}
- --tls_key=/etc/eta/tls/{{ .Values.tls.keyKey }}
{{- with .Values.tls.clientCaKey }}
- --tls_client_ca=/etc/eta/tls/{{ . }}
{{- end }}
- --health_listen={{ .Values.server.listenHost }}:{{ .Values.server.healthPort }}
{{- else }}
- --allow_plaintext_network
{{- end }}
{{- if or .Values.gateway.enabled .Values.inferenceGateway.enabled (not (include "eta-server.authenticates" .)) }}
- --allow_unauthenticated_network
{{- end }}
- --max_connection_age={{ .Values.server.maxConnectionAge }}
{{- end }}
{{- if .Values.identity.existingSecret }}
- --identity=/etc/eta/identity/{{ .Values.identity.key }}
{{- end }}
- --drain_delay={{ .Values.drain.delaySeconds }}s
- --drain_timeout={{ .Values.drain.timeoutSeconds }}s
- --log_format={{ .Values.log.format }}
- --log_level={{ .Values.log.level }}
{{- if .Values.metrics.enabled }}
- --metrics_listen={{ .Values.metrics.listenHost }}:{{ .Values.metrics.port }}
- --allow_network_metrics
{{- with .Values.metrics.tenants }}
- --metrics_tenants={{ join "," . }}
{{- end }}
{{- with .Values.metrics.profiles }}
- --metrics_profiles={{ join "," . }}
{{- end }}
{{- end }}
{{- if .Values.inferenceGateway.enabled }}
- --vllm_listen={{ .Values.server.listenHost }}:{{ .Values.inferenceGateway.port }}
- --metrics_names=vllm
{{- end }}
{{- if .Values.gateway.enabled }}
- --vllm_listen={{ include "eta-server.gatewayListens" . }}
{{- if and .Values.identity.existingSecret (eq .Values.gateway.policy "cache_aware") (not (hasKey .Values.flags "vllm_route")) }}
# So that it is told what the prefix cache holds.
- --vllm_route
{{- end }}
{{- end }}
{{- if include "eta-server.publishesEvents" . }}
- --kv_events=tcp://{{ .Values.server.listenHost }}:{{ .Values.inferenceGateway.eventsPort }}
- --kv_events_replay=tcp://{{ .Values.server.listenHost }}:{{ .Values.inferenceGateway.replayPort }}
- --kv_events_topic=kv@$(POD_IP):{{ .Values.inferenceGateway.port }}@{{ include "eta-server.modelName" . }}
# The NetworkPolicy says who reaches them.
- --allow_network_kv_events
{{- end }}
{{- with .Values.tenants.header }}
- --tenant_header={{ . }}
{{- end }}
{{- with .Values.tenants.admins }}
- --admin_tenants={{ join "," . }}
{{- end }}
{{- if or .Values.tenants.limits .Values.tenants.existingLimits }}
- --tenants=/etc/eta/limits/tenants.json
{{- end }}
{{- if eq .Values.profiles.store "directory" }}
- --profile_store=dir:/profiles
{{- else if eq .Values.profiles.store "sqlite" }}
- --profile_store=sqlite:/var/lib/eta/store/profiles.db
{{- else if eq .Values.profiles.store "postgresql" }}
- --profile_store_file=/etc/eta/store/{{ .Values.profiles.postgresql.secretKey }}
{{- end }}
{{- with .Values.profiles.default }}
- --default_profile={{ . }}
{{- end }}
{{- range $name, $value := .Values.flags }}
{{- if kindIs "bool" $value }}
- --{{ $name }}={{ $value }}
{{- else if kindIs "string" $value }}
- {{ printf "--%s=%s" $name $value | quote }}
{{- else }}
- --{{ $name }}={{ int64 $value }}
{{- end }}
{{- end }}
{{- end -}}
