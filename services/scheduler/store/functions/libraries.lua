-- Which releases of the scheduler work on this Redis: one life sign per replica.

local FORGET_MS = 86400000

local function forget_old(replicas, now)
  local flat = redis.call('HGETALL', replicas)
  for index = 1, #flat, 2 do
    if now - cjson.decode(flat[index + 1]).seen_ms > FORGET_MS then redis.call('HDEL', replicas, flat[index]) end
  end
end

-- Another live replica of an older layout, or nil.
local function older_replica(replicas, me, now, layout, alive_ms)
  local flat = redis.call('HGETALL', replicas)
  for index = 1, #flat, 2 do
    local entry = cjson.decode(flat[index + 1])
    if flat[index] ~= me and entry.layout < layout and now - entry.seen_ms <= alive_ms then return flat[index] end
  end
end

-- KEYS: the layout in force, replicas, libraries. ARGV: replica, layout, library, how long a replica
-- counts as alive (ms). Answers {ok | newer | older, what it met}: a layout never goes back, and goes
-- forward only once no replica of the older one is alive. Nothing is written unless ok.
register('library_beat', function(keys, args)
  local now, layout = now_ms(), tonumber(args[2])
  local held = tonumber(redis.call('GET', keys[1]) or 0)
  if held > layout then return { 'newer', int(held) } end
  local older = older_replica(keys[2], args[1], now, layout, tonumber(args[4]))
  if older then return { 'older', older } end
  redis.call('SET', keys[1], int(layout))
  redis.call('HSET', keys[2], args[1], cjson.encode({ layout = layout, library = args[3], seen_ms = now }))
  redis.call('ZADD', keys[3], int(now), args[3])
  forget_old(keys[2], now)
  return { 'ok', '' }
end)

-- KEYS: replicas. ARGV: replica.
register('library_leave', function(keys, args)
  return redis.call('HDEL', keys[1], args[1])
end)

-- KEYS: libraries. ARGV: how long one is kept after its last use (ms), the libraries that are loaded.
-- Answers those nobody has used for so long; one that is seen for the first time counts as used now.
register('library_unused', function(keys, args)
  local now, unused = now_ms(), {}
  for index = 2, #args do
    local used = redis.call('ZSCORE', keys[1], args[index])
    if not used then
      redis.call('ZADD', keys[1], int(now), args[index])
    elseif now - tonumber(used) > tonumber(args[1]) then
      table.insert(unused, args[index])
      redis.call('ZREM', keys[1], args[index])
    end
  end
  return unused
end)
