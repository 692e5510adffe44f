{{/* Values that are each right and do not fit together: refused with their path and the remedy. */}}

{{- define "tinkermesh.checks" -}}
{{- include "tinkermesh.checkAuth" . -}}
{{- include "tinkermesh.checkRedis" . -}}
{{- include "tinkermesh.checkRedisTls" . -}}
{{- include "tinkermesh.checkTls" . -}}
{{- $pools := include "tinkermesh.pools" . | fromJson -}}
{{- range $name, $pool := $pools -}}
{{- include "tinkermesh.checkTrainer" (dict "path" (printf "pools.%s" $name) "pool" $pool) -}}
{{- include "tinkermesh.checkLegs" (dict "path" (printf "pools.%s" $name) "pool" $pool) -}}
{{- range $role, $sampler := $pool.samplers -}}
{{- include "tinkermesh.checkAutoscaling" (dict "path" (printf "pools.%s.samplers.%s" $name $role) "values" $sampler) -}}
{{- include "tinkermesh.checkGrace" (dict "path" (printf "pools.%s.samplers.%s" $name $role) "values" $sampler "drain" 10 "more" 0) -}}
{{- end -}}
{{- end -}}
{{- include "tinkermesh.checkSingleNode" (dict "root" . "pools" $pools) -}}
{{- include "tinkermesh.checkAutoscaling" (dict "path" "gateway" "values" .Values.gateway) -}}
{{- include "tinkermesh.checkGrace" (dict "path" "gateway" "values" .Values.gateway "drain" 10 "more" .Values.gateway.preStopSeconds) -}}
{{- if and .Values.gateway.httpRoute.enabled (not .Values.gateway.httpRoute.parentRefs) -}}
{{- fail "gateway.httpRoute.parentRefs: name the Gateway the route belongs to" -}}
{{- end -}}
{{- if and .Values.gateway.ingress.enabled (not .Values.gateway.ingress.hosts) -}}
{{- fail "gateway.ingress.hosts: name at least one host" -}}
{{- end -}}
{{- with .Values.test.pool -}}
{{- if not (hasKey $pools .) -}}
{{- fail (printf "test.pool: %q is not one of pools" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkAuth" -}}
{{- if and .Values.auth.existingSecret (or .Values.auth.pepper .Values.auth.keys) -}}
{{- fail "auth.existingSecret: the Secret holds pepper and keys.json, so auth.pepper and auth.keys must be empty" -}}
{{- end -}}
{{- if and .Values.auth.keys (not .Values.auth.pepper) -}}
{{- fail "auth.keys: digests mean nothing without the pepper they were made under; set auth.pepper too" -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkRedis" -}}
{{- if and .Values.redis.externalUrl .Values.redis.existingSecret -}}
{{- fail "redis.externalUrl: the Secret redis.existingSecret holds the url; set one of them" -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkRedisTls" -}}
{{- if and .Values.redis.tlsSecret (not (include "tinkermesh.externalRedis" .)) -}}
{{- fail "redis.tlsSecret: the built-in Redis speaks no TLS; it is for redis.externalUrl and redis.existingSecret" -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkTls" -}}
{{- with .Values.tls -}}
{{- if and .enabled (not .existingSecret) (not .certManager.issuer) -}}
{{- fail "tls.enabled: name the certificates with tls.existingSecret, or who issues them with tls.certManager.issuer" -}}
{{- end -}}
{{- if and .existingSecret .certManager.issuer -}}
{{- fail "tls.existingSecret: cert-manager would write another Secret; set one of tls.existingSecret and tls.certManager.issuer" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkTrainer" -}}
{{- $trainer := .pool.trainer -}}
{{- $world := mul $trainer.tensorParallel $trainer.dataParallel -}}
{{- $nodes := int $trainer.nodes -}}
{{- if not .pool.model.path -}}
{{- fail (printf "%s.model.path: missing; the model's directory inside the containers" .path) -}}
{{- end -}}
{{- if and .pool.model.volume (ne .pool.model.path .pool.model.mountPath) (not (hasPrefix (printf "%s/" .pool.model.mountPath) .pool.model.path)) -}}
{{- fail (printf "%s.model.path: %s does not lie under model.mountPath %s" .path .pool.model.path .pool.model.mountPath) -}}
{{- end -}}
{{- if gt (int $trainer.gpusPerNode) 0 -}}
{{- $gpus := mul $nodes $trainer.gpusPerNode -}}
{{- if ne $gpus $world -}}
{{- fail (printf "%s.trainer: %d nodes * %d gpusPerNode = %d GPUs, but tensorParallel %d * dataParallel %d = %d ranks; one rank needs one GPU" .path $nodes (int $trainer.gpusPerNode) $gpus (int $trainer.tensorParallel) (int $trainer.dataParallel) $world) -}}
{{- end -}}
{{- else if mod $world $nodes -}}
{{- fail (printf "%s.trainer.nodes: %d nodes cannot share tensorParallel %d * dataParallel %d = %d ranks evenly" .path $nodes (int $trainer.tensorParallel) (int $trainer.dataParallel) $world) -}}
{{- end -}}
{{- if and (eq $trainer.launcher "leaderworkerset") (lt $nodes 2) -}}
{{- fail (printf "%s.trainer.launcher: leaderworkerset is for 2 or more nodes" .path) -}}
{{- end -}}
{{- if and (gt (int $trainer.replicas) 1) (gt $nodes 1) (ne $trainer.launcher "leaderworkerset") -}}
{{- fail (printf "%s.trainer.replicas: %d trainers of %d nodes each need launcher leaderworkerset; a StatefulSet is one trainer, or trainers of one node" .path (int $trainer.replicas) $nodes) -}}
{{- end -}}
{{- include "tinkermesh.checkGrace" (dict "path" (printf "%s.trainer" .path) "values" $trainer "drain" 60 "more" 30) -}}
{{- end -}}

{{/* Prefill and decode samplers are of no use alone, and pair only if they are alike (docs/operate.md). */}}
{{- define "tinkermesh.checkLegs" -}}
{{- $prefill := .pool.samplers.prefill -}}
{{- $decode := .pool.samplers.decode -}}
{{- $first := include "tinkermesh.samplerRuns" $prefill -}}
{{- $second := include "tinkermesh.samplerRuns" $decode -}}
{{- if and $first (not $second) -}}
{{- fail (printf "%s.samplers.decode.replicas: 0, but samplers.prefill runs, whose blocks only decode samplers use; give both replicas, or neither" .path) -}}
{{- end -}}
{{- if and $second (not $first) -}}
{{- fail (printf "%s.samplers.prefill.replicas: 0, but samplers.decode runs, which computes no prompt itself; give both replicas, or neither" .path) -}}
{{- end -}}
{{- if $first -}}
{{- range $field := list "blockSize" "dtype" -}}
{{- $ours := include "tinkermesh.saidSetting" (dict "settings" $prefill.settings "field" $field) -}}
{{- $theirs := include "tinkermesh.saidSetting" (dict "settings" $decode.settings "field" $field) -}}
{{- if ne $ours $theirs -}}
{{- fail (printf "%s.samplers.decode.settings.%s: %s, but %s in samplers.prefill; they would never pair: say the same in both" $.path $field $theirs $ours) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasKey .pool.tier.volume "emptyDir" -}}
{{- fail (printf "%s.tier.volume.emptyDir: belongs to one pod, so no other would see its blocks; name a volume that all pods of the node share, such as hostPath" .path) -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.saidSetting" -}}
{{- if hasKey .settings .field -}}{{ include "tinkermesh.plain" (get .settings .field) }}{{- else -}}not set{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkGrace" -}}
{{- $drain := .values.settings.drainSeconds | default .drain -}}
{{- $needed := addf $drain .more 5 -}}
{{- if lt (float64 .values.terminationGracePeriodSeconds) $needed -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is less than draining takes (%.0f s)" .path (int .values.terminationGracePeriodSeconds) $needed) -}}
{{- end -}}
{{- end -}}

{{- define "tinkermesh.checkAutoscaling" -}}
{{- with .values.autoscaling -}}
{{- if and (eq .kind "keda") (not .triggers) (not .queueAgeSeconds) -}}
{{- fail (printf "%s.autoscaling.triggers: KEDA needs at least one" $.path) -}}
{{- end -}}
{{- if and (eq .kind "keda") .queueAgeSeconds (not .prometheusUrl) -}}
{{- fail (printf "%s.autoscaling.prometheusUrl: missing; KEDA asks it for the queue's age" $.path) -}}
{{- end -}}
{{- if and (eq .kind "none") .queueAgeSeconds -}}
{{- fail (printf "%s.autoscaling.queueAgeSeconds: autoscaling.kind is none; say hpa or keda" $.path) -}}
{{- end -}}
{{- if and (ne .kind "none") (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "%s.autoscaling.maxReplicas: %d is below minReplicas %d" $.path (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every GPU of the node is given to one pod, and no pod waits for ever. */}}
{{- define "tinkermesh.checkSingleNode" -}}
{{- $has := int .root.Values.singleNode.gpus -}}
{{- if $has -}}
{{- $parts := list -}}
{{- $used := 0 -}}
{{- range $name, $pool := .pools -}}
{{- if gt (int $pool.trainer.nodes) 1 -}}
{{- fail (printf "pools.%s.trainer.nodes: %d, but singleNode.gpus says that there is one node" $name (int $pool.trainer.nodes)) -}}
{{- end -}}
{{- $taken := mul $pool.trainer.gpusPerNode $pool.trainer.replicas -}}
{{- $used = add $used $taken -}}
{{- $parts = append $parts (printf "pools.%s.trainer %d" $name $taken) -}}
{{- range $role, $sampler := $pool.samplers -}}
{{- $most := int $sampler.replicas -}}
{{- if ne $sampler.autoscaling.kind "none" -}}{{- $most = int $sampler.autoscaling.maxReplicas -}}{{- end -}}
{{- $gpus := mul $most $sampler.gpus -}}
{{- $used = add $used $gpus -}}
{{- if or (eq $role "both") (include "tinkermesh.samplerRuns" $sampler) -}}
{{- $parts = append $parts (printf "pools.%s.samplers.%s %d" $name $role $gpus) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne $used $has -}}
{{- fail (printf "singleNode.gpus: the node has %d, the pools take %d (%s); %s" $has $used (join ", " $parts) (ternary "take fewer" "give the rest to a trainer or a sampler, or lower singleNode.gpus" (gt $used $has))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
