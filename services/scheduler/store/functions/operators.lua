-- What operators change by hand. Each checks everything first and says why it does not: whatever runs under a
-- live fence is left alone, so that nothing takes effect twice.

local function unknown_model(id)
  return refuse('unknown_id', 'model_id ' .. id .. ' is not known in this pool; ListModels names those that live')
end

local function closed_model(row)
  return refuse('model_closed', 'model is closed: ' .. (redis.call('HGET', row, 'reason') or ''))
end

-- nil, or why this model cannot give up its slot now.
local function stays_seated(context, id)
  local row = model_row(context, id)
  local state, phase, inflight, slot, doomed, base =
    unpack(redis.call('HMGET', row, 'state', 'phase', 'inflight', 'slot', 'doomed', 'base'))
  if not state then return unknown_model(id) end
  if state == 'closed' then return closed_model(row) end
  if doomed == '1' then return refuse('in_use', 'model is being closed already; its slot goes with it') end
  if not slot or slot == '' then return refuse('in_use', 'model holds no slot now') end
  if tonumber(inflight or 0) > 0 then
    return refuse('in_use', 'a unit runs on slot ' .. slot .. ' now; try again when it has settled, or drain the trainer first')
  end
  if redis.call('HEXISTS', context.prefix .. ':durables_running', id) == 1 then
    return refuse('in_use', 'a durable point of this model is being written; try again when it is published')
  end
  if phase ~= 'live' then return refuse('in_use', 'model is ' .. (phase or 'creating') .. ': its slot is being filled') end
  if (base or '') == '' then
    return refuse('in_use', 'this model began before its commands were logged: nothing could bring it back')
  end
end

-- args: retention_ms, model. Its base and its log bring it back as soon as it has work and a slot is free.
register('operator_unseat', function(keys, args)
  local context, id = begin(keys[1], args[1]), args[2]
  local problem = stays_seated(context, id)
  if problem then return problem end
  release_slot(context, id)
  unseat(context, id, '0')
  finish(context)
  return 'OK'
end)

-- args: retention_ms, model, reason. What waits fails with it; under a running unit the close completes when
-- that one settles. Answers the state: closed, or closing.
register('operator_close', function(keys, args)
  local context, id = begin(keys[1], args[1]), args[2]
  local row = model_row(context, id)
  local state, doomed = unpack(redis.call('HMGET', row, 'state', 'doomed'))
  if not state then return unknown_model(id) end
  if state == 'closed' then return closed_model(row) end
  if doomed == '1' then return refuse('in_use', 'model is being closed already; it is closed once its unit has settled') end
  close_model(context, id, SERVER, args[3] .. restore_text(context, id))
  context.wake = true
  finish(context)
  return redis.call('HGET', row, 'state') == 'closed' and 'closed' or 'closing'
end)

local BY_HAND = 'put back by an operator'

local function request_text(state)
  if state == 'queued' then return 'it waits already' end
  if state == 'captured' then return 'its copy is taken and its files are being published; that ends by itself' end
  return 'it is settled (' .. state .. '); a settled request never runs again'
end

-- The unit that is said to run it: {id, incarnation, items}, or nil.
local function unit_of(context, key, units)
  for name in string.gmatch(units or '', '%S+') do
    local state, incarnation, items, cell =
      unpack(redis.call('HMGET', unit_key(context.prefix, name), 'state', 'incarnation', 'items', 'cell'))
    if state == 'running' then
      for _, item in ipairs(cjson.decode(items)) do
        if item.k == key and not item.x then
          return { id = name, incarnation = incarnation, items = cjson.decode(items), cell = cell or FIRST_CELL }
        end
      end
    end
  end
end

-- nil, or why what this unit holds cannot wait again.
local function unit_stays(context, unit)
  local live = redis.call('HGET', cell_key(context.prefix, unit.cell, 'cell'), 'incarnation')
  if unit.incarnation == live then
    local term = redis.call('HGET', context.prefix .. ':lease', 'term') or '0'
    return refuse('in_use', 'it runs in unit ' .. unit.id .. ' under the live fence of term ' .. term .. ' and incarnation ' .. live
      .. '; where that trainer hangs, end its process: the next one takes the command back by itself')
  end
  for _, item in ipairs(unit.items) do
    local row = item.k and redis.call('HMGET', request_row(context, item.k), 'state', 'issued') or {}
    if item.c == 1 or item.x or not item.k then
      return refuse('in_use', 'unit ' .. unit.id .. ' is not one of commands only; the takeover of its pool puts it back')
    end
    if row[1] == 'running' and tonumber(row[2]) ~= item.f + item.n then
      return refuse('in_use', 'later datums than those of unit ' .. unit.id .. ' have been issued since; close the model instead')
    end
  end
