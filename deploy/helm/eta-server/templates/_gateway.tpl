{{/* The gateway: SMG in pods of its own, which finds the servers' pods by their labels. */}}

{{- define "eta-server.gatewayName" -}}
{{- printf "%s-gateway" (include "eta-server.fullname" .) -}}
{{- end -}}

{{/* Not those of servers, whose Services and policies must not take these pods in. */}}
{{- define "eta-server.gatewaySelectorLabels" -}}
app.kubernetes.io/name: {{ include "eta-server.name" . }}-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "eta-server.gatewayLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "eta-server.gatewaySelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "eta-server.gatewayImage" -}}
{{- $image := .Values.gateway.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "eta-server.gatewayScheme" -}}
{{- ternary "https" "http" (not (empty .Values.gateway.tls.existingSecret)) -}}
{{- end -}}

{{/* What --vllm_listen of a server is: all of gateway.models. */}}
{{- define "eta-server.gatewayListens" -}}
{{- $listens := list -}}
{{- range .Values.gateway.models -}}
{{- $listen := printf "%s:%v" $.Values.server.listenHost .port -}}
{{- if or .name .attention -}}
{{- $listen = printf "%s=%s" $listen (default (include "eta-server.modelName" $) .name) -}}
{{- end -}}
{{- with .attention }}{{ $listen = printf "%s:%s" $listen . }}{{ end -}}
{{- $listens = append $listens $listen -}}
{{- end -}}
{{- join "," $listens -}}
{{- end -}}

{{/* The ports of gateway.models. */}}
{{- define "eta-server.gatewayPorts" -}}
{{- $ports := list -}}
{{- range .Values.gateway.models }}{{ $ports = append $ports (toString .port) }}{{ end -}}
{{- join "," $ports -}}
{{- end -}}

{{/* Seconds between a stop signal and the end: SMG fails readiness and still takes calls for the first five. */}}
{{- define "eta-server.gatewayGraceSeconds" -}}
{{- add 5 .Values.drain.timeoutSeconds .Values.drain.marginSeconds -}}
{{- end -}}

{{/* The command line of SMG. What stands here may not stand in gateway.flags: values.schema.json. */}}
{{- define "eta-server.gatewayArgs" -}}
{{- $gateway := .Values.gateway -}}
{{- $host := trimAll "[]" .Values.server.listenHost -}}
- --keys=/etc/gateway/keys
- {{ printf "--host=%s" $host | quote }}
- --port={{ $gateway.port }}
- --health-check-port={{ $gateway.healthPort }}
# It always has such a page.
- {{ printf "--prometheus-host=%s" (ternary $host "127.0.0.1" .Values.metrics.enabled) | quote }}
- --prometheus-port={{ $gateway.metricsPort }}
{{- if $gateway.tls.existingSecret }}
- --tls-cert-path=/etc/gateway/tls/{{ $gateway.tls.certKey }}
- --tls-key-path=/etc/gateway/tls/{{ $gateway.tls.keyKey }}
{{- end }}
- --discovery-provider=kubernetes
- --service-discovery-namespace={{ .Release.Namespace }}
# Pods have an annotation with all their ports.
- --service-discovery-port={{ (first $gateway.models).port }}
- --selector
- app.kubernetes.io/name={{ include "eta-server.name" . }}
- app.kubernetes.io/instance={{ .Release.Name }}
- --policy={{ $gateway.policy }}
# Nobody's prompts stay in its memory, and no two replicas would have the same ones.
- --history-backend=none
- --health-check-interval-secs=2
- --health-failure-threshold=2
- --worker-startup-check-interval=1
- --shutdown-grace-period-secs={{ .Values.drain.timeoutSeconds }}
- --log-level={{ ternary "warn" .Values.log.level (eq .Values.log.level "warning") }}
{{- if eq .Values.log.format "json" }}
- --log-json
{{- end }}
{{- range $name, $value := $gateway.flags }}
{{- if not (kindIs "bool" $value) }}
- {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value ($value | int64 | toString)) | quote }}
{{- else if $value }}
- --{{ $name }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "eta-server.gatewayPod" -}}
{{- $values := .Values -}}
{{- $gateway := .Values.gateway -}}
metadata:
  labels:
    {{- include "eta-server.gatewaySelectorLabels" . | nindent 4 }}
    {{- with $gateway.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $gateway.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "eta-server.gatewayName" . }}
  automountServiceAccountToken: false # the volume below is one that the cluster renews every hour
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "eta-server.gatewayGraceSeconds" . }}
  securityContext:
    {{- include "eta-server.podSecurityContext" . | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $gateway.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $gateway.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $gateway.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $values.topologySpread }}
  topologySpreadConstraints:
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "eta-server.gatewaySelectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  containers:
    - name: gateway
      image: {{ include "eta-server.gatewayImage" . }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        {{- include "eta-server.gatewayArgs" . | nindent 8 }}
      ports:
        - {name: http, containerPort: {{ $gateway.port }}}
        - {name: health, containerPort: {{ $gateway.healthPort }}}
        {{- if $values.metrics.enabled }}
        - {name: metrics, containerPort: {{ $gateway.metricsPort }}}
        {{- end }}
      # Ready is who has a server and its tokenizer. A thread of its own answers.
      readinessProbe:
        httpGet: {path: /readiness, port: health}
        periodSeconds: {{ $values.probes.readinessPeriodSeconds }}
        timeoutSeconds: 2
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /liveness, port: health}
        initialDelaySeconds: 10
        periodSeconds: {{ $values.probes.livenessPeriodSeconds }}
        timeoutSeconds: 5
        failureThreshold: {{ $values.probes.livenessFailures }}
      resources:
        {{- toYaml $gateway.resources | nindent 8 }}
      securityContext:
        {{- include "eta-server.securityContext" . | nindent 8 }}
      volumeMounts:
        - {name: keys, mountPath: /etc/gateway/keys, readOnly: true}
        {{- if $gateway.tls.existingSecret }}
        - {name: tls, mountPath: /etc/gateway/tls, readOnly: true}
        {{- end }}
        - {name: cluster, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: keys, secret: {secretName: {{ $gateway.keys.existingSecret }}, defaultMode: 0440}}
    {{- if $gateway.tls.existingSecret }}
    - {name: tls, secret: {secretName: {{ $gateway.tls.existingSecret }}, defaultMode: 0440}}
    {{- end }}
    - name: cluster # as automountServiceAccountToken would lay it out
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
          - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
    - name: tmp # tokenizers of servers
      emptyDir: {sizeLimit: 64Mi}
{{- end -}}
