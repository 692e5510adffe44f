-- Which trainers and samplers live in a pool. An entry not renewed for a while is dead; the
-- reader decides by the age that `registry_list` returns.

local FORGET_MS = 600000

local function forget_old(key, now)
  local entries = redis.call('HGETALL', key)
  for i = 1, #entries, 2 do
    local seen = tonumber(cjson.decode(entries[i + 1]).seen_ms)
    if now - seen > FORGET_MS then redis.call('HDEL', key, entries[i]) end
  end
end

-- KEYS: pool prefix. ARGV: trainers|samplers, id, incarnation, registration (text), trainer|sample, cell (of a trainer).
-- Answers 1 when this incarnation is new; the lease holder is woken then. One that the pool was taken
-- from is refused: its slots are not what the pool's models are any more.
register('registry_renew', function(keys, args)
  local key = keys[1] .. ':' .. args[1]
  local now = now_ms()
  local held = redis.call('HGET', key, args[2])
  local since = int(now)
  local fresh = 1
  if redis.call('ZSCORE', keys[1] .. ':superseded', args[3]) then
    if held and cjson.decode(held).incarnation == args[3] then redis.call('HDEL', key, args[2]) end
    return refuse('stale_fence', 'incarnation ' .. args[3] .. ' was superseded by another one; this process must end and start anew')
  end
  if held then
    local entry = cjson.decode(held)
    if entry.incarnation == args[3] then
      since = entry.since_ms
      fresh = 0
    end
  end
  local cell = args[6] or ''
  local entry = { incarnation = args[3], since_ms = since, seen_ms = int(now), registration = args[4], cell = cell }
  if cell ~= '' and cell ~= FIRST_CELL then redis.call('SADD', keys[1] .. ':cells', cell) end
  redis.call('HSET', key, args[2], cjson.encode(entry))
  if fresh == 1 then
    forget_old(key, now)
    publish_ready(keys[1], args[5])
  end
  return fresh
end)

local function draining_key(prefix, kind)
  return prefix .. (kind == 'samplers' and ':draining_samplers' or ':draining')
end

-- KEYS: pool prefix. ARGV: trainers|samplers. Answers {now, {id, entry, …}, {draining ids}}.
register('registry_list', function(keys, args)
  local members = redis.call('HGETALL', keys[1] .. ':' .. args[1])
  local draining = redis.call('SMEMBERS', draining_key(keys[1], args[1]))
  return { int(now_ms()), members, draining }
end)

-- KEYS: pool prefix. ARGV: the facts as they were read ('' = none), the new ones.
-- Answers 1 when they were replaced, 0 when somebody else was faster.
register('registry_set_facts', function(keys, args)
  local key = keys[1] .. ':facts'
  local current = redis.call('GET', key) or ''
  if current ~= args[1] then return 0 end
  redis.call('SET', key, args[2])
  return 1
end)

-- KEYS: pool prefix. ARGV: id, 1 = drain, 0 = resume, trainers|samplers.
register('registry_drain', function(keys, args)
  local kind = args[3]
  if redis.call('HEXISTS', keys[1] .. ':' .. kind, args[1]) == 0 then
    local field = kind == 'samplers' and 'sampler_id ' or 'trainer_id '
    return refuse('unknown_id', field .. args[1] .. ' is not registered in this pool')
  end
  if args[2] == '1' then
    redis.call('SADD', draining_key(keys[1], kind), args[1])
  else
    redis.call('SREM', draining_key(keys[1], kind), args[1])
  end
  publish_ready(keys[1], kind == 'samplers' and 'sample' or 'trainer')
  return 1
end)
