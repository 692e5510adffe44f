-- Generations under way: what is sampled for a client that waits on a connection, without a request row.
-- They count as samples in flight (_quota.lua) for as long as the replica that serves them renews them.

-- ARGV: tenant, generation id, prompts, how long it counts without being renewed (ms), limit of open samples
-- of the tenant, the limits (_quota.lua). What it costs in tokens is not known yet.
register('generation_admit', function(keys, args)
  local prefix, tenant, id, lease = keys[1], args[1], args[2], tonumber(args[4])
  local context, prompts = begin(prefix, 0), tonumber(args[3])
  local held = generations_key(prefix, tenant)
  if redis.call('ZSCORE', held, id .. ':0') then return prompts end -- a repeat
  local most, open = tonumber(args[5]), open_samples(context, tenant)
  if most > 0 and open >= most then
    return over('samples', int(open) .. ' of ' .. int(most) .. ' are in flight', 'await some of them')
  end
  local limits = limits_of(args[6])
  local busy = quota_refusal(context, tenant, limits, 0, false, true)
  if busy then return busy end
  for index = 0, prompts - 1 do redis.call('ZADD', held, int(context.now + lease), id .. ':' .. index) end
  redis.call('PEXPIRE', held, int(lease))
  if limits and limits.requests > 0 then
    take(context, usage_key(context, tenant), 'req', limits.requests, request_burst(limits), 1)
  end
  return prompts
end)

-- ARGV: tenant, tokens, the limits. Its prompts are tokens now; what they may take may be a debt.
register('generation_charge', function(keys, args)
  local context, limits = begin(keys[1], 0), limits_of(args[3])
  if limits and limits.tokens > 0 then
    take(context, usage_key(context, args[1]), 'tok', limits.tokens / 60, limits.tokens, tonumber(args[2]))
  end
  return 1
end)

-- ARGV: tenant, how long it counts from now on (ms), then generation id, prompts, …
register('generation_renew', function(keys, args)
  local held, lease = generations_key(keys[1], args[1]), tonumber(args[2])
  local ends = int(now_ms() + lease)
  for i = 3, #args, 2 do
    for index = 0, tonumber(args[i + 1]) - 1 do redis.call('ZADD', held, ends, args[i] .. ':' .. index) end
  end
  redis.call('PEXPIRE', held, int(lease))
  return 1
end)

-- ARGV: tenant, generation id, prompts.
register('generation_end', function(keys, args)
  local held = generations_key(keys[1], args[1])
  for index = 0, tonumber(args[3]) - 1 do redis.call('ZREM', held, args[2] .. ':' .. index) end
  return 1
end)
