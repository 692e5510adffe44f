-- Where a model's slot stands: `phase` of its row.
--   live        its slot holds base and log, commands run
--   unseated    no slot: its trainer was lost, or it was paged out
--   seating     a slot is being filled with its base
--   replaying   the log is being applied again, silently
-- Admission never looks at it. Only the holder of the lease moves it, by units settled as a whole.

local RETRY_MS = 30000
-- How often a model's restoring may fail in turn, by cause, and how long it then waits: the store may be away
-- for a while, but what it certainly does not have will not come.
local MAX_FAULTS = { user = 3, server = 5 }
local FIRST_WAIT_MS = 500

-- What ends a model's recovery names the way back.
local function restore_text(context, id)
  local path = redis.call('HGET', model_row(context, id), 'last_checkpoint')
  if path and path ~= '' then return '; create a new model and restore from ' .. path end
  return '; no checkpoint of this model was saved: create a new model'
end

local function settings_of(context, cell)
  local steps, bytes, idle, deaths = unpack(redis.call('HMGET', cell_key(context.prefix, cell, 'cell'), 'durable_steps',
    'durable_bytes', 'durable_idle_ms', 'poison_deaths'))
  return { steps = tonumber(steps or 16), bytes = tonumber(bytes or 268435456), idle = tonumber(idle or 60000),
    deaths = tonumber(deaths or 2) }
end

-- When a durable point is due, if ever. It covers the log up to the last step or load: before one it would
-- cover nothing. A model that rests is covered after a while, so that its payloads go.
local function note_durable(context, id)
  local fields = redis.call('HMGET', model_row(context, id), 'phase', 'steps_since', 'log_bytes', 'base_pos', 'barrier_pos',
    'durable_soon', 'durable_after', 'base')
  local key = index_key(context, id, 'durables')
  if fields[1] ~= 'live' or (fields[8] or '') == '' or redis.call('HEXISTS', context.prefix .. ':durables_running', id) == 1 then
    redis.call('ZREM', key, id)
    return
  end
  local settings, due = settings_of(context, cell_of(context, id)), nil
  local uncovered = tonumber(fields[5] or 0) > tonumber(fields[4] or 0)
  if fields[6] == '1' or (uncovered and (tonumber(fields[2] or 0) >= settings.steps or tonumber(fields[3] or 0) >= settings.bytes)) then
    due = tonumber(fields[7] or 0)
  elseif uncovered and settings.idle > 0 then
    due = math.max(context.now + settings.idle, tonumber(fields[7] or 0))
  end
  if due then
    redis.call('ZADD', key, int(due), id)
  else
    redis.call('ZREM', key, id)
  end
end

-- Without a slot from here on; `score` as in the index `unseated`. Whoever calls has freed the slot.
local function unseat(context, id, score)
  redis.call('HSET', model_row(context, id), 'phase', 'unseated', 'slot', '', 'touched', '')
  redis.call('HDEL', context.prefix .. ':durables_running', id)
  leave_indexes(context, id)
  redis.call('ZADD', index_key(context, id, 'unseated'), score, id)
  advance(context, id)
end

local function go_live(context, id)
  redis.call('HSET', model_row(context, id), 'phase', 'live', 'seated_ms', int(context.now), 'replay_deaths', '0',
    'replay_faults', '0', 'replay_alone', '', 'seat_after', '0')
  leave_indexes(context, id)
  note_durable(context, id)
  redis.call('HINCRBY', context.prefix .. ':counters', 'seated_total', 1)
end

-- A save in the log is run again only if nobody will publish it otherwise.
local function is_over(context, text)
  local entry = cjson.decode(text)
  if not is_save(entry.o) then return false end
  if redis.call('HGET', request_row(context, entry.k), 'state') ~= 'captured' then return true end
  return redis.call('SISMEMBER', context.prefix .. ':capturing', entry.k) == 1
end

-- Goes on from position `applied`; at the end of its log the model is live.
local function replayed_to(context, id, applied)
  local row = model_row(context, id)
  local base_pos, log_end = unpack(redis.call('HMGET', row, 'base_pos', 'log_end'))
  base_pos, log_end = tonumber(base_pos), tonumber(log_end)
  while applied < log_end and is_over(context, redis.call('LINDEX', log_key(context, id), applied - base_pos)) do
    applied = applied + 1
  end
  redis.call('HSET', row, 'applied', int(applied))
  if applied == log_end then go_live(context, id) end