end

-- Units of a model that run now.
local function count_flying(context, id)
  local count = 0
  for _, name in ipairs(redis.call('SMEMBERS', context.prefix .. ':units')) do
    for _, item in ipairs(cjson.decode(redis.call('HGET', unit_key(context.prefix, name), 'items') or '[]')) do
      if item.m == id then count = count + 1 end
    end
  end
  return count
end

local function put_back(context, item)
  local row = request_row(context, item.k)
  local state, reported, flying = unpack(redis.call('HMGET', row, 'state', 'reported', 'flying'))
  if state == 'running' then
    redis.call('HINCRBY', row, 'issued', -item.n)
    redis.call('HSET', row, 'flying', int(math.max(0, tonumber(flying) - 1)), 'group', item.k)
    if reported == '0' then redis.call('HSET', row, 'state', 'queued') end
    note_event(context, row, 'queued', '', '', BY_HAND)
  end
  redis.call('HSET', model_row(context, item.m), 'inflight', int(count_flying(context, item.m)))
end

local function requeue_command(context, key, units)
  local unit = unit_of(context, key, units)
  if not unit then
    return refuse('in_use', 'no unit is recorded as running it: whether it took effect cannot be known; '
      .. 'close its model (EvictModel with close) and let its client restore from a checkpoint')
  end
  local problem = unit_stays(context, unit)
  if problem then return problem end
  redis.call('HSET', unit_key(context.prefix, unit.id), 'state', 'lost')
  redis.call('EXPIRE', unit_key(context.prefix, unit.id), 3600)
  redis.call('SREM', context.prefix .. ':units', unit.id)
  for _, item in ipairs(unit.items) do
    put_back(context, item)
    advance(context, item.m)
  end
  context.wake = true
  finish(context)
  return #unit.items
end

-- Whether the life of the sampler that a sample was given to is over, as far as its registrations say.
local function sampler_lost(context, sampler, issued, valid_ms)
  local text = redis.call('HGET', context.prefix .. ':samplers', sampler)
  if not text then return true end
  local entry = cjson.decode(text)
  return context.now - tonumber(entry.seen_ms) > valid_ms or tonumber(entry.since_ms) > tonumber(issued or 0)
end

local function requeue_sample(context, key, row, valid_ms)
  local sampler = redis.call('HGET', context.prefix .. ':samples_running', key)
  if sampler and not sampler_lost(context, sampler, row.issued_ms, valid_ms) then
    return refuse('in_use', 'it runs on sampler ' .. sampler .. ', which is alive; where that one hangs, end its process')
  end
  redis.call('HSET', request_row(context, key), 'state', 'queued')
  note_event(context, request_row(context, key), 'queued', '', '', BY_HAND)
  redis.call('HDEL', context.prefix .. ':samples_running', key)
  redis.call('ZADD', context.prefix .. ':samples', row.arrival, key)
  publish_ready(context.prefix, 'requeued')
  return 1
end

-- args: retention_ms, request key, request id, after how long (ms) a sampler that does not register is lost.
-- What was lost with its trainer or sampler waits again, together with all of its unit. Answers how many do.
register('operator_requeue', function(keys, args)
  local context, key, row = begin(keys[1], args[1]), args[2], {}
  for _, name in ipairs({ 'request_id', 'kind', 'state', 'units', 'issued_ms', 'arrival' }) do
    row[name] = redis.call('HGET', request_row(context, key), name)
  end
  if row.request_id ~= args[3] then return refuse('unknown_id', 'request_id ' .. args[3] .. ' is not known') end
  if row.state ~= 'running' then return refuse('in_use', request_text(row.state)) end
  if row.kind == 'sample' then return requeue_sample(context, key, row, tonumber(args[4])) end
  return requeue_command(context, key, row.units)
end)
