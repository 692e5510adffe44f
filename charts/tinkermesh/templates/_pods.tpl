{{/* What all pods have in common. */}}

{{- define "tinkermesh.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tinkermesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* (dict "root" $ "values" .Values.gateway "selector" "..."): where the pod may run, and as whom. */}}
{{- define "tinkermesh.scheduling" -}}
serviceAccountName: {{ include "tinkermesh.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "tinkermesh.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .nodeSelector | default .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpread }}
{{- if .topologyKey }}
topologySpreadConstraints:
  - maxSkew: {{ .maxSkew }}
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (dict "service" "gateway" "settings" map): fields as variables. Large numbers reach templates as floats. */}}
{{- define "tinkermesh.settings" -}}
{{- range $field, $value := .settings }}
TINKERMESH_{{ upper $.service }}_{{ snakecase $field | upper }}: {{ include "tinkermesh.plain" $value | quote }}
{{- end }}
{{- end -}}

{{- define "tinkermesh.plain" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ printf "%.0f" . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* (dict "root" $ "names" (list "POD_NAME")): variables every container has, and where traces go. */}}
{{- define "tinkermesh.env" -}}
{{- range .names }}
- name: {{ . }}
  valueFrom:
    fieldRef:
      fieldPath: {{ get (dict "POD_NAME" "metadata.name" "POD_IP" "status.podIP") . }}
{{- end }}
- name: HOME
  value: /tmp
{{- with include "tinkermesh.otlpEndpoint" .root }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .root.Values.tls }}
{{- if .enabled }}
- {name: TINKERMESH_TLS_CERT_FILE, value: /etc/tinkermesh/tls/tls.crt}
- {name: TINKERMESH_TLS_KEY_FILE, value: /etc/tinkermesh/tls/tls.key}
- {name: TINKERMESH_TLS_CA_FILE, value: /etc/tinkermesh/tls/ca.crt}
- {name: TINKERMESH_TLS_SERVER_NAME, value: {{ .serverName | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "service" "gateway"): where Prometheus scrapes it. */}}
{{- define "tinkermesh.metricsSetting" -}}
{{- if .root.Values.metrics.enabled }}
TINKERMESH_{{ upper .service }}_METRICS_LISTEN: "0.0.0.0:{{ .root.Values.metrics.port | int }}"
{{- end }}
{{- end -}}

{{- define "tinkermesh.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: {{ .Values.metrics.port | int }}, protocol: TCP}
{{- end }}
{{- end -}}

{{- define "tinkermesh.tlsMount" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/tinkermesh/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tinkermesh.tlsVolume" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret | default (printf "%s-tls" (include "tinkermesh.fullname" .)) }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* (dict "root" $ "port" 7001 "values" map): readiness and liveness of a gRPC server. The kubelet speaks gRPC since 1.24, and
     shows no certificate. */}}
{{- define "tinkermesh.grpcProbes" -}}
{{- $call := include "tinkermesh.grpcCall" . -}}
{{- with .startupSeconds }}
startupProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add . 4) 5 }}
{{- end }}
readinessProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "tinkermesh.grpcCall" -}}
{{- if and (semverCompare ">=1.24.0-0" .root.Capabilities.KubeVersion.Version) (not .root.Values.tls.enabled) -}}
grpc:
  port: {{ .port }}
{{- else -}}
exec:
  command: [python, -m, services.common.probe, "127.0.0.1:{{ .port }}"]
{{- end -}}
{{- end -}}

{{/* (dict "resources" map "gpus" 4). A quantity is text: as a number older servers refuse it in a server-side apply. */}}
{{- define "tinkermesh.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpus -}}
{{- $limits := merge (dict "nvidia.com/gpu" (.gpus | int | toString)) ($resources.limits | default dict) -}}
{{- $resources = merge (dict "limits" $limits) $resources -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
