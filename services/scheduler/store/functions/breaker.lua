-- The circuit breaker of a trainer: `broken` names the incarnation that is not given work any more.

-- args: term, cell, incarnation, reason.
register('breaker_open', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  redis.call('HSET', cell_key(keys[1], args[2], 'cell'), 'broken', args[3], 'broken_reason', args[4])
  redis.call('HINCRBY', keys[1] .. ':counters', 'breaker_trips_total', 1)
  return 1
end)

-- args: term, cell. A unit of the next incarnation succeeded.
register('breaker_close', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  return redis.call('HDEL', cell_key(keys[1], args[2], 'cell'), 'broken', 'broken_reason')
end)

-- args: cell. Answers {incarnation, reason}, of '' while the breaker is closed.
register('breaker_read', function(keys, args)
  local broken, reason = unpack(redis.call('HMGET', cell_key(keys[1], args[1], 'cell'), 'broken', 'broken_reason'))
  return { broken or '', reason or '' }
end)
