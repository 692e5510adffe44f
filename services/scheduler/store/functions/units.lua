-- Units: written before the trainer hears of them, settled as a whole exactly once.

local STALE = 'stale'

-- Whose slots the items of the unit name: a model that gave one up may be in another cell by now.
local function in_cell(context, cell)
  context.cell, context.slots = cell, cell_key(context.prefix, cell, 'slots')
end

local function may_recover(context, item)
  local row = redis.call('HMGET', model_row(context, item.m), 'phase', 'doomed', 'slot', 'applied', 'inflight')
  if row[2] == '1' or tonumber(row[5] or 0) ~= 0 then return false end
  if item.x == 'seat' then
    return row[1] == 'unseated' and redis.call('HGET', context.slots, item.s) == ''
  end
  if row[3] ~= item.s then return false end
  if item.x == 'durable' then
    return row[1] == 'live' and redis.call('HEXISTS', context.prefix .. ':durables_running', item.m) == 0
  end
  return row[1] == 'replaying' and tonumber(row[4]) + item.z == item.q
end

-- A slot is emptied for whoever left it; whatever else is done is done for a model of this cell.
local function may_issue(context, item)
  if not item.k and not item.x then return redis.call('HGET', context.slots, item.s) == 'unload:' .. item.m end
  if cell_of(context, item.m) ~= context.cell then return false end
  if item.x then return may_recover(context, item) end
  local state, issued, datums = unpack(redis.call('HMGET', request_row(context, item.k), 'state', 'issued', 'datums'))
  local model_state, doomed, phase = unpack(redis.call('HMGET', model_row(context, item.m), 'state', 'doomed', 'phase'))
  if doomed == '1' or (state ~= 'queued' and state ~= 'running') then return false end
  if tonumber(issued) ~= item.f or item.f + item.n > tonumber(datums) then return false end
  if item.c == 1 then
    return model_state == 'creating' and redis.call('HGET', context.slots, item.s) == ''
  end
  return (model_state == 'open' or model_state == 'closing') and (phase or 'live') == 'live'
end

local function mark_recovering(context, item, unit)
  local model = model_row(context, item.m)
  redis.call('HINCRBY', model, 'inflight', 1)
  if item.x == 'seat' then
    redis.call('HSET', context.slots, item.s, item.m)
    redis.call('HSET', model, 'slot', item.s, 'home', item.s, 'touched', '1', 'phase', 'seating')
    leave_indexes(context, item.m)
    redis.call('ZADD', index_key(context, item.m, 'recovering'), int(context.now), item.m)
  elseif item.x == 'durable' then
    redis.call('ZREM', index_key(context, item.m, 'durables'), item.m)
    redis.call('HSET', context.prefix .. ':durables_running', item.m, unit)
  end
end

local function mark_issued(context, item, unit, incarnation)
  local row, model = request_row(context, item.k), model_row(context, item.m)
  redis.call('HINCRBY', row, 'issued', item.n)
  redis.call('HINCRBY', row, 'flying', 1)
  local units, events = unpack(redis.call('HMGET', row, 'units', 'events'))
  redis.call('HSET', row, 'state', 'running', 'units', units == '' and unit or units .. ' ' .. unit,
    'events', with_event(context, events, 'issued', unit, incarnation))
  if redis.call('HSETNX', row, 'issued_ms', int(context.now)) == 1 then
    local waited = context.now - tonumber(redis.call('HGET', row, 'admitted_ms') or context.now)
    redis.call('HINCRBY', context.prefix .. ':counters', 'started_total', 1)
    redis.call('HINCRBY', context.prefix .. ':counters', 'queue_wait_ms_total', int(waited))
  end
  redis.call('HINCRBY', model, 'inflight', 1)
  if item.c == 1 then
    redis.call('HSET', context.slots, item.s, item.m)
    redis.call('HSET', model, 'slot', item.s, 'home', item.s, 'touched', '1')
    redis.call('ZREM', index_key(context, item.m, 'creates'), item.m)
  end
end

