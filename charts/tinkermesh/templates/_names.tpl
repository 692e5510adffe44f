{{/* Names and labels. */}}

{{- define "tinkermesh.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tinkermesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tinkermesh.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tinkermesh.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "part" "gateway"): a workload's name; a StatefulSet's pods carry it in a label of 63 characters. */}}
{{- define "tinkermesh.partname" -}}
{{- $name := printf "%s-%s" (include "tinkermesh.fullname" .root) .part -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "the name %q has more than 52 characters: use a shorter release name, fullnameOverride or pool name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "tinkermesh.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* (dict "root" $ "component" "gateway" "pool" "" "role" ""): never changes, since selectors cannot. */}}
{{- define "tinkermesh.selector" -}}
app.kubernetes.io/name: {{ include "tinkermesh.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
tinkermesh.dev/pool: {{ . }}
{{- end }}
{{- with .role }}
tinkermesh.dev/role: {{ . }}
{{- end }}
{{- end -}}

{{- define "tinkermesh.labels" -}}
{{ include "tinkermesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: tinkermesh
helm.sh/chart: {{ include "tinkermesh.chart" .root }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "image" .Values.gateway.image): an image of this project, or with `tag` one of somebody else's. */}}
{{- define "tinkermesh.image" -}}
{{- if .image.tag -}}
{{ .image.repository }}:{{ .image.tag }}
{{- else -}}
{{ with .root.Values.image.registry }}{{ . }}/{{ end }}{{ .image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "tinkermesh.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "tinkermesh.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.authSecret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-auth" (include "tinkermesh.fullname" .)) }}
{{- end -}}

{{- define "tinkermesh.storeClaim" -}}
{{ .Values.store.existingClaim | default (printf "%s-store" (include "tinkermesh.fullname" .)) }}
{{- end -}}

{{/* gRPC target of all scheduler replicas: the resolver sees every pod behind the headless Service. */}}
{{- define "tinkermesh.schedulerTarget" -}}
dns:///{{ include "tinkermesh.partname" (dict "root" . "part" "scheduler") }}.{{ .Release.Namespace }}.svc:7001
{{- end -}}

{{- define "tinkermesh.externalRedis" -}}
{{- if or .Values.redis.externalUrl .Values.redis.existingSecret -}}true{{- end -}}
{{- end -}}

{{- define "tinkermesh.redisSecret" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "tinkermesh.fullname" .)) }}
{{- end -}}

{{- define "tinkermesh.otlpEndpoint" -}}
{{- if .Values.tracing.endpoint -}}
{{ .Values.tracing.endpoint }}
{{- else if .Values.jaeger.enabled -}}
http://{{ include "tinkermesh.partname" (dict "root" . "part" "jaeger") }}.{{ .Release.Namespace }}.svc:4317
{{- end -}}
{{- end -}}
