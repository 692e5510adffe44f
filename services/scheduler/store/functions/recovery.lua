-- What a trainer's death does to a pool, and how slots are given up and durable points taken.

-- nil, or why a model cannot be seated again.
local function unrecoverable(context, id)
  if base_of(context, id) then return nil end
  return 'the trainer restarted, and this model began before its commands were logged'
end

local LOST = 'its trainer was lost'

-- A create that had no effect yet waits for a slot of the new trainer.
local function wait_again(context, id)
  local key = redis.call('HGET', queue_of(context, id), '0')
  redis.call('HSET', model_row(context, id), 'slot', '', 'touched', '', 'inflight', '0')
  local row = request_row(context, key)
  if redis.call('HGET', row, 'state') == 'running' then note_event(context, row, 'queued', '', '', LOST) end
  redis.call('HSET', row, 'state', 'queued', 'issued', '0', 'flying', '0')
  redis.call('ZADD', index_key(context, id, 'creates'), redis.call('HGET', request_row(context, key), 'arrival'), id)
  if redis.call('HGET', model_row(context, id), 'doomed') == '1' then close_model(context, id, SERVER, '') end
end

local function lose_model(context, id)
  local row = model_row(context, id)
  local state, doomed, last = unpack(redis.call('HMGET', row, 'state', 'doomed', 'last_request_ms'))
  if state == 'creating' then return wait_again(context, id) end
  redis.call('HSET', row, 'inflight', '0', 'slot', '', 'touched', '')
  local problem = unrecoverable(context, id)
  if doomed == '1' then
    close_model(context, id, SERVER, '')
  elseif problem then
    close_model(context, id, SERVER, problem .. restore_text(context, id))
  else
    unseat(context, id, last or '1')
  end
end

local function lose_slot(context, slot, holder)
  local id = string.match(holder, '^unload:(.*)$') or string.match(holder, '^quarantine:(.*)$')
  if not id then
    if holder ~= '' then lose_model(context, holder) end
  elseif redis.call('HGET', model_row(context, id), 'state') == 'closed' then
    settle_unload(context, id)
  end
end

-- A save that was captured and not published is run again where it stands in its model's log.
local function lose_captured(context, cell)
  local captured = {}
  for _, key in ipairs(redis.call('SMEMBERS', context.prefix .. ':capturing')) do
    local id = redis.call('HGET', request_row(context, key), 'parent')
    if id and cell_of(context, id) == cell then table.insert(captured, key) end
  end
  for _, key in ipairs(captured) do redis.call('SREM', context.prefix .. ':capturing', key) end
  for _, key in ipairs(captured) do
    local id, logged = unpack(redis.call('HMGET', request_row(context, key), 'parent', 'logged'))
    if not logged then
      capture_over(context, key)
      fail_row(context, key, SERVER, 'the trainer restarted before the checkpoint was published'
        .. ' and its model is closed' .. restore_text(context, id))
    else
      advance(context, id)
    end
  end
end

-- Of a unit whose trainer is gone: its work waits again.
local function give_back(context, item)
  redis.call('HSET', model_row(context, item.m), 'inflight', '0')
  if item.x or not item.k then return end
  local row = request_row(context, item.k)
  redis.call('HINCRBY', row, 'issued', -item.n)
  redis.call('HSET', row, 'flying', '0')
  note_event(context, row, 'queued', '', '', LOST)
  if redis.call('HGET', row, 'reported') == '0' then redis.call('HSET', row, 'state', 'queued') end
end

-- Of a unit that ran when its trainer died: its work waits again, alone, and each death is remembered.
local function take_back(context, item, deaths)
  give_back(context, item)
  if item.x == 'seat' or item.x == 'replay' then
    deaths.models[item.m] = true
  elseif item.x == 'durable' then
    act.durable_failed(context, item)  -- a capture that stops the trainer must not do so at every start
  elseif item.k then
    redis.call('HSET', request_row(context, item.k), 'group', item.k)
    deaths.commands[item.k] = item
  end
end

local function lose_unit(context, cell, unit, deaths)
  local state, items, not_run, at =
    unpack(redis.call('HMGET', unit_key(context.prefix, unit), 'state', 'items', 'not_run', 'cell'))
  if (at or FIRST_CELL) ~= cell then return end
  redis.call('SREM', context.prefix .. ':units', unit)
  if state ~= 'running' then return end
  for _, item in ipairs(cjson.decode(items)) do
    if not_run == '1' then give_back(context, item) else take_back(context, item, deaths) end
  end
  redis.call('HSET', unit_key(context.prefix, unit), 'state', 'lost')
  redis.call('EXPIRE', unit_key(context.prefix, unit), 3600)
end

