{{/* The front: nginx beside the server, from the configuration in deploy/front. */}}

{{- define "eta-server.frontConfigMap" -}}
{{- default (printf "%s-front" (include "eta-server.fullname" .)) .Values.front.existingConfig -}}
{{- end -}}

{{- define "eta-server.frontTlsSecret" -}}
{{- default (printf "%s-tls" (include "eta-server.fullname" .)) .Values.front.tls.existingSecret -}}
{{- end -}}

{{/* HOST:PORT of a listen directive; an address of IPv6 takes IPv4 too, as the server's does. */}}
{{- define "eta-server.frontListen" -}}
{{- $host := .root.Values.server.listenHost -}}
{{- printf "listen %s:%v%s" $host .port (ternary " ipv6only=off" "" (hasPrefix "[" $host)) -}}
{{- end -}}

{{/* Where the pod decides: addresses, the certificate, who is a proxy. All else is as deploy/front has it. */}}
{{- define "eta-server.frontConfig" -}}
{{- $front := .Values.front -}}
{{- $listen := include "eta-server.frontListen" (dict "root" . "port" $front.port) -}}
{{- $metrics := include "eta-server.frontListen" (dict "root" . "port" $front.metrics.port) -}}
{{- $probes := include "eta-server.frontListen" (dict "root" . "port" $front.healthPort) -}}
{{- if eq $front.clientAddress.header "proxy_protocol" }}{{ $listen = printf "%s proxy_protocol" $listen }}{{ end -}}
nginx.conf: |
  {{- $main := .Files.Get "files/front/nginx.conf" | trim | replace "worker_processes auto;" (printf "worker_processes %v;" $front.workers) -}}
  {{- $main = $main | replace "limit_conn calls_of_peer 100;" (printf "limit_conn calls_of_peer %v;" $front.limits.callsAtATime) -}}
  {{- $main = $main | replace "limit_conn uploads_of_peer 4;" (printf "limit_conn uploads_of_peer %v;" $front.limits.uploadsAtATime) -}}
  {{- $main = $main | replace "rate=200r/s;" (printf "rate=%vr/s;" (int64 $front.limits.callsPerSecond)) -}}
  {{- $main = $main | replace "burst=400 nodelay;" (printf "burst=%v nodelay;" (int64 $front.limits.burst)) -}}
  {{- $main = $main | replace "http2_max_concurrent_streams 100;" (printf "http2_max_concurrent_streams %v;" $front.limits.streamsPerConnection) -}}
  {{- $main | nindent 2 }}
upstream.conf: |
  {{- .Files.Get "files/front/upstream.conf" | trim | nindent 2 }}
pod.conf: |
  {{- .Files.Get "files/front/pod.conf" | trim | replace "listen 8474" $probes | replace "listen 8475" $metrics | nindent 2 }}
front.mtail: |
  {{- .Files.Get "files/front/front.mtail" | trim | nindent 2 }}
listen.conf: |
  {{- .Files.Get "files/front/listen.conf" | trim | replace "listen 8443" $listen | replace " tls/tls" " $tls_folder/tls" | replace "/var/log/nginx/eta_front.log" "/dev/stdout" | nindent 2 }}
  {{- if $front.tls.clientCaKey }}
  ssl_client_certificate tls/ca.crt; # read at start
  ssl_verify_client on;
  {{- end }}
  {{- if $front.clientAddress.proxies }}
  {{- range $front.clientAddress.proxies }}
  set_real_ip_from {{ . }};
  {{- end }}
  real_ip_header {{ $front.clientAddress.header }};
  real_ip_recursive on;
  {{- end }}
  keepalive_time {{ .Values.server.maxConnectionAge }}; # then clients look up pods again
  grpc_set_header traceparent $trace;
  access_log /dev/stdout denied if=$denied;
  {{- if .Values.metrics.enabled }}
  access_log syslog:server=127.0.0.1:8476,nohostname counted if=$refused;
  {{- end }}
{{- end -}}

{{/* An init container that goes on: Kubernetes starts it before the server, and stops it once the server has ended. */}}
{{- define "eta-server.frontContainer" -}}
{{- $front := .Values.front -}}
- name: front
  image: {{ include "eta-server.frontImage" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: [/usr/sbin/nginx, -c, /etc/nginx/eta/nginx.conf, -g, "daemon off;"]
  ports:
    - {name: grpc, containerPort: {{ $front.port }}}
    - {name: health, containerPort: {{ $front.healthPort }}}
    {{- if .Values.metrics.enabled }}
    - {name: front-metrics, containerPort: {{ $front.metrics.port }}}
    {{- end }}
  # Through nginx to the server: what clients need. No liveness: nginx starts a worker anew that ends, and a restart would
  # not help it against a server that is not ready.
  readinessProbe:
    grpc: {port: {{ $front.healthPort }}, service: readiness}
    periodSeconds: {{ .Values.probes.readinessPeriodSeconds }}
    timeoutSeconds: 2
    failureThreshold: 2
  resources:
    {{- toYaml $front.resources | nindent 4 }}
  securityContext:
    {{- include "eta-server.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: front, mountPath: /etc/nginx/eta, readOnly: true}
    - {name: front-run, mountPath: /run}
    - {name: socket, mountPath: /run/eta}
{{- end -}}

{{/* Listens on the pod's loopback alone: to nginx's lines (UDP), and for the page, which nginx passes on (TCP). */}}
{{- define "eta-server.frontMetricsContainer" -}}
- name: front-metrics
  image: {{ include "eta-server.frontImage" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: [/usr/bin/mtail, --logtostderr, --progs=/etc/mtail, "--logs=udp://127.0.0.1:8476", --address=127.0.0.1, --port=8476, --emit_prog_label=false]
  resources:
    {{- toYaml .Values.front.metrics.resources | nindent 4 }}
  securityContext:
    {{- include "eta-server.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: front-metrics, mountPath: /etc/mtail, readOnly: true}
{{- end -}}

{{- define "eta-server.frontVolumes" -}}
{{- $tls := .Values.front.tls -}}
# The configuration and the certificate in one folder, whole, so that a renewed certificate arrives without a restart.
- name: front
  projected:
    defaultMode: 0440
    sources:
      - configMap:
          name: {{ include "eta-server.frontConfigMap" . }}
          items:
            - {key: nginx.conf, path: nginx.conf}
            - {key: listen.conf, path: listen.conf}
            - {key: upstream.conf, path: upstream.conf}
            - {key: pod.conf, path: also/pod.conf}
      - secret:
          name: {{ include "eta-server.frontTlsSecret" . }}
          items:
            - {key: {{ $tls.certKey }}, path: tls/tls.crt}
            - {key: {{ $tls.keyKey }}, path: tls/tls.key}
            {{- with $tls.clientCaKey }}
            - {key: {{ . }}, path: tls/ca.crt}
            {{- end }}
- name: front-run # nginx's process id; no message gets there
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- if .Values.metrics.enabled }}
- name: front-metrics
  configMap:
    name: {{ include "eta-server.frontConfigMap" . }}
    defaultMode: 0440
    items: [{key: front.mtail, path: front.mtail}]
{{- end }}
- name: socket # the server's: containers of this pod alone reach it
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end -}}
