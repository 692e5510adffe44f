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
{{- end -}}

{{/* (dict "root" $ "port" 7001 "values" map): readiness and liveness of a gRPC server; the kubelet speaks gRPC since 1.24. */}}
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
{{- if semverCompare ">=1.24.0-0" .root.Capabilities.KubeVersion.Version -}}
grpc:
  port: {{ .port }}
{{- else -}}
exec:
  command: [python, -m, services.common.probe, "127.0.0.1:{{ .port }}"]
{{- end -}}
{{- end -}}

{{/* Everything a value may get wrong that a schema cannot see. */}}
{{- define "tinkermesh.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpus -}}
{{- $limits := merge (dict "nvidia.com/gpu" (.gpus | int)) ($resources.limits | default dict) -}}
{{- $resources = merge (dict "limits" $limits) $resources -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
