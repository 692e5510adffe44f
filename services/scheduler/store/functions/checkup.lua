-- Who runs the consistency check: one replica at a time, under a lock that runs out by itself.

-- KEYS: the lock of the check, its last report. ARGV: token, life of the server, report (JSON). Tells the end of
-- a check. Once another has taken over, whose time began when this one's ran out, nothing is touched. Answers 1, or 0 then.
register('check_over', function(keys, args)
  local holder = redis.call('GET', keys[1])
  if holder and holder ~= args[1] then return 0 end
  redis.call('HSET', keys[2], 'life', args[2], 'report', args[3])
  redis.call('DEL', keys[1])
  return 1
end)

-- KEYS: the lock. ARGV: token. Of a check that failed: the next may begin at once.
register('check_given_up', function(keys, args)
  if redis.call('GET', keys[1]) ~= args[1] then return 0 end
  return redis.call('DEL', keys[1])
end)
