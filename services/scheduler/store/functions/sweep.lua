-- What ends models from outside their queue: sessions, gaps, a lost trainer.

-- args: retention_ms, session, category, reason, settle (1 = accepted commands run first).
register('train_close_session', function(keys, args)
  local context = begin(keys[1], args[1])
  redis.call('SET', context.prefix .. ':ended:' .. args[2], '1', 'EX', 86400)
  local models = redis.call('SMEMBERS', context.prefix .. ':session_models:' .. args[2])
  for _, id in ipairs(models) do
    redis.call('HSET', model_row(context, id), 'session_over', '1')
    if args[5] == '1' then
      end_model(context, id, args[4])
    else
      close_model(context, id, tonumber(args[3]), args[4])
    end
  end
  context.wake = true
  finish(context)
  return #models
end)

-- args: term, retention_ms, timeout_ms. A command that never came must not hold its successors for ever.
register('train_expire_gaps', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context = begin(keys[1], args[2])
  local limit = int(context.now - tonumber(args[3]))
  local due = redis.call('ZRANGEBYSCORE', context.prefix .. ':gaps', '-inf', limit, 'LIMIT', 0, 100)
  for _, id in ipairs(due) do
    local seq = redis.call('HGET', model_row(context, id), 'next_seq')
    local text = 'waiting for seq_id ' .. seq .. ', which did not arrive in time; create a new model and restore from a checkpoint'
    close_model(context, id, USER, text)
    redis.call('ZREM', context.prefix .. ':gaps', id)
  end
  context.wake = #due > 0
  finish(context)
  return #due
end)

local PURGED_PER_CALL = 500

-- Rows of a model whose session is over, in portions; true when nothing of it is left.
local function purge(prefix, id)
  local rows = redis.call('SPOP', prefix .. ':rows:' .. id, PURGED_PER_CALL)
  for _, key in ipairs(rows) do
    drop_result({ prefix = prefix }, key)
    redis.call('UNLINK', row_key(prefix, key))
    redis.call('ZREM', prefix .. ':expiring', key)
  end
  if #rows == PURGED_PER_CALL then return false end
  local session = redis.call('HGET', prefix .. ':model:' .. id, 'session')
  redis.call('SREM', prefix .. ':session_models:' .. session, id)
  redis.call('UNLINK', prefix .. ':model:' .. id, prefix .. ':names:' .. id, prefix .. ':rows:' .. id)
  return true
end

-- args: keep_ms. Forgets models that closed longer ago and whose session is over: until then a retry
-- must find its row (IDEM-06). Answers how many rows or models may be left to do.
register('train_purge', function(keys, args)
  local prefix, now = keys[1], now_ms()
  local closed = prefix .. ':closed'
  local due = redis.call('ZRANGEBYSCORE', closed, '-inf', int(now - tonumber(args[1])), 'LIMIT', 0, 1)
  if #due == 0 then return 0 end
  local over = redis.call('HGET', prefix .. ':model:' .. due[1], 'session_over')
  if over ~= '1' then
    redis.call('ZADD', closed, int(now), due[1])
  elseif purge(prefix, due[1]) then
    redis.call('ZREM', closed, due[1])
  end
  return 1
end)

local function lost_text(path)
  if path and path ~= '' then return 'trainer lost; restore from ' .. path end
  return 'trainer lost; no checkpoint of this model was saved: create a new model'
end

-- A create that had no effect yet waits for a slot of the new trainer.
local function wait_again(context, id)
  local key = redis.call('HGET', queue_of(context, id), '0')
  redis.call('HSET', model_row(context, id), 'slot', '', 'touched', '', 'inflight', '0')
  redis.call('HSET', request_row(context, key), 'state', 'queued', 'issued', '0', 'flying', '0')
  redis.call('ZADD', context.prefix .. ':creates', redis.call('HGET', request_row(context, key), 'arrival'), id)
  if redis.call('HGET', model_row(context, id), 'ending') == '1' then
    local found = redis.call('HMGET', model_row(context, id), 'reason_category', 'reason')
    redis.call('HSET', model_row(context, id), 'doomed', '')
    close_model(context, id, tonumber(found[1]), found[2])
  end
