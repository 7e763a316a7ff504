{{- define "eta-server.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "eta-server.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "eta-server.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "eta-server.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "eta-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "eta-server.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What the server calls its model. */}}
{{- define "eta-server.modelName" -}}
{{- $file := base .Values.model.path -}}
{{- .Values.model.name | default (regexReplaceAll "(-00001-of-[0-9]{5})?\\.gguf$" $file "") -}}
{{- end -}}

{{- define "eta-server.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "eta-server.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "eta-server.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "eta-server.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "eta-server.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "eta-server.frontImage" -}}
{{- $image := .Values.front.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The one sum that a pod's end depends on. */}}
{{- define "eta-server.graceSeconds" -}}
{{- add .Values.drain.delaySeconds .Values.drain.timeoutSeconds .Values.drain.marginSeconds -}}
{{- end -}}

{{/* The most pods that may run at a time. */}}
{{- define "eta-server.maxReplicas" -}}
{{- if .Values.autoscaling.enabled -}}{{ .Values.autoscaling.maxReplicas }}{{- else -}}{{ .Values.replicaCount }}{{- end -}}
{{- end -}}

{{- define "eta-server.postgresqlSecret" -}}
{{- default (printf "%s-profile-store" (include "eta-server.fullname" .)) .Values.profiles.postgresql.existingSecret -}}
{{- end -}}

{{- define "eta-server.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "eta-server.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Not empty: the server itself knows who calls. */}}
{{- define "eta-server.authenticates" -}}
{{- if or .Values.identity.existingSecret (and .Values.tls.enabled .Values.tls.clientCaKey) -}}true{{- end -}}
{{- end -}}

{{/* Not empty: the server answers probes at a port of its own, since they speak no TLS and open no Unix socket. */}}
{{- define "eta-server.healthListens" -}}
{{- if or .Values.front.enabled .Values.tls.enabled -}}true{{- end -}}
{{- end -}}

{{/* Where probes ask the server itself. */}}
{{- define "eta-server.probePort" -}}
{{- if include "eta-server.healthListens" . -}}{{ .Values.server.healthPort }}{{- else -}}{{ .Values.server.port }}{{- end -}}
{{- end -}}

{{/* What clients call, and where health is asked through it. */}}
{{- define "eta-server.clientPort" -}}
{{- if .Values.front.enabled -}}{{ .Values.front.port }}{{- else -}}{{ .Values.server.port }}{{- end -}}
{{- end -}}

{{- define "eta-server.clientHealthPort" -}}
{{- if .Values.front.enabled -}}{{ .Values.front.healthPort }}{{- else -}}{{ include "eta-server.probePort" . }}{{- end -}}
{{- end -}}

{{/* Not empty: mtail runs beside the front and counts what it refuses. */}}
{{- define "eta-server.frontCounts" -}}
{{- if and .Values.front.enabled .Values.metrics.enabled -}}true{{- end -}}
{{- end -}}

{{/* Not empty: somebody may read what the prefix cache holds. */}}
{{- define "eta-server.publishesEvents" -}}
{{- if and .Values.inferenceGateway.enabled .Values.inferenceGateway.eventPeers -}}true{{- end -}}
{{- end -}}

{{/* What values.schema.json cannot say. */}}
{{- define "eta-server.check" -}}
{{- $profiles := .Values.profiles -}}
{{- if and (eq $profiles.store "sqlite") (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) -}}
{{- fail "profiles.store: sqlite is a file of one replica; for several, or for autoscaling, take postgresql or directory" -}}
{{- end -}}
{{- if and (eq $profiles.store "postgresql") (not $profiles.postgresql.url) (not $profiles.postgresql.existingSecret) -}}
{{- fail "profiles.postgresql: url or existingSecret must be given" -}}
{{- end -}}
{{- if and (eq $profiles.store "directory") (not $profiles.directory.tenants) -}}
{{- fail "profiles.directory.tenants: must name at least one tenant; without --tenant_header that is \"default\"" -}}
{{- end -}}
{{- $front := .Values.front -}}
{{- if and $front.enabled .Values.tls.enabled -}}
{{- fail "tls.enabled: with the front TLS ends there, with the certificate of front.tls; for TLS at the server itself set front.enabled=false" -}}
{{- end -}}
{{- if and $front.enabled .Values.tenants.header (not $front.existingConfig) -}}
{{- fail "tenants.header: the front passes on no tenant that a caller names; behind a proxy that names tenants set front.enabled=false" -}}
{{- end -}}
{{- if and $front.enabled (eq $front.clientAddress.header "proxy_protocol") (not $front.clientAddress.proxies) -}}
{{- fail "front.clientAddress.proxies: must name the proxies whose PROXY protocol is believed" -}}
{{- end -}}
{{- $ports := list (int $front.port) (int $front.healthPort) (int $front.metrics.port) (int .Values.server.healthPort) (int .Values.metrics.port) 8476 -}}
{{- if and $front.enabled (lt (len (uniq $ports)) (len $ports)) -}}
{{- fail "front.port, front.healthPort, front.metrics.port, server.healthPort, metrics.port: must differ, and 8476 is mtail's" -}}
{{- end -}}
{{- $gateway := .Values.inferenceGateway -}}
{{- if and $gateway.enabled (or $front.enabled .Values.tls.enabled) -}}
{{- fail "inferenceGateway.enabled: the gateway is the front, and speaks without TLS to pods: set front.enabled=false, and no tls.enabled" -}}
{{- end -}}
{{- $models := .Values.gateway.models -}}
{{- if and .Values.gateway.enabled $gateway.enabled -}}
{{- fail "gateway.enabled, inferenceGateway.enabled: both are what servers are called by: set one" -}}
{{- end -}}
{{- if and .Values.gateway.enabled .Values.tls.enabled -}}
{{- fail "gateway.enabled: it speaks without TLS to pods: no tls.enabled; its own TLS is gateway.tls" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.keys.existingSecret) -}}
{{- fail "gateway.keys.existingSecret: must name the Secret with a key for each caller; without, whoever reaches the gateway could change its servers" -}}
{{- end -}}
{{- $taken := list (ternary (int $front.port) (int .Values.server.port) $front.enabled) (int $front.healthPort) (int $front.metrics.port) (int .Values.server.healthPort) (int .Values.metrics.port) 8476 -}}
{{- $names := list -}}
{{- range $models -}}
{{- $taken = append $taken (int .port) -}}
{{- $names = append $names (default (include "eta-server.modelName" $) .name) -}}
{{- end -}}
{{- if and .Values.gateway.enabled (lt (len (uniq $taken)) (len $taken)) -}}
{{- fail "gateway.models: ports must differ from one another, and from those of front, server and metrics" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (lt (len (uniq $names)) (len $names)) -}}
{{- fail "gateway.models: names must differ; a model without one has the name of the server's model" -}}
{{- end -}}
{{- $outside := list (int .Values.gateway.port) (int .Values.gateway.healthPort) (int .Values.gateway.metricsPort) -}}
{{- if lt (len (uniq $outside)) (len $outside) -}}
{{- fail "gateway.port, healthPort, metricsPort: must differ" -}}
{{- end -}}
{{- $open := list (int $gateway.port) (int $gateway.eventsPort) (int $gateway.replayPort) (int .Values.server.port) (int .Values.metrics.port) -}}
{{- if and $gateway.enabled (lt (len (uniq $open)) (len $open)) -}}
{{- fail "inferenceGateway.port, eventsPort, replayPort, server.port, metrics.port: must differ" -}}
{{- end -}}
{{- if and $gateway.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.enabled: inferenceGateway needs it, since a picker takes a server without figures for an overloaded one" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) -}}
{{- fail "tls.existingSecret: must name the Secret with the certificate and its key" -}}
{{- end -}}
{{- if and .Values.tls.clientCaKey (not .Values.tls.enabled) -}}
{{- fail "tls.clientCaKey: needs tls.enabled" -}}
{{- end -}}
{{- if and .Values.tls.clientCaKey .Values.tenants.header (not .Values.identity.existingSecret) -}}
{{- fail "tenants.header: with tls.clientCaKey it needs identity.existingSecret, which says whose certificate is a proxy's" -}}
{{- end -}}
{{- if and $profiles.default (eq $profiles.store "none") -}}
{{- fail "profiles.default: needs a profiles.store" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) -}}
{{- fail "autoscaling.maxReplicas: must be at least minReplicas" -}}
{{- end -}}
{{- if and (not .Values.metrics.enabled) (or .Values.autoscaling.enabled .Values.metrics.serviceMonitor.enabled) -}}
{{- fail "metrics.enabled: autoscaling and serviceMonitor need it" -}}
{{- end -}}
{{- end -}}