-- args: term, unit id, cell, incarnation, work, items (JSON), virtual time, then tenant and tag pairs.
-- An item is {k=request key, m=model, f=first datum, n=datums, o=op, s=slot, c=1 for creates}; an
-- unload has no k. x marks what recovery does: seat, replay (of log position q, the z-th of its model
-- in this unit) or durable. Answers OK, or stale when the view has changed: nothing was written then.
register('unit_issue', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, unit = begin(keys[1], 0), unit_key(keys[1], args[2])
  if redis.call('EXISTS', unit) == 1 then return 'OK' end
  in_cell(context, args[3])
  if redis.call('HGET', cell_key(keys[1], args[3], 'cell'), 'incarnation') ~= args[4] then return STALE end
  local items = cjson.decode(args[6])
  for _, item in ipairs(items) do
    if not may_issue(context, item) then return STALE end
  end

  for _, item in ipairs(items) do
    if item.x then
      mark_recovering(context, item, args[2])
    elseif item.k then
      mark_issued(context, item, args[2], args[4])
    end
  end
  redis.call('HSET', unit, 'term', args[1], 'cell', args[3], 'incarnation', args[4], 'state', 'running',
    'work', args[5], 'items', args[6], 'issued_ms', int(context.now))
  redis.call('SADD', context.prefix .. ':units', args[2])
  local served = cell_key(keys[1], args[3], 'served')
  redis.call('HSET', served, '', args[7])
  for index = 8, #args, 2 do redis.call('HSET', served, args[index], args[index + 1]) end
  return 'OK'
end)

-- args: term, unit id. Its trainer ends in order and has refused it: nothing of it ran there, nor will it, so
-- that it has no part in this end of a trainer. It is given back with the next one.
register('unit_not_run', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local unit = unit_key(keys[1], args[2])
  if redis.call('HGET', unit, 'state') ~= 'running' then return STALE end
  redis.call('HSET', unit, 'not_run', '1')
  return 'OK'
end)

local function closing_text(op, message)
  return op .. ' failed: ' .. message .. '; create a new model and restore from a checkpoint'
end