end

local function lose_model(context, id)
  local row = model_row(context, id)
  local state, path = unpack(redis.call('HMGET', row, 'state', 'last_checkpoint'))
  if state == 'creating' then return wait_again(context, id) end
  redis.call('HSET', row, 'inflight', '0', 'touched', '')
  close_model(context, id, SERVER, lost_text(path))
end

local function lose_slot(context, slot, holder)
  local id = string.match(holder, '^unload:(.*)$') or string.match(holder, '^quarantine:(.*)$')
  if id then
    redis.call('HSET', context.prefix .. ':slots', slot, '')
    settle_unload(context, id)
  elseif holder ~= '' then
    lose_model(context, holder)
  end
end

local function lose_captured(context)
  for _, key in ipairs(redis.call('SMEMBERS', context.prefix .. ':capturing')) do
    fail_row(context, key, SERVER, 'trainer lost before the checkpoint was published; save again from a restored model')
  end
  redis.call('DEL', context.prefix .. ':capturing')
end

local SUPERSEDED_KEPT = 256

-- Never to be registered or driven again, see registry_renew.
local function supersede(context, incarnation)
  local superseded = context.prefix .. ':superseded'
  redis.call('ZADD', superseded, int(context.now), incarnation)
  redis.call('ZREMRANGEBYRANK', superseded, 0, -SUPERSEDED_KEPT - 1)
end

-- args: term, incarnation. The token of the takeover that follows: above every earlier one, also of a
-- Redis that has forgotten some.
register('takeover_token', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  if redis.call('ZSCORE', keys[1] .. ':superseded', args[2]) then
    return refuse('unavailable', 'incarnation ' .. args[2] .. ' was superseded; its process must end and start anew')
  end
  local cell = keys[1] .. ':cell'
  local token = math.max(tonumber(redis.call('HGET', cell, 'token') or 0) + 1, now_ms())
  redis.call('HSET', cell, 'token', int(token))
  return int(token)
end)

-- args: term, retention_ms, incarnation, slots. Makes the pool's slots those of this trainer. With
-- another incarnation than before, everything the old one held is gone: its models close, its
-- slots are free, creates that were under way wait again. Answers how many models were lost.
register('cell_adopt', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context = begin(keys[1], args[2])
  local cell, slots, lost = context.prefix .. ':cell', context.prefix .. ':slots', 0
  local known = redis.call('HGET', cell, 'incarnation')
  if known and known ~= args[3] then
    supersede(context, known)
    for _, unit in ipairs(redis.call('SMEMBERS', context.prefix .. ':units')) do
      redis.call('HSET', unit_key(context.prefix, unit), 'state', 'lost')
      redis.call('EXPIRE', unit_key(context.prefix, unit), 3600)
    end
    redis.call('DEL', context.prefix .. ':units')
    lose_captured(context)
    local flat = redis.call('HGETALL', slots)
    for index = 1, #flat, 2 do
      if flat[index + 1] ~= '' then lost = lost + 1 end
      lose_slot(context, flat[index], flat[index + 1])
    end
    redis.call('DEL', slots)
  end
  for slot = 0, tonumber(args[4]) - 1 do redis.call('HSETNX', slots, int(slot), '') end
  redis.call('HSET', cell, 'incarnation', args[3])
  context.wake = true
  finish(context)
  return lost
end)

-- args: term. Quarantined slots are unloaded once more (FAIL-05). Answers how many.
register('cell_repair', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local slots, tried = keys[1] .. ':slots', 0
  local flat = redis.call('HGETALL', slots)
  for index = 1, #flat, 2 do
    local id = string.match(flat[index + 1], '^quarantine:(.*)$')
    if id then
      redis.call('HSET', slots, flat[index], 'unload:' .. id)
      tried = tried + 1
    end
  end
  return tried
end)
