-- Clients of a sampling session: each has its own block of seq ids and its own list of completions.

-- Above the ids that clients draw for themselves (1 to 10^9), and times 10^9 still within int64.
local FIRST_JOINED = 1000000001

-- {tenant}, or the refusal.
local function owned(prefix, session, tenant)
  local owner = redis.call('HGET', prefix .. ':sampling:' .. session, 'tenant')
  if not owner then return refuse('unknown_id', 'sampling_session_id is not known, or its session is gone') end
  if owner ~= tenant then return refuse('forbidden', 'sampling session belongs to another tenant') end
  return nil
end

-- ARGV: sampling session id, tenant, name of this call ('' = it has none), how long a repeat of it is
-- answered the same (ms). Answers a number no other client of the session has.
register('sampling_join', function(keys, args)
  local prefix, session = keys[1], args[1]
  local refusal = owned(prefix, session, args[2])
  if refusal then return refusal end
  local call = prefix .. ':sampling_join:' .. session .. ':' .. args[3]
  local held = args[3] ~= '' and redis.call('GET', call)
  if held then return held end
  local joined = redis.call('HINCRBY', prefix .. ':sampling:' .. session, 'clients', 1)
  local number = int(FIRST_JOINED - 1 + joined)
  if args[3] ~= '' then redis.call('SET', call, number, 'PX', args[4]) end
  return number
end)

-- ARGV: sampling session id, tenant, clone, cursor, how many. What is at or before the cursor was seen
-- and goes. Answers {"<bytes|failed> <request id>", number, …} behind it.
register('completions_read', function(keys, args)
  local prefix, session = keys[1], args[1]
  local refusal = owned(prefix, session, args[2])
  if refusal then return refusal end
  local list = completions_key(prefix, session, args[3])
  redis.call('ZREMRANGEBYSCORE', list, '-inf', args[4])
  return redis.call('ZRANGEBYSCORE', list, '(' .. args[4], '+inf', 'WITHSCORES', 'LIMIT', 0, args[5])
end)

-- ARGV: sampling session id, clone, cursor, … Answers {tenant or '', completions behind the cursor, …}.
register('completions_waiting', function(keys, args)
  local prefix, found = keys[1], {}
  for i = 1, #args, 3 do
    local list = completions_key(prefix, args[i], args[i + 1])
    found[#found + 1] = redis.call('HGET', prefix .. ':sampling:' .. args[i], 'tenant') or ''
    found[#found + 1] = redis.call('ZCOUNT', list, '(' .. args[i + 2], '+inf')
  end
  return found
end)

-- ARGV: sampling session id, tenant, grace (ms), then request key, request id, … The client has these
-- results: they go after the grace instead of the retention. Others' and unknown ids count for nothing.
register('completions_retrieved', function(keys, args)
  local prefix, session = keys[1], args[1]
  local refusal = owned(prefix, session, args[2])
  if refusal then return refusal end
  local expires, shortened = now_ms() + tonumber(args[3]), 0
  for i = 4, #args, 2 do
    local key = args[i]
    local row = redis.call('HMGET', prefix .. ':req:' .. key, 'parent', 'tenant', 'request_id', 'state', 'expires_ms')
    local settled = row[4] == 'done' or row[4] == 'failed'
    local mine = row[1] == session and row[2] == args[2] and row[3] == args[i + 1]
    if settled and mine and tonumber(row[5]) > expires then
      redis.call('HSET', prefix .. ':req:' .. key, 'expires_ms', int(expires))
      redis.call('ZADD', prefix .. ':expiring', int(expires), key)
      redis.call('ZADD', prefix .. ':samples_settled', int(expires), key)
      shortened = shortened + 1
    end
  end
  return shortened
end)
