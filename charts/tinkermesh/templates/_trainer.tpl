{{- define "tinkermesh.trainerSettings" -}}
{{- with .pool.trainer -}}
TINKERMESH_TRAINER_LISTEN: 0.0.0.0:7002
{{- /* Of several each makes its own of its cell; the first of them has this one, too. */}}
{{- if eq (int .replicas) 1 }}
TINKERMESH_TRAINER_TRAINER_ID: trainer-{{ $.poolName }}
{{- end }}
TINKERMESH_TRAINER_TP: {{ .tensorParallel | int | quote }}
TINKERMESH_TRAINER_DP: {{ .dataParallel | int | quote }}
{{ include "tinkermesh.poolSettings" (dict "root" $.root "name" $.poolName "pool" $.pool "service" "trainer" "threads" .settings.threads) }}
{{- include "tinkermesh.metricsSetting" (dict "root" $.root "service" "trainer") }}
{{- include "tinkermesh.settings" (dict "service" "trainer" "settings" .settings) }}
{{- end }}
{{- end -}}

{{/* Where schedulers and ranks find rank 0: pods of a StatefulSet have stable names. */}}
{{- define "tinkermesh.trainerHost" -}}
{{- if eq .pool.trainer.launcher "leaderworkerset" -}}
$(LWS_LEADER_ADDRESS)
{{- else if gt (int .pool.trainer.replicas) 1 -}}
$(POD_NAME).{{ .name }}.{{ .root.Release.Namespace }}.svc
{{- else -}}
{{ .name }}-0.{{ .name }}.{{ .root.Release.Namespace }}.svc
{{- end -}}
{{- end -}}

{{/* One process starts the ranks of one pod itself; several pods are started by torchrun. Of several trainers each is
the cell of its number: that of its pod, or of its group of pods. */}}
{{- define "tinkermesh.trainerCommand" -}}
{{- with .pool.trainer -}}
{{- $many := gt (int .replicas) 1 -}}
{{- if eq (int .nodes) 1 -}}
{{- if $many -}}
- sh
- -c
- export TINKERMESH_TRAINER_CELL="${HOSTNAME##*-}"; exec "$@"
- sh
{{ end -}}
- python
- -m
- services.trainer
{{- else -}}
{{- $lws := eq .launcher "leaderworkerset" -}}
- sh
- -c
- {{ if $many }}leader="${LWS_LEADER_ADDRESS%%.*}"; export TINKERMESH_TRAINER_CELL="${leader##*-}"; {{ end }}exec torchrun --node-rank={{ ternary "\"$LWS_WORKER_INDEX\"" "\"${HOSTNAME##*-}\"" $lws }} "$@"
- torchrun
- --nnodes={{ .nodes | int }}
- --nproc-per-node={{ div (mul .tensorParallel .dataParallel) .nodes }}
- --master-addr={{ include "tinkermesh.trainerHost" $ }}
- --master-port=29500
# Rank 0 publishes its captured saves before it ends.
- --shutdown-timeout={{ sub .terminationGracePeriodSeconds 10 | int }}
- -m
- services.trainer
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (leader: whether rank 0 is in the pod, or may be) */}}
{{- define "tinkermesh.trainerPod" -}}
{{- $trainer := .pool.trainer -}}
{{- with $trainer -}}
metadata:
  labels:
    {{- include "tinkermesh.labels" (dict "root" $.root "component" "trainer" "pool" $.poolName) | nindent 4 }}
    {{- with .podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "tinkermesh.trainerSettings" $ | sha256sum }}
    {{- with .podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "tinkermesh.scheduling" (dict "root" $.root "values" . "selector" (include "tinkermesh.selector" (dict "root" $.root "component" "trainer" "pool" $.poolName)) "nodeSelector" (include "tinkermesh.nodeSelector" (dict "root" $.root "values" .) | fromJson)) | nindent 2 }}
  terminationGracePeriodSeconds: {{ .terminationGracePeriodSeconds | int }}
  containers:
    - name: trainer
      image: {{ include "tinkermesh.image" (dict "root" $.root "image" .image) }}
      imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
      command:
        {{- include "tinkermesh.trainerCommand" $ | nindent 8 }}
      securityContext:
        {{- include "tinkermesh.containerSecurity" . | nindent 8 }}
      envFrom:
        - configMapRef:
            name: {{ $.name }}
      env:
        {{- include "tinkermesh.env" (dict "root" $.root "names" (list "POD_NAME")) | nindent 8 }}
        - name: TINKERMESH_TRAINER_ADVERTISE
          value: {{ include "tinkermesh.trainerHost" $ }}:7002
        {{- with .extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 7002, protocol: TCP}
        {{- include "tinkermesh.metricsPort" $.root | nindent 8 }}
      {{- if eq (int .nodes) 1 }}
      {{- include "tinkermesh.grpcProbes" (dict "root" $.root "port" 7002 "startupSeconds" .startupSeconds) | nindent 6 }}
      {{- else if and $.leader (eq .launcher "leaderworkerset") }}
      {{- include "tinkermesh.grpcProbes" (dict "root" $.root "port" 7002 "startupSeconds" .startupSeconds) | nindent 6 }}
      {{- else if $.leader }}
      {{- include "tinkermesh.firstPodProbes" (dict "startupSeconds" .startupSeconds) | nindent 6 }}
      {{- end }}
      resources:
        {{- include "tinkermesh.resources" (dict "resources" .resources "gpus" .gpusPerNode) | nindent 8 }}
      volumeMounts:
        {{- include "tinkermesh.engineMounts" $ | nindent 8 }}
  volumes:
    {{- include "tinkermesh.engineVolumes" (dict "root" $.root "pool" $.pool "shared" .sharedMemory) | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* Only rank 0 serves. The other pods of a StatefulSet have the same probes, and nothing to ask. */}}
{{- define "tinkermesh.firstPodProbes" -}}
{{- $call := "exec:\n  command: [sh, -c, '[ \"${HOSTNAME##*-}\" != 0 ] || exec python -m services.common.probe 127.0.0.1:7002']" -}}
startupProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: {{ div (add .startupSeconds 9) 10 }}
readinessProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
livenessProbe:
  {{- $call | nindent 2 }}
  periodSeconds: 30
  timeoutSeconds: 15
  failureThreshold: 6
{{- end -}}
