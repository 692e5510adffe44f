-- Units: written before the trainer hears of them, settled as a whole exactly once.

local STALE = 'stale'

local function may_issue(context, item)
  if not item.k then return redis.call('HGET', context.prefix .. ':slots', item.s) == 'unload:' .. item.m end
  local state, issued, datums = unpack(redis.call('HMGET', request_row(context, item.k), 'state', 'issued', 'datums'))
  local model_state, doomed = unpack(redis.call('HMGET', model_row(context, item.m), 'state', 'doomed'))
  if doomed == '1' or (state ~= 'queued' and state ~= 'running') then return false end
  if tonumber(issued) ~= item.f or item.f + item.n > tonumber(datums) then return false end
  if item.c == 1 then
    return model_state == 'creating' and redis.call('HGET', context.prefix .. ':slots', item.s) == ''
  end
  return model_state == 'open' or model_state == 'closing'
end

local function mark_issued(context, item, unit)
  local row, model = request_row(context, item.k), model_row(context, item.m)
  redis.call('HINCRBY', row, 'issued', item.n)
  redis.call('HINCRBY', row, 'flying', 1)
  local units = redis.call('HGET', row, 'units')
  redis.call('HSET', row, 'state', 'running', 'units', units == '' and unit or units .. ' ' .. unit)
  if redis.call('HSETNX', row, 'issued_ms', int(context.now)) == 1 then
    local waited = context.now - tonumber(redis.call('HGET', row, 'admitted_ms') or context.now)
    redis.call('HINCRBY', context.prefix .. ':counters', 'started_total', 1)
    redis.call('HINCRBY', context.prefix .. ':counters', 'queue_wait_ms_total', int(waited))
  end
  redis.call('HINCRBY', model, 'inflight', 1)
  if item.c == 1 then
    redis.call('HSET', context.prefix .. ':slots', item.s, item.m)
    redis.call('HSET', model, 'slot', item.s, 'touched', '1')
    redis.call('ZREM', context.prefix .. ':creates', item.m)
  end
end

-- args: term, unit id, incarnation, work, items (JSON), virtual time, then tenant and tag pairs.
-- An item is {k=request key, m=model, f=first datum, n=datums, o=op, s=slot, c=1 for creates}; an
-- unload has no k. Answers OK, or stale when the view has changed: nothing was written then.
register('unit_issue', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, unit = begin(keys[1], 0), unit_key(keys[1], args[2])
  if redis.call('EXISTS', unit) == 1 then return 'OK' end
  local items = cjson.decode(args[5])
  for _, item in ipairs(items) do
    if not may_issue(context, item) then return STALE end
  end

  for _, item in ipairs(items) do
    if item.k then mark_issued(context, item, args[2]) end
  end
  redis.call('HSET', unit, 'term', args[1], 'incarnation', args[3], 'state', 'running', 'work', args[4],
    'items', args[5], 'issued_ms', int(context.now))
  redis.call('SADD', context.prefix .. ':units', args[2])
  redis.call('HSET', context.prefix .. ':served', '', args[6])
  for index = 7, #args, 2 do
    redis.call('HSET', context.prefix .. ':served', args[index], args[index + 1])
  end
  return 'OK'
end)

local function closing_text(op, message)
  return op .. ' failed: ' .. message .. '; create a new model and restore from a checkpoint'
end

local act = {}