-- A command, or a replay, that stopped the trainer too often is not tried once more (MESH-04).
local function count_deaths(context, cell, deaths)
  local limit = settings_of(context, cell).deaths
  for key, item in pairs(deaths.commands) do
    local died = redis.call('HINCRBY', request_row(context, key), 'deaths', 1)
    if died >= limit then
      local text = item.o .. ' stopped the trainer ' .. int(died) .. ' times and is not run again'
      fail_row(context, key, SERVER, text .. restore_text(context, item.m))
      close_model(context, item.m, SERVER, text .. restore_text(context, item.m))
      redis.call('HINCRBY', context.prefix .. ':counters', 'poisoned_total', 1)
    end
  end
  for id in pairs(deaths.models) do
    local row = model_row(context, id)
    redis.call('HSET', row, 'replay_alone', '1')
    local died = redis.call('HINCRBY', row, 'replay_deaths', 1)
    if died >= limit then
      local text = 'the trainer stopped ' .. int(died) .. ' times while this model was being restored'
      close_model(context, id, SERVER, text .. restore_text(context, id))
      redis.call('HINCRBY', context.prefix .. ':counters', 'poisoned_total', 1)
    end
  end
end

local function lose_durables(context, cell)
  local running = context.prefix .. ':durables_running'
  for _, id in ipairs(redis.call('HKEYS', running)) do
    if cell_of(context, id) == cell then
      redis.call('HSET', model_row(context, id), 'durable_soon', '1')  -- why it was due holds still
      redis.call('HDEL', running, id)
    end
  end
end

local function lose_trainer(context, cell)
  local deaths, lost, slots = { commands = {}, models = {} }, 0, cell_key(context.prefix, cell, 'slots')
  for _, unit in ipairs(redis.call('SMEMBERS', context.prefix .. ':units')) do lose_unit(context, cell, unit, deaths) end
  lose_durables(context, cell)
  local flat = redis.call('HGETALL', slots)
  for index = 1, #flat, 2 do
    if flat[index + 1] ~= '' then lost = lost + 1 end
    lose_slot(context, flat[index], flat[index + 1])
  end
  redis.call('DEL', slots)
  lose_captured(context, cell)
  count_deaths(context, cell, deaths)
  redis.call('HINCRBY', context.prefix .. ':counters', 'trainers_lost_total', 1)
  return lost
end

local SUPERSEDED_KEPT = 256

-- Never to be registered or driven again, see registry_renew.
local function supersede(context, incarnation)
  local superseded = context.prefix .. ':superseded'
  redis.call('ZADD', superseded, int(context.now), incarnation)
  redis.call('ZREMRANGEBYRANK', superseded, 0, -SUPERSEDED_KEPT - 1)
end

-- args: term, cell, incarnation ('' = nobody, whoever it was). The token of the takeover that follows: above
-- every earlier one of the cell, also of a Redis that has forgotten some.
register('takeover_token', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  if redis.call('ZSCORE', keys[1] .. ':superseded', args[3]) then
    return refuse('unavailable', 'incarnation ' .. args[3] .. ' was superseded; its process must end and start anew')
  end
  local cell = cell_key(keys[1], args[2], 'cell')
  local token = math.max(tonumber(redis.call('HGET', cell, 'token') or 0) + 1, now_ms())
  redis.call('HSET', cell, 'token', int(token))
  return int(token)
end)

-- The other cell whose trainer this is, or nil.
local function driven_elsewhere(prefix, cell, incarnation)
  for _, other in ipairs(known_cells(prefix)) do
    if other ~= cell and redis.call('HGET', cell_key(prefix, other, 'cell'), 'incarnation') == incarnation then return other end
  end
end

-- args: term, retention_ms, cell, incarnation, slots, poison deaths, steps, bytes and idle ms that make a durable
-- point due, 1 = paging, bytes of a full log (0 = no limit). Makes the cell's slots those of this trainer. With another incarnation than before everything
-- the old one held is gone: its models lose their seats, what it was running waits again. Repeatable. Answers
-- how many held slots were lost.
register('cell_adopt', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, name, incarnation = begin(keys[1], args[2]), args[3], args[4]
  local other = driven_elsewhere(context.prefix, name, incarnation)
  if other then
    return refuse('unavailable', 'incarnation ' .. incarnation .. ' is the trainer of cell ' .. other .. ', not of cell ' .. name)
  end
  local cell, slots, lost = cell_key(context.prefix, name, 'cell'), cell_key(context.prefix, name, 'slots'), 0
  local known = redis.call('HGET', cell, 'incarnation')
  redis.call('HSET', cell, 'poison_deaths', args[6], 'durable_steps', args[7], 'durable_bytes', args[8],
    'durable_idle_ms', args[9], 'paging', args[10], 'log_limit', args[11])
  if known and known ~= incarnation then
    supersede(context, known)
    lost = lose_trainer(context, name)
  end
  for slot = 0, tonumber(args[5]) - 1 do redis.call('HSETNX', slots, int(slot), '') end
  redis.call('HSET', cell, 'incarnation', incarnation)  -- last: until then another try begins anew
  if name ~= FIRST_CELL then redis.call('SADD', context.prefix .. ':cells', name) end
  context.wake = true
  finish(context)
  return lost
end)

