-- The circuit breaker of a pool's trainer: `broken` names the incarnation that is not given work any more.

-- args: term, incarnation, reason.
register('breaker_open', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  redis.call('HSET', keys[1] .. ':cell', 'broken', args[2], 'broken_reason', args[3])
  redis.call('HINCRBY', keys[1] .. ':counters', 'breaker_trips_total', 1)
  return 1
end)

-- args: term. A unit of the next incarnation succeeded.
register('breaker_close', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  return redis.call('HDEL', keys[1] .. ':cell', 'broken', 'broken_reason')
end)

-- Answers {incarnation, reason}, of '' while the breaker is closed.
register('breaker_read', function(keys)
  local broken, reason = unpack(redis.call('HMGET', keys[1] .. ':cell', 'broken', 'broken_reason'))
  return { broken or '', reason or '' }
end)