-- Some datums of a batch op; with the last of them the request is done.
function act.part(context, item, data)
  local row = request_row(context, item.k)
  redis.call('HSET', context.prefix .. ':out:' .. item.k, int(item.f), data)
  redis.call('HINCRBY', row, 'result_bytes', #data)
  redis.call('HDEL', row, 'group')
  local reported = redis.call('HINCRBY', row, 'reported', item.n)
  if int(reported) == redis.call('HGET', row, 'datums') then settle_row(context, item.k, 'done') end
end

function act.done(context, item, data)
  if item.o == 'optim_step' or item.o == 'load_weights' then
    redis.call('HSET', model_row(context, item.m), 'window_rejected', '0')
  end
  settle_row(context, item.k, 'done', data)
end

-- a: the slot's new load number. A create opens its model, a load goes on with it.
function act.loaded(context, item, data, load_number, layout)
  local row = model_row(context, item.m)
  redis.call('HSET', row, 'load_number', load_number)
  if layout ~= '' then redis.call('HSET', row, 'layout', layout) end
  if item.c == 1 then
    local ending = redis.call('HGET', row, 'ending')
    redis.call('HSET', row, 'state', ending == '1' and 'closing' or 'open')
  end
  act.done(context, item, data)
end

-- data: the name of the artifact that is being written.
function act.captured(context, item, name)
  redis.call('HSET', request_row(context, item.k), 'state', 'captured', 'captured_ms', int(context.now), 'artifact', name)
  redis.call('SADD', context.prefix .. ':capturing', item.k)
end

-- a: category, b: request | model.
function act.fail(context, item, message, category, reach)
  fail_row(context, item.k, tonumber(category), message)
  if item.c == 1 then
    close_model(context, item.m, tonumber(category), message)
  elseif reach == 'model' then
    close_model(context, item.m, SERVER, closing_text(item.o, message))
  elseif item.o == 'forward_backward' then
    redis.call('HINCRBY', model_row(context, item.m), 'window_rejected', 1)
  end
end

-- Nothing of it took effect: its datums wait again, to run with those of the same group.
function act.again(context, item, group)
  local row = request_row(context, item.k)
  redis.call('HINCRBY', row, 'issued', -item.n)
  redis.call('HSET', row, 'group', group)
  redis.call('HINCRBY', context.prefix .. ':counters', 'solo_retries_total', 1)
end

function act.unloaded(context, item)
  redis.call('HSET', context.prefix .. ':slots', item.s, '')
  settle_unload(context, item.m)
end

function act.quarantine(context, item, message)
  redis.call('HSET', context.prefix .. ':slots', item.s, 'quarantine:' .. item.m)
  settle_unload(context, item.m, SERVER, 'the slot could not be unloaded and stays out of use until repaired: ' .. message)
end

local function land(context, item)
  if not item.k then return end
  redis.call('HINCRBY', request_row(context, item.k), 'flying', -1)
  redis.call('HINCRBY', model_row(context, item.m), 'inflight', -1)
end

local function count(context, items)
  local counters, seen, tenants, datums, tokens = context.prefix .. ':counters', {}, 0, 0, 0
  for _, item in ipairs(items) do
    if is_batch(item.o) then
      local tenant = redis.call('HGET', model_row(context, item.m), 'tenant') or ''
      if not seen[tenant] then seen[tenant], tenants = true, tenants + 1 end
      datums, tokens = datums + item.n, tokens + (item.t or 0)
    end
  end
  redis.call('HINCRBY', counters, 'units_total', 1)
  if tenants == 0 then return end
  redis.call('HINCRBY', counters, 'passes_total', 1)
  redis.call('HINCRBY', counters, 'datums_total', datums)
  redis.call('HINCRBY', counters, 'tokens_total', tokens)
  redis.call('HINCRBY', counters, 'tenants_total', tenants)
  if tenants > 1 then redis.call('HINCRBY', counters, 'shared_units_total', 1) end
end

local function settle_problem(items, args)
  if #args ~= 3 + 4 * #items then return 'unit has ' .. #items .. ' items, ' .. ((#args - 3) / 4) .. ' were settled' end
  for index = 1, #items do
    if not act[args[4 * index]] then return 'unknown action ' .. args[4 * index] end
  end
end

-- What succeeded settles before what failed: a model that closes must not take it along.
local FAILURES = { fail = true, quarantine = true }

local function apply(context, items, args, failures)
  for index, item in ipairs(items) do
    local at = 4 * index
    if (FAILURES[args[at]] or false) == failures then
      act[args[at]](context, item, args[at + 1], args[at + 2], args[at + 3])
    end
  end
end

-- args: term, retention_ms, unit id, then per item: action, data, a, b. Answers OK, or settled
-- when this unit was settled before (by whoever: the first settlement stands).
register('unit_settle', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, unit = begin(keys[1], args[2]), unit_key(keys[1], args[3])
  local state, text = unpack(redis.call('HMGET', unit, 'state', 'items'))
  if state ~= 'running' then return 'settled' end
  local items = cjson.decode(text)
  local problem = settle_problem(items, args)
  if problem then return refuse('contract_violation', problem) end

  for _, item in ipairs(items) do land(context, item) end
  apply(context, items, args, false)
  apply(context, items, args, true)
  for _, item in ipairs(items) do
    if item.k then advance(context, item.m) end
  end
  count(context, items)
  redis.call('HSET', unit, 'state', 'settled')
  redis.call('HDEL', unit, 'work')
  redis.call('EXPIRE', unit, 3600)
  redis.call('SREM', context.prefix .. ':units', args[3])
  context.wake = false
  finish(context)
  return 'OK'
end)

-- args: term, retention_ms, request key, action (done | failed), data, category, checkpoint path. The
-- artifact a save captured is published, or has failed.
register('artifact_settle', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, key = begin(keys[1], args[2]), args[3]
  local state, model, op = unpack(redis.call('HMGET', request_row(context, key), 'state', 'parent', 'op'))
  redis.call('SREM', context.prefix .. ':capturing', key)
  if state ~= 'captured' then return 'settled' end
  if args[4] == 'done' then
    settle_row(context, key, 'done', args[5])
    local fields = { save_weights = 'last_checkpoint', save_for_sampler = 'last_snapshot' }
    if fields[op] then redis.call('HSET', model_row(context, model), fields[op], args[7]) end
  else
    fail_row(context, key, tonumber(args[6]), args[5])
  end
  finish(context)
  return 'OK'
end)

-- args: term, model, name ("" = unnamed). The name a snapshot gets: a given one is remembered, an
-- unnamed one gets the model's next number that no named save took; numbers are never used twice.
register('snapshot_name', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local names, name = keys[1] .. ':names:' .. args[2], args[3]
  if name ~= '' then
    redis.call('SADD', names, name)
    return name
  end
  repeat
    name = int(redis.call('HINCRBY', keys[1] .. ':model:' .. args[2], 'snapshots', 1))
  until redis.call('SISMEMBER', names, name) == 0
  return name
end)

-- args: term, retention_ms, key, message. A command whose turn has come fails without the trainer.
register('train_refuse', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, key = begin(keys[1], args[2]), args[3]
  local state, model, op = unpack(redis.call('HMGET', request_row(context, key), 'state', 'parent', 'op'))
  if state ~= 'queued' then return STALE end
  if is_create(op) then
    close_model(context, model, USER, args[4])
  else
    fail_row(context, key, USER, args[4])
    advance(context, model)
  end
  finish(context)
  return 'OK'
end)

-- args: term. Nothing is waiting: nobody owes anybody a turn.
register('clock_reset', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  return redis.call('DEL', keys[1] .. ':served')
end)
