{{/* The pools with what poolDefaults says, as JSON: {"name": {...}}. */}}
{{- define "tinkermesh.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.pools -}}
{{- if $own -}}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.poolDefaults) (deepCopy $own)) -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* Whether a pool has samplers: without any the scheduler refuses samples instead of letting them wait. */}}
{{- define "tinkermesh.hasSamplers" -}}
{{- range $name, $pool := include "tinkermesh.pools" . | fromJson -}}
{{- range $role, $sampler := $pool.samplers -}}
{{- if include "tinkermesh.samplerRuns" $sampler -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.samplerRuns" -}}
{{- if or (gt (int .replicas) 0) (ne .autoscaling.kind "none") -}}true{{- end -}}
{{- end -}}

{{/* The roles of prefill and decode of which some pool has samplers, as JSON: they alone reach Redis. */}}
{{- define "tinkermesh.legRoles" -}}
{{- $roles := dict -}}
{{- range $name, $pool := include "tinkermesh.pools" . | fromJson -}}
{{- range $role, $sampler := $pool.samplers -}}
{{- if and (ne $role "both") (include "tinkermesh.samplerRuns" $sampler) -}}{{- $_ := set $roles $role true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- keys $roles | sortAlpha | toJson -}}
{{- end -}}

{{/* (dict "name" pool "pool" values): what the prefill and decode samplers of a pool must agree on. */}}
{{- define "tinkermesh.tierSettings" -}}
TINKERMESH_SAMPLER_KV_DIRECTORY: {{ include "tinkermesh.tierDirectory" . | quote }}
TINKERMESH_SAMPLER_KV_HASH_SEED: {{ include "tinkermesh.plain" .pool.tier.hashSeed | quote }}
{{- end -}}

{{/* Of a volume a directory of the pool's own, too: pools may share one. */}}
{{- define "tinkermesh.tierDirectory" -}}
{{- ternary "/kv" "/store/kv" (not (empty .pool.tier.volume)) }}/{{ .name }}
{{- end -}}

{{/* What trainer and samplers of a pool must agree on. (dict "root" $ "name" name "pool" pool "service" "trainer") */}}
{{- define "tinkermesh.poolSettings" -}}
{{- $prefix := printf "TINKERMESH_%s_" (upper .service) -}}
{{ $prefix }}MODEL_PATH: {{ .pool.model.path | quote }}
{{ $prefix }}POOL: {{ .name | quote }}
{{ $prefix }}BASE_MODEL: {{ .pool.baseModel | quote }}
{{ $prefix }}ALIASES: {{ join "," .pool.aliases | quote }}
{{ $prefix }}MAX_CONTEXT: {{ .pool.maxContext | int | quote }}
{{ $prefix }}MAX_RANK: {{ .pool.maxRank | int | quote }}
{{ $prefix }}STORE_ROOT: /store
{{ $prefix }}SCHEDULERS: {{ include "tinkermesh.schedulerTarget" .root | quote }}
TOKENIZERS_PARALLELISM: "false"
HF_HUB_OFFLINE: "1"
{{- with .threads }}
OMP_NUM_THREADS: {{ . | int | quote }}
OMP_WAIT_POLICY: passive
GOMP_SPINCOUNT: "1000"
{{- end }}
{{- end -}}

{{- define "tinkermesh.engineMounts" -}}
- {name: store, mountPath: /store}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- if .pool.model.volume }}
- name: model
  mountPath: {{ .pool.model.mountPath }}
  readOnly: true
  {{- with .pool.model.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- include "tinkermesh.tlsMount" .root }}
{{- end -}}

{{/* (dict "root" $ "pool" pool "shared" "1Gi") */}}
{{- define "tinkermesh.engineVolumes" -}}
- name: store
  persistentVolumeClaim:
    claimName: {{ include "tinkermesh.storeClaim" .root }}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .shared }}
{{- with .pool.model.volume }}
- name: model
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "tinkermesh.tlsVolume" .root }}
{{- end -}}

{{/* Where all pods of a single node go. */}}
{{- define "tinkermesh.nodeSelector" -}}
{{- $selector := deepCopy .values.nodeSelector -}}
{{- with .root.Values.singleNode.hostname -}}
{{- $_ := set $selector "kubernetes.io/hostname" . -}}
{{- end -}}
{{- toJson $selector -}}
{{- end -}}
