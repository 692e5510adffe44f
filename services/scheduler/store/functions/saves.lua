-- Saves after their capture, and the names of snapshots.

-- Whether an earlier save of the same artifact has not settled: a death now would publish it once more.
local function follows_another(context, key, model, op)
  local seq, name = unpack(redis.call('HMGET', request_row(context, key), 'seq', 'artifact'))
  for _, other in ipairs(redis.call('SMEMBERS', context.prefix .. ':capturing')) do
    local row = redis.call('HMGET', request_row(context, other), 'parent', 'op', 'artifact', 'seq')
    if row[1] == model and row[2] == op and row[3] == name and decimal_less(row[4] or '', seq) then return true end
  end
  return false
end

-- args: term, retention_ms, request key, action (done | failed), data, category, checkpoint path. The
-- artifact a save captured is published, or has failed. Answers OK, settled, or later: an earlier save of the
-- same artifact settles first.
register('artifact_settle', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, key = begin(keys[1], args[2]), args[3]
  local state, model, op = unpack(redis.call('HMGET', request_row(context, key), 'state', 'parent', 'op'))
  if state ~= 'captured' then
    redis.call('SREM', context.prefix .. ':capturing', key)
    return 'settled'
  end
  if args[4] == 'done' and follows_another(context, key, model, op) then return 'later' end
  capture_over(context, key)
  if args[4] == 'done' then
    settle_row(context, key, 'done', args[5])
    local fields = { save_weights = 'last_checkpoint', save_for_sampler = 'last_snapshot' }
    if fields[op] then redis.call('HSET', model_row(context, model), fields[op], args[7]) end
  else
    fail_row(context, key, tonumber(args[6]), args[5])
  end
  advance(context, model)  -- an ending model waits for its saves
  finish(context)
  return 'OK'
end)

-- args: term, model, name ("" = unnamed), request key. The name a snapshot gets: a given one is remembered,
-- an unnamed one gets the model's next number that no named save took; numbers are never used twice. A request
-- that runs again keeps its number.
register('snapshot_name', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local names, name, row = keys[1] .. ':names:' .. args[2], args[3], row_key(keys[1], args[4])
  if name ~= '' then
    redis.call('SADD', names, name)
    return name
  end
  local given = redis.call('HGET', row, 'artifact')
  if given and given ~= '' then return given end
  repeat
    name = int(redis.call('HINCRBY', keys[1] .. ':model:' .. args[2], 'snapshots', 1))
  until redis.call('SISMEMBER', names, name) == 0
  redis.call('HSET', row, 'artifact', name)
  return name
end)
