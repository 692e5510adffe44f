{{/* PONG, and not LOADING. */}}
{{- define "tinkermesh.redisPing" -}}
exec:
  command: [sh, -c, '"$(command -v valkey-cli || command -v redis-cli)" -p 6379 ping | grep -qx PONG']
{{- end -}}
