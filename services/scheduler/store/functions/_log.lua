-- The log of a model: what changed its slot since its base, in order. With the base it is the trainer's
-- second memory; the payloads of logged commands stay until a newer base covers them.
--
-- `base` of the model row is JSON: kind init (the model's own create, key), load (a checkpoint: directory,
-- optimizer) or durable (an automatic slot checkpoint: directory). List log:<model>: entry i has position
-- base_pos + i and is JSON: o op, k request key, u unit, g the unit's number in the pool, p models in that
-- unit, f first datum, n datums, b bytes of payload, l loss sum or gradient norm to compare (text), x 1 = a
-- step that was skipped, d directory and z 1 = with the optimizer, of a load.
-- `log_end` = base_pos + length; `applied` = up to where the present seat has it; `barrier_pos` = behind the
-- last step or load; `log_bytes`, `steps_since` = payload and steps in it.

local function log_key(context, id)
  return context.prefix .. ':log:' .. id
end

local function is_save(op)
  return op == 'save_weights' or op == 'save_for_sampler' or op == 'save_external'
end

local function count_log_bytes(context, id, bytes)
  if bytes == 0 then return end
  local row = model_row(context, id)
  redis.call('HINCRBY', row, 'log_bytes', int(bytes))
  redis.call('HINCRBY', context.prefix .. ':counters', 'log_bytes', int(bytes))
  redis.call('HINCRBY', usage_key(context, redis.call('HGET', row, 'tenant')), 'log_bytes', int(bytes))
end

-- `text`: JSON list of what its entries hold beyond what the unit says. The seat that ran them has them applied.
local function append_log(context, item, unit, text)
  local row, bytes, log_end = model_row(context, item.m), 0, nil
  if (redis.call('HGET', row, 'base') or '') == '' then return end  -- of an older release: nothing to replay it on
  for _, entry in ipairs(cjson.decode(text)) do
    entry.o, entry.k, entry.u, entry.g, entry.p = item.o, item.k, unit.id, unit.number, unit.models
    redis.call('RPUSH', log_key(context, item.m), cjson.encode(entry))
    log_end = int(redis.call('HINCRBY', row, 'log_end', 1))
    redis.call('HINCRBY', request_row(context, item.k), 'logged', 1)
    bytes = bytes + (entry.b or 0)
  end
  if not log_end then return end
  redis.call('HSET', row, 'applied', log_end)
  count_log_bytes(context, item.m, bytes)
  if item.o == 'optim_step' or item.o == 'load_weights' then redis.call('HSET', row, 'barrier_pos', log_end) end
  if item.o == 'optim_step' then redis.call('HINCRBY', row, 'steps_since', 1) end
  if item.o == 'load_weights' then redis.call('HSET', row, 'durable_soon', '1') end  -- its owner may delete the source
end

local function forget_logged(context, key)
  local row = request_row(context, key)
  if redis.call('EXISTS', row) == 0 or redis.call('HINCRBY', row, 'logged', -1) > 0 then return end
  redis.call('HDEL', row, 'logged')
  local state = redis.call('HGET', row, 'state')
  if state == 'done' or state == 'failed' then release_payload(context, key) end
end

-- Removes the first `count` entries; payloads nobody else needs go.
local function trim_log(context, id, count)
  if count <= 0 then return end
  local bytes = 0
  for _, text in ipairs(redis.call('LRANGE', log_key(context, id), 0, count - 1)) do
    local entry = cjson.decode(text)
    bytes = bytes + (entry.b or 0)
    forget_logged(context, entry.k)
  end
  redis.call('LTRIM', log_key(context, id), count, -1)
  count_log_bytes(context, id, -bytes)
end

-- nil while the log has room. At its limit more than a step must not come in before something has left: `uncovered`
-- while a durable point would cut it (one is due then, see note_durable), `window` when all of it belongs to the open
-- gradient window, which nothing but a step ends.
local function log_full(limit, bytes, base_pos, barrier_pos)
  if limit == 0 or tonumber(bytes or 0) < limit then return nil end
  return tonumber(barrier_pos or 0) > tonumber(base_pos or 0) and 'uncovered' or 'window'
end

-- Bytes; 0 = none.
local function log_limit(prefix, cell)
  return tonumber(redis.call('HGET', cell_key(prefix, cell, 'cell'), 'log_limit') or 0)
end

-- The files go later: the sweeper reads this list.
local function drop_durable(context, directory)
  redis.call('RPUSH', context.prefix .. ':dropped_durables', directory)
end

local function base_of(context, id)
  local text = redis.call('HGET', model_row(context, id), 'base')
  return text and text ~= '' and cjson.decode(text) or nil
end

-- A captured save has come to its end, published or not.
local function capture_over(context, key)
  redis.call('SREM', context.prefix .. ':capturing', key)
  local id = redis.call('HGET', request_row(context, key), 'parent')
  if redis.call('HINCRBY', model_row(context, id), 'captures', -1) < 0 then
    redis.call('HSET', model_row(context, id), 'captures', '0')
  end
  return id
end

-- A captured save whose trainer is gone, and whose model will not be replayed.
local function fail_lost_saves(context, id)
  if tonumber(redis.call('HGET', model_row(context, id), 'captures') or 0) == 0 then return end
  for _, text in ipairs(redis.call('LRANGE', log_key(context, id), 0, -1)) do
    local key = cjson.decode(text).k
    local captured = redis.call('HGET', request_row(context, key), 'state') == 'captured'
    if captured and redis.call('SISMEMBER', context.prefix .. ':capturing', key) == 0 then
      capture_over(context, key)
      fail_row(context, key, SERVER, 'the trainer restarted before the checkpoint was published, and the model is closed')
    end
  end
end

-- The end of a model: nobody will replay it.
local function drop_log(context, id)
  fail_lost_saves(context, id)
  trim_log(context, id, redis.call('LLEN', log_key(context, id)))
  local base = base_of(context, id)
  if base and base.kind == 'durable' then drop_durable(context, base.directory) end
  redis.call('HDEL', context.prefix .. ':durables_running', id)
  redis.call('HSET', model_row(context, id), 'base', '', 'log_end', '0', 'applied', '0', 'base_pos', '0')
end
