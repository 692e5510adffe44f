-- Sessions, the directory of their children, and the control plane's own clock.
-- A session's keys carry its own tag; the clock and the index of sessions carry {dir}.

local function checked(prefix, tenant)
  local row = redis.call('HMGET', prefix .. ':session', 'tenant', 'state', 'end_reason')
  if not row[1] then return nil, refuse('gone', 'session is not known to this mesh, or expired long ago') end
  if row[1] ~= tenant then return nil, refuse('forbidden', 'session belongs to another tenant') end
  return { state = row[2], reason = row[3] or '' }, nil
end

local function refuse_ended(session)
  if session.state == 'expired' then
    return refuse('unknown_id', 'session has ended: ' .. session.reason)
  end
  return refuse('unknown_id', 'session is finished; create a new session')
end

-- KEYS: session prefix. ARGV: tenant, then field, value, … Answers now. A repeat changes nothing;
-- with another value in any field it is no repeat, and refused.
register('session_create', function(keys, args)
  local key = keys[1] .. ':session'
  local tenant = redis.call('HGET', key, 'tenant')
  if tenant and tenant ~= args[1] then return refuse('forbidden', 'session belongs to another tenant') end
  for i = 2, tenant and #args or 0, 2 do
    if redis.call('HGET', key, args[i]) ~= args[i + 1] then
      return refuse('key_conflict', 'x-idempotency-key was already used for a session with another ' .. args[i] .. '; send a new key')
    end
  end
  local now = int(now_ms())
  if not tenant then
    redis.call('HSET', key, 'tenant', args[1], 'state', 'open', 'created_ms', now, 'beat_ms', now)
    for i = 2, #args, 2 do redis.call('HSET', key, args[i], args[i + 1]) end
  end
  return now
end)

-- KEYS: session prefix. ARGV: tenant. Answers now.
register('session_beat', function(keys, args)
  local session, refusal = checked(keys[1], args[1])
  if not session then return refusal end
  if session.state ~= 'open' then return refuse('gone', 'session is ' .. session.state .. '; create a new session') end
  local now = int(now_ms())
  redis.call('HSET', keys[1] .. ':session', 'beat_ms', now)
  return now
end)

-- KEYS: session prefix. ARGV: models|samplers, tenant, seq id, value. Write-once: answers the
-- value that holds. The lookup comes before liveness, so a retry after the end finds its answer.
register('session_claim', function(keys, args)
  local session, refusal = checked(keys[1], args[2])
  if not session then return refusal end
  local key = keys[1] .. ':' .. args[1]
  local held = redis.call('HGET', key, args[3])
  if held then return held end
  if session.state ~= 'open' then return refuse_ended(session) end
  redis.call('HSET', key, args[3], args[4])
  return args[4]
end)

-- KEYS: session prefix. ARGV: tenant, detail. Answers the state before.
register('session_finish', function(keys, args)
  local session, refusal = checked(keys[1], args[1])
  if not session then return refusal end
  if session.state == 'open' then
    redis.call('HSET', keys[1] .. ':session', 'state', 'finished', 'end_reason', args[2], 'ended_ms', int(now_ms()))
  end
  return session.state
end)

-- KEYS: session prefix. ARGV: latest beat (unix ms) that counts as too old, reason.
-- Answers {state now, beat_ms}; 'open' = a newer beat keeps it alive; 'gone' = no such session.
register('session_expire', function(keys, args)
  local key = keys[1] .. ':session'
  local row = redis.call('HMGET', key, 'state', 'beat_ms')
  if not row[1] then return { 'gone', '0' } end
  if row[1] ~= 'open' or tonumber(row[2]) > tonumber(args[1]) then return row end
  redis.call('HSET', key, 'state', 'expired', 'end_reason', args[2], 'ended_ms', int(now_ms()))
  return { 'expired', row[2] }
end)

-- KEYS: session prefix. ARGV: how long the ended session stays known, ms.
register('session_retire', function(keys, args)
  for _, part in ipairs({ ':session', ':models', ':samplers' }) do
    redis.call('PEXPIRE', keys[1] .. part, args[1])
  end
  return 1
end)

-- One second of the control plane. KEYS: clock, index of sessions. ARGV: replica, 1 = a gateway is
-- connected here, how long a sweeper may be silent, longest silence that is no outage, grace (ms).
-- While nobody can beat, no lease may run down: after a silence every lease gets it back, plus a
-- grace. Answers {1 = this replica sweeps now, now, credited ms}.
register('session_tick', function(keys, args)
  local clock, index = keys[1], keys[2]
  local now = now_ms()
  local row = redis.call('HMGET', clock, 'alive_ms', 'sweeper', 'sweeper_until_ms')
  local alive = tonumber(row[1] or now)
  local credit = 0
  if args[2] == '1' then
    if now - alive > tonumber(args[4]) then
      credit = now - alive + tonumber(args[5])
      for _, session in ipairs(redis.call('ZRANGE', index, 0, -1)) do
        redis.call('ZINCRBY', index, int(credit), session)
      end
    end
    alive = now
    redis.call('HSET', clock, 'alive_ms', int(now))
  end
  local mine = row[2] == args[1] or not row[2] or tonumber(row[3]) <= now
  if mine then
    redis.call('HSET', clock, 'sweeper', args[1], 'sweeper_until_ms', int(now + tonumber(args[3])))
  end
  local beating = now - alive <= tonumber(args[4])
  return { (mine and beating) and 1 or 0, int(now), int(credit) }
end)

-- KEYS: clock. ARGV: replica. Lets another replica sweep at once.
register('session_stop_sweeping', function(keys, args)
  if redis.call('HGET', keys[1], 'sweeper') == args[1] then
    redis.call('HDEL', keys[1], 'sweeper', 'sweeper_until_ms')
  end
  return 1
end)
