-- Keys and tenants: two hashes of JSON records and the number of their changes.

-- KEYS: hash, version counter. ARGV: field, the record as it was read ('' = none), the new one.
-- Answers the new version, or 0 when the record has changed meanwhile: nothing was written then.
register('tenancy_swap', function(keys, args)
  local current = redis.call('HGET', keys[1], args[1]) or ''
  if current ~= args[2] then return 0 end
  redis.call('HSET', keys[1], args[1], args[3])
  return redis.call('INCR', keys[2])
end)

-- KEYS: sessions of a tenant, the string that remembers this idempotency key. ARGV: proposed session
-- id, how long the key is remembered (ms, 0 = there is none), limit of open sessions (0 = none).
-- Answers the session id of this key. A repeat is never refused.
register('tenant_session', function(keys, args)
  local held = args[2] ~= '0' and redis.call('GET', keys[2])
  if held then return held end
  local open, limit = redis.call('ZCARD', keys[1]), tonumber(args[3])
  if limit > 0 and open >= limit then
    return refuse('busy', 'quota sessions: ' .. int(open) .. ' of ' .. int(limit)
      .. ' are open; finish one, or ask your operator to raise the quota')
  end
  redis.call('ZADD', keys[1], int(now_ms()), args[1])
  if args[2] ~= '0' then redis.call('SET', keys[2], args[1], 'PX', args[2]) end
  return args[1]
end)
