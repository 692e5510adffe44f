-- What ends models from outside their queue: sessions and gaps.

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
  redis.call('UNLINK', prefix .. ':model:' .. id, prefix .. ':names:' .. id, prefix .. ':rows:' .. id, curve_key(prefix, id))
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

-- args: term. Quarantined slots are unloaded once more (FAIL-05). Answers how many.
register('cell_repair', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local tried = 0
  for _, cell in ipairs(known_cells(keys[1])) do
    local slots = cell_key(keys[1], cell, 'slots')
    local flat = redis.call('HGETALL', slots)
    for index = 1, #flat, 2 do
      local id = string.match(flat[index + 1], '^quarantine:(.*)$')
      if id then
        redis.call('HSET', slots, flat[index], 'unload:' .. id)
        tried = tried + 1
      end
    end
  end
  return tried
end)