end

-- How often restoring this model has failed in turn on the trainer of now: what another one did says nothing.
local function count_fault(context, id)
  local row = model_row(context, id)
  local life = redis.call('HGET', index_key(context, id, 'cell'), 'incarnation') or ''
  if redis.call('HGET', row, 'faults_of') ~= life then redis.call('HSET', row, 'faults_of', life, 'replay_faults', '0') end
  return redis.call('HINCRBY', row, 'replay_faults', 1)
end

-- The seat cannot be trusted: the slot is cleaned and filled anew, after a wait four times as long each time.
local function seat_failed(context, id, message, shared, cause)
  local row = model_row(context, id)
  local phase = redis.call('HGET', row, 'phase')
  if phase ~= 'seating' and phase ~= 'replaying' then return end
  redis.call('HINCRBY', context.prefix .. ':counters', 'replay_faults_total', 1)
  if shared then
    redis.call('HSET', row, 'replay_alone', '1')
  else
    local faults = count_fault(context, id)
    if faults >= MAX_FAULTS[cause] then
      close_model(context, id, SERVER, 'recovery failed: ' .. message .. restore_text(context, id))
      return
    end
    redis.call('HSET', row, 'seat_after', int(context.now + FIRST_WAIT_MS * 4 ^ (faults - 1)))
  end
  if redis.call('HGET', row, 'slot') ~= '' then release_slot(context, id) end
  unseat(context, id, int(context.now))
end

-- What the items of a unit come to; those of live work are in units.lua.
local act = {}

-- a: the slot's new load number.
function act.seated(context, item, _, load_number)
  local row = model_row(context, item.m)
  redis.call('HSET', row, 'load_number', load_number, 'phase', 'replaying')
  replayed_to(context, item.m, tonumber(redis.call('HGET', row, 'base_pos')))
end

function act.replayed(context, item)
  local phase, applied = unpack(redis.call('HMGET', model_row(context, item.m), 'phase', 'applied'))
  if phase == 'replaying' and tonumber(applied) == item.q then replayed_to(context, item.m, item.q + 1) end
end

-- A save was captured again under the name it had.
function act.recaptured(context, item)
  local row = request_row(context, item.k)
  redis.call('HSET', row, 'units', redis.call('HGET', row, 'units') .. ' ' .. context.unit)
  redis.call('SADD', context.prefix .. ':capturing', item.k)
  act.replayed(context, item)
end

-- a: category. The save fails as it would have; the model goes on.
function act.resave_failed(context, item, message, category)
  if redis.call('HGET', request_row(context, item.k), 'state') == 'captured' then
    capture_over(context, item.k)
    fail_row(context, item.k, tonumber(category), message)
  end
  act.replayed(context, item)
end

-- a: shared, when other models ran in the same unit. b: user, when what it takes is not as it should be.
function act.seat_failed(context, item, message, shared, cause)
  seat_failed(context, item.m, message, shared == 'shared', cause == 'user' and 'user' or 'server')
end

-- The replay came to another outcome than the one recorded (ADD-05).
function act.diverged(context, item, message)
  redis.call('HINCRBY', context.prefix .. ':counters', 'replay_mismatches_total', 1)
  close_model(context, item.m, SERVER, 'recovery stopped: ' .. message .. restore_text(context, item.m))
end

-- What it covers is fixed by the moment of the capture: no other unit of the model is under way then.
function act.durable_captured(context, item)
  local row = model_row(context, item.m)
  local barrier, steps = unpack(redis.call('HMGET', row, 'barrier_pos', 'steps_since'))
  redis.call('HSET', row, 'durable_covers', barrier or '0', 'durable_steps', steps or '0', 'durable_soon', '')
end

local function durable_failed(context, id)
  redis.call('HDEL', context.prefix .. ':durables_running', id)
  redis.call('HSET', model_row(context, id), 'durable_soon', '1', 'durable_after', int(context.now + RETRY_MS))
  redis.call('HINCRBY', context.prefix .. ':counters', 'durable_failures_total', 1)
  note_durable(context, id)
end

function act.durable_failed(context, item) durable_failed(context, item.m) end
