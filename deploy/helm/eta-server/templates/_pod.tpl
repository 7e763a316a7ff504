{{/* The pod, for Deployment and StatefulSet alike. */}}
{{- define "eta-server.pod" -}}
{{- $values := .Values -}}
metadata:
  labels:
    {{- include "eta-server.selectorLabels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: eta-server
    {{- if and $values.front.enabled (not $values.front.existingConfig) }}
    # nginx reads its configuration at start.
    checksum/front: {{ include "eta-server.frontConfig" . | sha256sum }}
    {{- end }}
    {{- if and (eq $values.profiles.store "postgresql") $values.profiles.postgresql.url }}
    # The address is read at start. (Profiles in ConfigMaps need no restart, arguments are part of the pod.)
    checksum/profile-store: {{ $values.profiles.postgresql.url | sha256sum }}
    {{- end }}
    {{- if $values.gateway.enabled }}
    # Where the gateway finds gateway.models; it knows one port without.
    smg.ai/worker-ports: {{ include "eta-server.gatewayPorts" . | quote }}
    {{- end }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "eta-server.serviceAccountName" . }}
  automountServiceAccountToken: false
  # Kubernetes would set variables like ETA_SERVER_PORT, which look like settings of eta-server and etactl.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "eta-server.graceSeconds" . }}
  securityContext:
    {{- include "eta-server.podSecurityContext" . | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if and $values.gpu.enabled $values.gpu.runtimeClassName }}
  runtimeClassName: {{ $values.gpu.runtimeClassName }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or $values.tolerations (and $values.gpu.enabled $values.gpu.toleration) }}
  tolerations:
    {{- if and $values.gpu.enabled $values.gpu.toleration }}
    - key: {{ $values.gpu.resourceName }}
      operator: Exists
      effect: NoSchedule
    {{- end }}
    {{- with $values.tolerations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if $values.topologySpread }}
  topologySpreadConstraints:
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "eta-server.selectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- if $values.front.enabled }}
  initContainers:
    {{- include "eta-server.frontContainer" . | nindent 4 }}
    {{- if include "eta-server.frontCounts" . }}
    {{- include "eta-server.frontMetricsContainer" . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: eta-server
      image: {{ include "eta-server.image" . }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        {{- include "eta-server.args" . | nindent 8 }}
      env:
        - name: ETA_THREADS # as many as cores are requested, rounded up
          valueFrom:
            resourceFieldRef: {containerName: eta-server, resource: requests.cpu, divisor: "1"}
        {{- if $values.gpu.enabled }}
        - {name: CUDA_CACHE_PATH, value: /var/cache/cuda}
        - {name: CUDA_CACHE_MAXSIZE, value: "134217728"} # below the volume's limit
        {{- end }}
        {{- if include "eta-server.publishesEvents" $ }}
        - name: POD_IP
          valueFrom:
            fieldRef: {fieldPath: status.podIP}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- if $values.front.enabled }}
        - {name: server-health, containerPort: {{ $values.server.healthPort }}}
        {{- else }}
        - {name: grpc, containerPort: {{ $values.server.port }}}
        {{- if $values.tls.enabled }}
        - {name: health, containerPort: {{ $values.server.healthPort }}}
        {{- end }}
        {{- end }}
        {{- if $values.metrics.enabled }}
        - {name: metrics, containerPort: {{ $values.metrics.port }}}
        {{- end }}
        {{- if $values.inferenceGateway.enabled }}
        - {name: vllm, containerPort: {{ $values.inferenceGateway.port }}}
        {{- end }}
        {{- if $values.gateway.enabled }}
        {{- range $index, $model := $values.gateway.models }}
        - {name: vllm-{{ $index }}, containerPort: {{ $model.port }}}
        {{- end }}
        {{- end }}
        {{- if include "eta-server.publishesEvents" $ }}
        - {name: kv-events, containerPort: {{ $values.inferenceGateway.eventsPort }}}
        - {name: kv-replay, containerPort: {{ $values.inferenceGateway.replayPort }}}
        {{- end }}
      # readiness: calls are taken. liveness: the step loop moves and a new connection is answered. A full queue fails
      # neither; overload is answered per call.
      startupProbe:
        grpc: {port: {{ include "eta-server.probePort" $ }}, service: readiness}
        periodSeconds: 1
        timeoutSeconds: 2
        failureThreshold: {{ $values.probes.startupSeconds }}
      readinessProbe:
        grpc: {port: {{ include "eta-server.probePort" $ }}, service: readiness}
        periodSeconds: {{ $values.probes.readinessPeriodSeconds }}
        timeoutSeconds: 2
        failureThreshold: 2
      livenessProbe:
        grpc: {port: {{ include "eta-server.probePort" $ }}, service: liveness}
        periodSeconds: {{ $values.probes.livenessPeriodSeconds }}
        timeoutSeconds: 5
        failureThreshold: {{ $values.probes.livenessFailures }}
        # No stream of a stalled server will end: nothing to wait for.
        terminationGracePeriodSeconds: {{ $values.drain.marginSeconds }}
      resources:
        {{- $resources := deepCopy $values.resources }}
        {{- if $values.gpu.enabled }}
        {{- $gpu := dict $values.gpu.resourceName (int $values.gpu.count) }}
        {{- $resources = mergeOverwrite $resources (dict "requests" $gpu "limits" $gpu) }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- include "eta-server.securityContext" . | nindent 8 }}
      {{- $limits := or $values.tenants.limits $values.tenants.existingLimits }}
      {{- $mounts := or $values.front.enabled $values.gpu.enabled $values.model.volume $values.tls.enabled $values.identity.existingSecret $limits (has $values.profiles.store (list "directory" "postgresql" "sqlite")) $values.extraVolumeMounts }}
      {{- if $mounts }}
      volumeMounts:
        {{- if $values.front.enabled }}
        - {name: socket, mountPath: /run/eta}
        {{- end }}
        {{- if $values.gpu.enabled }}
        - {name: cuda-cache, mountPath: /var/cache/cuda}
        {{- end }}
        {{- if $values.tls.enabled }}
        - {name: tls, mountPath: /etc/eta/tls, readOnly: true}
        {{- end }}
        {{- if $values.identity.existingSecret }}
        - {name: identity, mountPath: /etc/eta/identity, readOnly: true}
        {{- end }}
        {{- if $values.model.volume }}
        - {name: model, mountPath: {{ $values.model.mountPath }}, readOnly: true}
        {{- end }}
        {{- if eq $values.profiles.store "sqlite" }}
        - {name: profiles, mountPath: /var/lib/eta}
        {{- else if eq $values.profiles.store "postgresql" }}
        - {name: profile-store, mountPath: /etc/eta/store, readOnly: true}
        {{- else if eq $values.profiles.store "directory" }}
        {{- range $index, $tenant := keys $values.profiles.directory.tenants | sortAlpha }}
        - {name: profiles-{{ $index }}, mountPath: {{ printf "/profiles/%s" $tenant | quote }}, readOnly: true}
        {{- end }}
        {{- end }}
        {{- if $limits }}
        - {name: limits, mountPath: /etc/eta/limits, readOnly: true}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- if or $values.front.enabled $values.gpu.enabled $values.model.volume $values.tls.enabled $values.identity.existingSecret $limits (has $values.profiles.store (list "directory" "postgresql")) $values.extraVolumes }}
  volumes:
    {{- if $values.front.enabled }}
    {{- include "eta-server.frontVolumes" . | nindent 4 }}
    {{- end }}
    {{- if $values.tls.enabled }}
    # Not for everybody in the pod to read; whole, so that a renewed certificate arrives without a restart.
    - {name: tls, secret: {secretName: {{ $values.tls.existingSecret }}, defaultMode: 0440}}
    {{- end }}
    {{- if $values.identity.existingSecret }}
    - {name: identity, secret: {secretName: {{ $values.identity.existingSecret }}, defaultMode: 0440}}
    {{- end }}
    {{- if $values.gpu.enabled }}
    - name: cuda-cache
      {{- toYaml $values.gpu.cudaCache | nindent 6 }}
    {{- end }}
    {{- with $values.model.volume }}
    - name: model
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if eq $values.profiles.store "postgresql" }}
    # A file, since environments show in descriptions of pods and in crash reports.
    - {name: profile-store, secret: {secretName: {{ include "eta-server.postgresqlSecret" . }}, defaultMode: 0440}}
    {{- else if eq $values.profiles.store "directory" }}
    {{- range $index, $tenant := keys $values.profiles.directory.tenants | sortAlpha }}
    {{- $source := index $values.profiles.directory.tenants $tenant }}
    - name: profiles-{{ $index }}
      configMap:
        name: {{ default (printf "%s-profiles-%d" (include "eta-server.fullname" $) $index) $source.configMap }}
    {{- end }}
    {{- end }}
    {{- if $limits }}
    - name: limits
      configMap:
        name: {{ default (printf "%s-limits" (include "eta-server.fullname" .)) $values.tenants.existingLimits }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end -}}