-- Some datums of a batch op; with the last of them the request is done. a, b: their loss and positions (_curves.lua).
function act.part(context, item, data, loss, positions)
  add_loss(context, item, loss, positions)
  local row = request_row(context, item.k)
  redis.call('HSET', context.prefix .. ':out:' .. item.k, int(item.f), data)
  redis.call('HINCRBY', row, 'result_bytes', #data)
  redis.call('HDEL', row, 'group', 'deaths')
  local reported = redis.call('HINCRBY', row, 'reported', item.n)
  if int(reported) == redis.call('HGET', row, 'datums') then settle_row(context, item.k, 'done') end
end

-- a, b: learning rate and gradient norm of a step.
function act.done(context, item, data, rate, norm)
  if item.o == 'optim_step' then add_point(context, item, rate, norm) end
  if item.o == 'load_weights' then forget_window(model_row(context, item.m)) end
  if item.o == 'optim_step' or item.o == 'load_weights' then
    redis.call('HSET', model_row(context, item.m), 'window_rejected', '0')
  end
  settle_row(context, item.k, 'done', data)
end

-- a: the slot's new load number. A create opens its model, a load goes on with it. `base`: JSON, see _log.lua.
function act.loaded(context, item, data, load_number, layout, base)
  local row = model_row(context, item.m)
  redis.call('HSET', row, 'load_number', load_number)
  if layout ~= '' then redis.call('HSET', row, 'layout', layout) end
  if item.c == 1 then
    local ending = redis.call('HGET', row, 'ending')
    redis.call('HSET', row, 'state', ending == '1' and 'closing' or 'open', 'phase', 'live', 'base', base,
      'base_pos', '0', 'log_end', '0', 'applied', '0', 'barrier_pos', '0', 'steps_since', '0', 'log_bytes', '0',
      'captures', '0', 'seated_ms', int(context.now))
    if cjson.decode(base).kind == 'load' then redis.call('HSET', row, 'durable_soon', '1') end
  end
  act.done(context, item, data)
end

-- data: the name of the artifact that is being written.
function act.captured(context, item, name)
  redis.call('HSET', request_row(context, item.k), 'state', 'captured', 'captured_ms', int(context.now), 'artifact', name)
  redis.call('SADD', context.prefix .. ':capturing', item.k)
  redis.call('HINCRBY', model_row(context, item.m), 'captures', 1)
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
  note_event(context, row, 'queued', '', '', 'its unit failed as a whole')
  redis.call('HINCRBY', context.prefix .. ':counters', 'solo_retries_total', 1)
end

-- A model that was paged out goes on without its slot; only the end of one answers its unload.
local function slot_left(context, id, category, failure)
  if redis.call('HGET', model_row(context, id), 'state') == 'closed' then settle_unload(context, id, category, failure) end
end

function act.unloaded(context, item)
  redis.call('HSET', context.slots, item.s, '')
  slot_left(context, item.m)
end

function act.quarantine(context, item, message)
  redis.call('HSET', context.slots, item.s, 'quarantine:' .. item.m)
  slot_left(context, item.m, SERVER, 'the slot could not be unloaded and stays out of use until repaired: ' .. message)
end

local function land(context, item, action, ran_ms)
  if not item.k and not item.x then return end
  if not item.x then
    local row = request_row(context, item.k)
    redis.call('HINCRBY', row, 'flying', -1)
    note_event(context, row, 'executed', context.unit, '', action, ran_ms)
  end
  redis.call('HINCRBY', model_row(context, item.m), 'inflight', -1)
end

local function count(context, items)
  local counters, seen, tenants, datums, tokens = context.prefix .. ':counters', {}, 0, 0, 0
  for _, item in ipairs(items) do
    if is_batch(item.o) and not item.x then
      local tenant = redis.call('HGET', model_row(context, item.m), 'tenant') or ''
      if not seen[tenant] then seen[tenant], tenants = true, tenants + 1 end
      datums, tokens = datums + item.n, tokens + (item.t or 0)
    end
  end
  if items[1].x then redis.call('HINCRBY', counters, items[1].x .. '_units_total', 1) end
  redis.call('HINCRBY', counters, 'units_total', 1)
  if tenants == 0 then return end
  redis.call('HINCRBY', counters, 'passes_total', 1)
  redis.call('HINCRBY', counters, 'datums_total', datums)
  redis.call('HINCRBY', counters, 'tokens_total', tokens)
  redis.call('HINCRBY', counters, 'tenants_total', tenants)
  if tenants > 1 then redis.call('HINCRBY', counters, 'shared_units_total', 1) end
end

local PER_ITEM = 5  -- action, data, a, b, log entries (JSON, '' = none; of a create its base)

local function settle_problem(items, args)
  local settled = (#args - 4) / PER_ITEM
  if settled ~= #items then return 'unit has ' .. #items .. ' items, ' .. settled .. ' were settled' end
  for index = 1, #items do
    local action, log = args[PER_ITEM * index], args[PER_ITEM * index + 4]
    if not act[action] then return 'unknown action ' .. action end
    if items[index].c == 1 and action == 'loaded' and log == '' then return 'a create has no base' end
    if log ~= '' and not pcall(cjson.decode, log) then return 'log entries of item ' .. index .. ' are not JSON' end
  end
end

-- What succeeded settles before what failed: a model that closes must not take it along.
local FAILURES = { fail = true, quarantine = true, diverged = true, seat_failed = true }

local function apply(context, items, args, failures)
  for index, item in ipairs(items) do
    local at = PER_ITEM * index
    if (FAILURES[args[at]] or false) == failures then
      act[args[at]](context, item, unpack(args, at + 1, at + 4))
    end
  end
end

-- Before anything settles: what has an entry keeps its payload.
local function log_effects(context, items, args, name)
  local logged, models, unit = {}, {}, { id = name, models = 0 }
  for index, item in ipairs(items) do
    local text = args[PER_ITEM * index + 4]
    if text ~= '' and item.c ~= 1 then
      table.insert(logged, { item, text })
      if not models[item.m] then models[item.m], unit.models = true, unit.models + 1 end
    end
  end
  if #logged == 0 then return end
  unit.number = redis.call('HINCRBY', context.prefix .. ':counters', 'logged_units_total', 1)
  for _, entry in ipairs(logged) do append_log(context, entry[1], unit, entry[2]) end
end

-- Once for each model, however many of its commands the unit had.
local function tidy(context, items)
  local seen = {}
  for _, item in ipairs(items) do
    if (item.k or item.x) and not seen[item.m] then
      seen[item.m] = true
      redis.call('HSET', model_row(context, item.m), 'worked_ms', int(context.now))
      advance(context, item.m)
      note_durable(context, item.m)
    end
  end
end

-- args: term, retention_ms, unit id, ms of execution, then PER_ITEM for each item. Answers OK, or settled when this unit
-- was settled before (by whoever: the first settlement stands).
register('unit_settle', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, unit = begin(keys[1], args[2]), unit_key(keys[1], args[3])
  local state, text, cell = unpack(redis.call('HMGET', unit, 'state', 'items', 'cell'))
  if state ~= 'running' then return 'settled' end
  in_cell(context, cell or FIRST_CELL)
  local items = cjson.decode(text)
  local problem = settle_problem(items, args)
  if problem then return refuse('contract_violation', problem) end

  context.unit = args[3]
  for index, item in ipairs(items) do land(context, item, args[PER_ITEM * index], args[4]) end
  log_effects(context, items, args, args[3])
  apply(context, items, args, false)
  apply(context, items, args, true)
  tidy(context, items)
  count(context, items)
  redis.call('HSET', unit, 'state', 'settled')
  redis.call('HDEL', unit, 'work')
  redis.call('EXPIRE', unit, 3600)
  redis.call('SREM', context.prefix .. ':units', args[3])
  context.wake = false
  finish(context)
  return 'OK'
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

-- args: term, cell. Nothing is waiting: nobody owes anybody a turn.
register('clock_reset', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  return redis.call('DEL', cell_key(keys[1], args[2], 'served'))
end)
