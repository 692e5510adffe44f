-- What becomes of results after their settlement. KEYS[1] is the pool prefix.

-- ARGV: how many. Results past their retention are dropped; their rows stay (IDEM-06). Answers how many.
register('expire_results', function(keys, args)
  local context = { prefix = keys[1] }
  local due = redis.call('ZRANGEBYSCORE', keys[1] .. ':expiring', '-inf', int(now_ms()), 'LIMIT', 0, tonumber(args[1]))
  for _, key in ipairs(due) do
    drop_result(context, key)
    redis.call('ZREM', keys[1] .. ':expiring', key)
  end
  return #due
end)

-- nil, or why this is no longer the result of that request.
local function outdated(row, request_id)
  local held, state, expires = unpack(redis.call('HMGET', row, 'request_id', 'state', 'expires_ms'))
  if held ~= request_id or (state ~= 'done' and state ~= 'failed') then return 'replaced' end
  if expires ~= '0' and now_ms() >= tonumber(expires) then return 'expired' end
end

-- ARGV: request key, request id, name of the file that holds the whole result now, its size. Answers 1, or 0
-- when the result has gone or lies in a file already: then nobody names this one.
register('result_moved', function(keys, args)
  local context, key = { prefix = keys[1] }, args[1]
  local row = request_row(context, key)
  local upload = redis.call('HGET', row, 'result_upload') or ''
  if outdated(row, args[2]) or string.sub(upload, 1, 5) == 'blob-' then return 0 end
  drop_result(context, key)
  redis.call('HSET', row, 'result_upload', args[3], 'result_segments', '1', 'result_bytes', args[4])
  count_result(context, key, tonumber(args[4]))
  return 1
end)

-- ARGV: request key, request id, how long ago (ms), … Small results that were handed to a gateway whose client
-- waits for them. Answers how many are still what they were.
register('results_handed', function(keys, args)
  local now, count = now_ms(), 0
  for index = 1, #args, 3 do
    local row = row_key(keys[1], args[index])
    local request_id, settled = unpack(redis.call('HMGET', row, 'request_id', 'settled_ms'))
    if request_id == args[index + 1] then
      redis.call('HSETNX', row, 'delivered_ms', int(math.max(now - tonumber(args[index + 2]), tonumber(settled or 0))))
      count = count + 1
    end
  end
  return count
end)

-- ARGV: request key, request id, grace (ms). Its client has the whole result: it goes after the grace instead
-- of the retention, if that is sooner.
register('result_delivered', function(keys, args)
  local prefix, key = keys[1], args[1]
  local row = row_key(prefix, key)
  local until_ms = now_ms() + tonumber(args[3])
  local expires, kind = unpack(redis.call('HMGET', row, 'expires_ms', 'kind'))
  if outdated(row, args[2]) then return 0 end
  redis.call('HSETNX', row, 'delivered_ms', int(now_ms()))
  if expires == '0' or tonumber(expires) <= until_ms then return 0 end
  redis.call('HSET', row, 'expires_ms', int(until_ms))
  redis.call('ZADD', prefix .. ':expiring', int(until_ms), key)
  if kind == 'sample' then redis.call('ZADD', prefix .. ':samples_settled', int(until_ms), key) end
  return 1
end)
