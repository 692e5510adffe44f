-- A model's life and its queue.
--
-- Model row: state creating | open | closing | closed; `ending` = 1 once admission has stopped;
-- `doomed` = 1 when nothing more of it may be issued; `inflight` = units that carry it now;
-- `next_seq` = its lowest sequence id that is neither settled nor captured. The create is seq 0,
-- so what arrives early waits for the slot like any other successor. `captures` = its saves that are
-- captured and not published. Where its slot stands: `phase`, see _seats.lua.

local function queue_of(context, id)
  return context.prefix .. ':queue:' .. id
end

local function is_create(op)
  return op == 'create' or op == 'create_from_checkpoint'
end

local function settle_unload(context, id, category, failure)
  local key = redis.call('HGET', model_row(context, id), 'unload_key')
  if not key or key == '' then return end
  if failure then
    fail_row(context, key, category, failure)
  else
    -- v1.Result { model { model_id } }
    local result = '\10' .. varint(#id) .. id
    settle_row(context, key, 'done', '\18' .. varint(#result) .. result)
  end
end

-- A slot the trainer never touched goes straight back; any other only after its unload.
local function release_slot(context, id)
  local row = model_row(context, id)
  local slot, touched = unpack(redis.call('HMGET', row, 'slot', 'touched'))
  if not slot or slot == '' then
    settle_unload(context, id)
    return
  end
  if touched == '1' then
    redis.call('HSET', slots_of(context, id), slot, 'unload:' .. id)
  else
    redis.call('HSET', slots_of(context, id), slot, '')
    settle_unload(context, id)
  end
  redis.call('HSET', row, 'slot', '')
  context.wake = true
end

-- The end of a model: what is still queued fails with `reason`, its slot goes.
local function bury(context, id, category, reason)
  local row = model_row(context, id)
  local queued = redis.call('HVALS', queue_of(context, id))
  for _, key in ipairs(queued) do
    if redis.call('HGET', request_row(context, key), 'state') ~= 'captured' then
      fail_row(context, key, category, reason)
    end
  end
  redis.call('DEL', queue_of(context, id))
  drop_log(context, id)
  redis.call('HSET', row, 'state', 'closed', 'closed_ms', int(context.now), 'phase', '')
  if redis.call('HDEL', row, 'counted') == 1 then
    redis.call('HINCRBY', usage_key(context, redis.call('HGET', row, 'tenant')), 'models', -1)
  end
  leave_indexes(context, id)
  redis.call('ZREM', index_key(context, id, 'creates'), id)
  redis.call('ZREM', context.prefix .. ':gaps', id)
  redis.call('ZADD', context.prefix .. ':closed', int(context.now), id)
  release_slot(context, id)
end

-- The first reason to end a model is the one remembered.
local function bury_for_its_reason(context, id)
  local category, reason = unpack(redis.call('HMGET', model_row(context, id), 'reason_category', 'reason'))
  bury(context, id, tonumber(category), reason)
end

-- Closes a model now: nothing more is issued, what waits fails. Under a running unit the close
-- completes when that unit settles (LEASE-05).
local function close_model(context, id, category, reason)
  local row = model_row(context, id)
  local state, doomed, inflight = unpack(redis.call('HMGET', row, 'state', 'doomed', 'inflight'))
  if not state or state == 'closed' then return end
  if doomed ~= '1' then
    redis.call('HSET', row, 'doomed', '1', 'ending', '1', 'reason', reason, 'reason_category', int(category))
    if state == 'open' then redis.call('HSET', row, 'state', 'closing') end
    leave_indexes(context, id)
    redis.call('ZREM', index_key(context, id, 'creates'), id)
  end
  if tonumber(inflight or 0) == 0 then bury_for_its_reason(context, id) end
end

-- A rejected command has reached its turn: it fails with its own text, without the trainer.
local function settle_rejected(context, id, key, op, text)
  if is_create(op) then
    close_model(context, id, USER, text)
    return
  end
  if op == 'forward_backward' then redis.call('HINCRBY', model_row(context, id), 'window_rejected', 1) end
  fail_row(context, key, USER, text)
end

local WINDOW_FULL = 'the open gradient window of this model holds as many bytes of datums as its recovery can keep '
  .. '(log_limit_mib of the scheduler); call optim_step, which ends the window; this request was not executed'

-- What a queued command fails with in its turn, '' = it runs.
local function problem_of(context, id, op, rejected)
  if rejected ~= '' or op ~= 'forward_backward' then return rejected end
  local sizes = redis.call('HMGET', model_row(context, id), 'log_bytes', 'base_pos', 'barrier_pos', 'cell')
  local limit = log_limit(context.prefix, sizes[4] or FIRST_CELL)
  return log_full(limit, unpack(sizes, 1, 3)) == 'window' and WINDOW_FULL or ''
end

local function passed(state)
  return state == 'done' or state == 'failed' or state == 'captured'
end

-- Moves the head past what is settled, captured or rejected. Answers the new head's key or nil.
local function walk(context, id)
  local row, queue = model_row(context, id), queue_of(context, id)
  local seq = redis.call('HGET', row, 'next_seq')
  while true do
    local key = redis.call('HGET', queue, seq)
    if not key then return nil end
    local state, text, op = unpack(redis.call('HMGET', request_row(context, key), 'state', 'rejected', 'op'))
    if state == 'queued' then text = problem_of(context, id, op, text) end
    if state == 'queued' and text ~= '' then
      settle_rejected(context, id, key, op, text)
    elseif not passed(state) then
      return key
    end
    redis.call('HDEL', queue, seq)
    seq = int(tonumber(seq) + 1)
    redis.call('HSET', row, 'next_seq', seq)
  end
end

-- Brings a model's indexes up to date after its queue changed.
local function advance(context, id)
  local row = model_row(context, id)
  local head = walk(context, id)
  local state, ending, doomed, inflight, captures =
    unpack(redis.call('HMGET', row, 'state', 'ending', 'doomed', 'inflight', 'captures'))
  if state == 'closed' then return end
  if doomed == '1' then
    close_model(context, id, SERVER, '')
    return
  end
  local gaps = context.prefix .. ':gaps'
  captures = tonumber(captures or 0)
  if state ~= 'creating' then index_model(context, id, head, captures) end
  if head then
    redis.call('ZREM', gaps, id)
    return
  end
  if ending == '1' and tonumber(inflight or 0) == 0 and captures == 0 then
    bury_for_its_reason(context, id)
  elseif redis.call('HLEN', queue_of(context, id)) > 0 then
    redis.call('ZADD', gaps, 'NX', int(context.now), id)
  else
    redis.call('ZREM', gaps, id)
  end
end

-- With paging somebody gives up a slot in a moment.
local function waits_in_vain(context, id)
  if redis.call('HGET', index_key(context, id, 'cell'), 'paging') == '1' then return false end
  local holders = redis.call('HVALS', slots_of(context, id))
  for _, holder in ipairs(holders) do
    if holder == '' then return false end
  end
  return #holders > 0
end

-- Stops admission; accepted commands run, then the model closes. One that waits in vain for a
-- slot closes at once.
local function end_model(context, id, reason)
  local row = model_row(context, id)
  local state, ending, inflight = unpack(redis.call('HMGET', row, 'state', 'ending', 'inflight'))
  if not state or state == 'closed' or ending == '1' then return end
  if state == 'creating' and tonumber(inflight or 0) == 0 and waits_in_vain(context, id) then
    close_model(context, id, USER, reason)
    return
  end
  redis.call('HSET', row, 'ending', '1', 'reason', reason, 'reason_category', int(USER))
  if state == 'open' then redis.call('HSET', row, 'state', 'closing') end
  advance(context, id)
end

local function finish(context)
  publish_settled(context)
  if context.wake then publish_ready(context.prefix, 'train') end
end