-- args: term, retention_ms, cell. Its trainer is given up for good, and must not publish any more: what it held is lost
-- as at its death, and its models wait for a slot anywhere. Repeatable. Answers how many held slots were lost.
register('cell_lose', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, lost = begin(keys[1], args[2]), 0
  local cell = cell_key(context.prefix, args[3], 'cell')
  local known = redis.call('HGET', cell, 'incarnation')
  if known then
    supersede(context, known)
    lost = lose_trainer(context, args[3])
    redis.call('HDEL', cell, 'incarnation', 'broken', 'broken_reason')
    context.wake = true
  end
  finish(context)
  return lost
end)

-- args: term, retention_ms, model, 1 = its trainer is being emptied. Gives up the slot of a live model that nothing
-- runs on; its base and its log bring it back. Answers OK, or stale when that is not so any more.
register('train_unseat', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, id = begin(keys[1], args[2]), args[3]
  local row = redis.call('HMGET', model_row(context, id), 'phase', 'inflight', 'slot', 'doomed', 'base')
  local busy = row[2] ~= '0' or redis.call('HEXISTS', context.prefix .. ':durables_running', id) == 1
  local seated = row[1] == 'live' or (args[4] == '1' and row[1] == 'replaying')
  if not seated or busy or not row[3] or row[3] == '' or row[4] == '1' or (row[5] or '') == '' then
    return 'stale'
  end
  if args[4] ~= '1' then redis.call('HINCRBY', context.prefix .. ':counters', 'pages_total', 1) end
  release_slot(context, id)
  unseat(context, id, '0')
  finish(context)
  return 'OK'
end)

-- args: term, retention_ms, model, message. What is stored of a model does not bring it back.
register('train_seat_failed', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, id = begin(keys[1], args[2]), args[3]
  local phase, inflight = unpack(redis.call('HMGET', model_row(context, id), 'phase', 'inflight'))
  if (phase ~= 'unseated' and phase ~= 'replaying') or inflight ~= '0' then return 'stale' end
  redis.call('HSET', model_row(context, id), 'phase', 'replaying')
  seat_failed(context, id, args[4], false, 'user')
  finish(context)
  return 'OK'
end)

-- Whether a save the durable point would cover is still to be published: its entry must stay until then.
local function save_pending(context, id, count)
  if tonumber(redis.call('HGET', model_row(context, id), 'captures') or 0) == 0 then return false end
  for _, text in ipairs(redis.call('LRANGE', log_key(context, id), 0, count - 1)) do
    local entry = cjson.decode(text)
    if is_save(entry.o) and redis.call('HGET', request_row(context, entry.k), 'state') == 'captured' then return true end
  end
  return false
end

local function swap_base(context, id, directory, covers)
  local row, old = model_row(context, id), base_of(context, id)
  local base_pos, steps = unpack(redis.call('HMGET', row, 'base_pos', 'durable_steps'))
  trim_log(context, id, covers - tonumber(base_pos))
  redis.call('HINCRBY', row, 'steps_since', int(0 - tonumber(steps or 0)))
  redis.call('HSET', row, 'base', cjson.encode({ kind = 'durable', directory = directory }), 'base_pos', int(covers),
    'durable_ms', int(context.now))
  if old and old.kind == 'durable' then drop_durable(context, old.directory) end
end

-- args: term, retention_ms, model, unit, version directory ('' = it failed). A durable point is published: it
-- becomes the base, what it covers leaves the log. Answers OK, settled, or later while a save that it would
-- cover is not published.
register('durable_settle', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, id, directory = begin(keys[1], args[2]), args[3], args[5]
  local running = context.prefix .. ':durables_running'
  if redis.call('HGET', running, id) ~= args[4] then
    local base = base_of(context, id)
    if directory ~= '' and not (base and base.directory == directory) then drop_durable(context, directory) end
    return 'settled'
  end
  local row = model_row(context, id)
  local covers, base_pos = unpack(redis.call('HMGET', row, 'durable_covers', 'base_pos'))
  if directory ~= '' and save_pending(context, id, tonumber(covers) - tonumber(base_pos)) then return 'later' end
  if directory == '' then
    act.durable_failed(context, { m = id })
  else
    swap_base(context, id, directory, tonumber(covers))
    redis.call('HDEL', running, id)
    redis.call('HINCRBY', context.prefix .. ':counters', 'durables_total', 1)
    note_durable(context, id)
    advance(context, id)  -- what is left may be one window that fills the log
  end
  context.wake = true
  finish(context)
  return 'OK'
end)
