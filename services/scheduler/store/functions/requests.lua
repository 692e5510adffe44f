-- What waiters need, in one bounded read.

local HEAD = { 'request_id', 'tenant', 'state', 'expires_ms', 'result_bytes', 'op', 'kind', 'parent', 'seq' }

-- A settled request's result and batch parts, or nothing when it is pending or larger than `limit` bytes.
local function small_result(prefix, key, head, limit)
  local size = tonumber(head[5] or 0)
  if (head[3] ~= 'done' and head[3] ~= 'failed') or size == 0 or size > limit then return false, {} end
  local result = redis.call('HGET', row_key(prefix, key), 'result')
  if result then return result, {} end
  return false, redis.call('HGETALL', prefix .. ':out:' .. key)
end

-- args: limit in bytes, request keys. Answers {now_ms, {{head, result, parts (flat hash)} for each key}}.
register('requests_read', function(keys, args)
  local prefix, limit, found = keys[1], tonumber(args[1]), {}
  for index = 2, #args do
    local head = redis.call('HMGET', row_key(prefix, args[index]), unpack(HEAD))
    local result, parts = small_result(prefix, args[index], head, limit)
    found[index - 1] = { head, result, parts }
  end
  return { int(now_ms()), found }
end)
