-- Recorded sequences after their sample has settled. records is a zset: "<tenant> <request key> <index>" -> when
-- it ends, unix ms. What is in it is there, counts against its tenant (`records` of its usage), and nothing
-- else says so.

-- ARGV: tenant, how long (ms) each lives from now on, then request key, index, … Answers 1 for each of this
-- tenant's that is there, else 0: what is not is not touched.
register('records_renew', function(keys, args)
  local records, now, found = keys[1] .. ':records', now_ms(), {}
  for i = 3, #args, 2 do
    local member = args[1] .. ' ' .. args[i] .. ' ' .. args[i + 1]
    local ends = redis.call('ZSCORE', records, member)
    local there = ends and tonumber(ends) > now
    if there then redis.call('ZADD', records, int(now + tonumber(args[2])), member) end
    found[#found + 1] = there and 1 or 0
  end
  return found
end)

-- ARGV: how many. Answers how many ended.
register('records_sweep', function(keys, args)
  local prefix = keys[1]
  local records = prefix .. ':records'
  local due = redis.call('ZRANGEBYSCORE', records, '-inf', int(now_ms()), 'LIMIT', 0, tonumber(args[1]))
  for _, member in ipairs(due) do
    local tenant, key, index = string.match(member, '^(.*) (%S+) (%S+)$')
    local record = prefix .. ':record:' .. key .. ':' .. index
    redis.call('HINCRBY', prefix .. ':usage:' .. tenant, 'records', int(0 - redis.call('STRLEN', record)))
    redis.call('UNLINK', record)
    redis.call('ZREM', records, member)
  end
  return #due
end)
