-- The term lease of a pool. Terms only grow; the lease decides who tries, the term is what the
-- trainer and every dispatching function check.

-- args: replica, ttl_ms, life (one process's own). Answers {term} when held, else {'', replica that holds it, ms left}.
register('lease_acquire', function(keys, args)
  local lease, now = keys[1] .. ':lease', now_ms()
  local term, holder, expires, life = unpack(redis.call('HMGET', lease, 'term', 'replica', 'expires_ms', 'life'))
  local left = tonumber(expires or 0) - now
  if left > 0 and life == args[3] then
    redis.call('HSET', lease, 'expires_ms', int(now + tonumber(args[2])))
    return { term }
  end
  if left > 0 then return { '', holder, left } end
  term = int(tonumber(term or 0) + 1)
  redis.call('HSET', lease, 'term', term, 'replica', args[1], 'life', args[3],
    'expires_ms', int(now + tonumber(args[2])))
  if left < -60000 then
    -- Nobody led for long: that time does not count against a client's missing command.
    for _, id in ipairs(redis.call('ZRANGE', keys[1] .. ':gaps', 0, -1)) do
      redis.call('ZADD', keys[1] .. ':gaps', now, id)
    end
  end
  return { term }
end)

-- args: term, life, ttl_ms. Answers 1, or 0 when the lease is lost.
register('lease_renew', function(keys, args)
  local lease, now = keys[1] .. ':lease', now_ms()
  local term, holder, expires = unpack(redis.call('HMGET', lease, 'term', 'life', 'expires_ms'))
  if term ~= args[1] or holder ~= args[2] or tonumber(expires) <= now then return 0 end
  redis.call('HSET', lease, 'expires_ms', int(now + tonumber(args[3])))
  return 1
end)

-- args: term, life. The next replica need not wait for the end of the lease.
register('lease_release', function(keys, args)
  local lease = keys[1] .. ':lease'
  local term, holder = unpack(redis.call('HMGET', lease, 'term', 'life'))
  if term ~= args[1] or holder ~= args[2] then return 0 end
  redis.call('HSET', lease, 'expires_ms', int(now_ms()))
  publish_ready(keys[1], 'lease')
  return 1
end)
