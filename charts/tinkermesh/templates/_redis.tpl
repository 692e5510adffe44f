{{/* PONG, and not LOADING. */}}
{{- define "tinkermesh.redisPing" -}}
exec:
  command: [sh, -c, '"$(command -v valkey-cli || command -v redis-cli)" -p 6379 ping | grep -qx PONG']
{{- end -}}

{{/* The mesh's Redis, for the pods that speak to it: schedulers, and samplers of prefill and decode. */}}
{{- define "tinkermesh.redisUrl" -}}
- name: TINKERMESH_{{ upper .service }}_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "tinkermesh.redisSecret" .root }}
      key: url
{{- end -}}

{{- define "tinkermesh.redisTlsMount" -}}
{{- if .Values.redis.tlsSecret }}
- {name: redis-tls, mountPath: /etc/tinkermesh/redis, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tinkermesh.redisTlsVolume" -}}
{{- with .Values.redis.tlsSecret }}
- name: redis-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}
