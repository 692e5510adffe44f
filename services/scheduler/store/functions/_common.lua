-- Helpers every file of the library sees. A function makes all its checks before its first
-- write: what a failing function has written stays written.

-- What lets work in. On a full server these are refused; all others go on, because they end in memory
-- being freed: a unit settles, a model closes, a result expires.
local ADMISSIONS = {
  train_submit = true, train_create = true, sampling_admit = true, sampling_open = true, session_create = true,
  session_claim = true, tenant_session = true, tenancy_swap = true, sampling_join = true,
  job_admit = true, job_start = true, job_append = true,
}

local function flags_of(name)
  if READERS[name] then return { 'no-writes' } end
  if ADMISSIONS[name] then return {} end
  return { 'allow-oom' }
end

local function register(name, callback)
  redis.register_function({ function_name = name .. '_' .. DIGEST, callback = callback, flags = flags_of(name) })
end

-- A refusal the caller raises as the error class of `code`.
local function refuse(code, text)
  return redis.error_reply('TM:' .. code .. ' ' .. string.gsub(text, '[\r\n]', ' '))
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Whole numbers as decimal text, exact to 2^53 and never in exponent form.
local function int(value)
  return string.format('%.0f', value)
end

-- Comparison of decimal strings without leading zeros: sequence ids are full int64, doubles are not.
local function decimal_less(left, right)
  if #left ~= #right then return #left < #right end
  return left < right
end

local function varint(value)
  local out = ''
  while value >= 128 do
    out = out .. string.char(128 + value % 128)
    value = math.floor(value / 128)
  end
  return out .. string.char(value)
end

local USER, SERVER = 1, 2

-- A serialized v1.Result { failure { category, message } }.
local function failure_bytes(category, message)
  local failure = '\8' .. string.char(category) .. '\18' .. varint(#message) .. message
  return '\10' .. varint(#failure) .. failure
end

local function pool_of(prefix)
  return string.match(prefix, '{p:(.-)}')
end

-- What one call to a settling function carries along. `settled` is published once at its end.
local function begin(prefix, retention_ms)
  return { prefix = prefix, now = now_ms(), retention = tonumber(retention_ms), settled = {} }
end

local function unit_key(prefix, unit)
  return prefix .. ':unit:' .. unit
end

local function row_key(prefix, key)
  return prefix .. ':req:' .. key
end

local function request_row(context, key)
  return row_key(context.prefix, key)
end

local function model_row(context, id)
  return context.prefix .. ':model:' .. id
end

-- Each trainer of a pool is a cell with slots, indexes and a clock of its own. The keys of the first one have
-- no suffix: a pool of one trainer is a pool of that cell. A model's row names its cell unless it is the first.
local FIRST_CELL = '0'

local function cell_key(prefix, cell, name)
  if cell == FIRST_CELL then return prefix .. ':' .. name end
  return prefix .. ':' .. name .. '@' .. cell
end

local function cell_of(context, id)
  return redis.call('HGET', model_row(context, id), 'cell') or FIRST_CELL
end

local function slots_of(context, id)
  return cell_key(context.prefix, cell_of(context, id), 'slots')
end

-- All there are, the first one always.
local function known_cells(prefix)
  local cells = { FIRST_CELL }
  for _, cell in ipairs(redis.call('SMEMBERS', prefix .. ':cells')) do table.insert(cells, cell) end
  return cells
end

-- What a tenant occupies in the pool, see _quota.lua.
local function usage_key(context, tenant)
  return context.prefix .. ':usage:' .. tenant
end

-- Where a payload or a large result lies: segments, or a file whose name is left for the sweeper.
local function drop_upload(prefix, upload, segments)
  if not upload or upload == '' then return end
  if string.sub(upload, 1, 5) == 'blob-' then
    redis.call('RPUSH', prefix .. ':dropped_blobs', upload)
    return
  end
  for index = 0, tonumber(segments) - 1 do
    redis.call('UNLINK', prefix .. ':pay:' .. upload .. ':' .. index)
  end
end

local function is_batch(op)
  return op == 'forward' or op == 'forward_backward'
end

-- The one place that decides when a command's payload may go: once it has settled, and no log entry
-- needs it for a replay any more (`logged` counts them, see _log.lua). A blob is a file: its name is
-- left for the sweeper. Small bodies stay: a retried save is answered from its first body.
local function release_payload(context, key)
  local row = request_row(context, key)
  local upload, segments, op, logged = unpack(redis.call('HMGET', row, 'upload', 'segments', 'op', 'logged'))
  if logged then return end
  if upload and upload ~= '' then
    drop_upload(context.prefix, upload, segments)
    redis.call('HSET', row, 'upload', '', 'segments', '0')
  end
  if is_batch(op) then redis.call('HDEL', row, 'command') end
end

-- What _quota.lua's `charge` counted.
local function discharge(context, row)
  local tenant, charged = unpack(redis.call('HMGET', row, 'tenant', 'charged'))
  if not charged then return end
  local usage = usage_key(context, tenant)
  redis.call('HINCRBY', usage, 'open', -1)
  redis.call('HINCRBY', usage, 'bytes', int(0 - tonumber(charged)))
  redis.call('HDEL', row, 'charged')
end

-- A result counts against its tenant (`results` of its usage) by `kept` of its row, from its settlement
-- until it goes.
local function count_result(context, key, bytes)
  local row = request_row(context, key)
  local tenant, kept = unpack(redis.call('HMGET', row, 'tenant', 'kept'))
  local more = bytes - tonumber(kept or 0)
  if more == 0 then return end
  redis.call('HINCRBY', usage_key(context, tenant), 'results', int(more))
  redis.call('HSET', row, 'kept', int(bytes))
end

-- Larger ones are moved to the shared store soon after they settled (`result_moved`).
local LARGE_RESULT_BYTES = 8388608

local function keep_result(context, key, bytes)
  count_result(context, key, bytes)
  if bytes > LARGE_RESULT_BYTES then redis.call('RPUSH', context.prefix .. ':large_results', key) end
end

-- The one place that lets a result go, wherever it lies. Its row may stay.
local function drop_result(context, key)
  local row = request_row(context, key)
  if redis.call('EXISTS', row) == 0 then return end
  drop_upload(context.prefix, unpack(redis.call('HMGET', row, 'result_upload', 'result_segments')))
  redis.call('UNLINK', context.prefix .. ':out:' .. key)
  count_result(context, key, 0)
  redis.call('HDEL', row, 'result', 'result_upload', 'result_segments', 'kept')
end

-- Gives a future its final outcome; the first one wins (FUT-01). `state` is done or failed. Without
-- `result` the parts stored under :out: are the result.
local function settle_row(context, key, state, result)
  local row = request_row(context, key)
  local old, request_id = unpack(redis.call('HMGET', row, 'state', 'request_id'))
  if not old or old == 'done' or old == 'failed' then return false end
  release_payload(context, key)
  discharge(context, row)
  local expires = context.now + context.retention
  redis.call('HSET', row, 'state', state, 'settled_ms', int(context.now), 'expires_ms', int(expires))
  if result then
    redis.call('HSET', row, 'result', result, 'result_bytes', #result)
    redis.call('UNLINK', context.prefix .. ':out:' .. key)
  end
  keep_result(context, key, tonumber(redis.call('HGET', row, 'result_bytes') or 0))
  if state == 'failed' then note_cause(context.prefix, row, context.now, result or '') end
  redis.call('ZADD', context.prefix .. ':expiring', expires, key)
  table.insert(context.settled, request_id)
  return true
end

local function fail_row(context, key, category, message)
  return settle_row(context, key, 'failed', failure_bytes(category, message))
end

-- One message for all that one call settled.
local function publish_settled(context)
  if #context.settled > 0 then
    redis.call('PUBLISH', 'tm:settled:' .. pool_of(context.prefix), table.concat(context.settled, ' '))
  end
end

local function publish_ready(prefix, kind)
  redis.call('PUBLISH', 'tm:ready:' .. pool_of(prefix), kind)
end

-- nil, or why `term` no longer drives this pool.
local function stale_term(prefix, term)
  local current = redis.call('HGET', prefix .. ':lease', 'term')
  if current == term then return nil end
  return refuse('stale_fence', 'term ' .. term .. ' is over; the pool is at term ' .. (current or '0'))
end

-- nil, or what is wrong with a stored payload. Its segments were SET with a TTL just before.
local function missing_segment(prefix, upload, segments)
  for index = 0, tonumber(segments) - 1 do
    if redis.call('EXISTS', prefix .. ':pay:' .. upload .. ':' .. index) == 0 then
      return refuse('unavailable', 'payload segment ' .. index .. ' expired before it was admitted; send the request again')
    end
  end
end

local function keep_segments(prefix, upload, segments)
  for index = 0, tonumber(segments) - 1 do
    redis.call('PERSIST', prefix .. ':pay:' .. upload .. ':' .. index)
  end
end

-- What a used key answers: its stored request id, a conflict, or the terminal answer of an
-- expired one under a new generation (IDEM-05, IDEM-09). nil = the key is new.
local function known_key(context, key, tenant, fingerprint)
  local row = request_row(context, key)
  local found = redis.call('HMGET', row, 'request_id', 'tenant', 'fingerprint', 'state', 'expires_ms')
  local request_id, owner, known, state, expires = unpack(found)
  if not request_id then return nil end
  if owner ~= tenant then return refuse('forbidden', 'this id belongs to another tenant') end
  if known ~= fingerprint then
    return refuse('key_conflict', 'this sequence id was already used with a different request; use the next one')
  end
  local over = (state == 'done' or state == 'failed') and expires ~= '0' and context.now >= tonumber(expires)
  if not over then return request_id end
  local stem, generation = string.match(request_id, '^(.*)%.(%d+)$')
  local successor = stem .. '.' .. int(tonumber(generation) + 1)
  local text = 'the result of this request expired after retention; it is not executed again'
  local result = failure_bytes(USER, text)
  drop_result(context, key)
  redis.call('HDEL', row, 'delivered_ms')
  redis.call('HSET', row, 'request_id', successor, 'state', 'failed', 'result', result, 'result_bytes', #result,
    'settled_ms', int(context.now), 'expires_ms', '0')
  count_result(context, key, #result)
  redis.call('ZREM', context.prefix .. ':expiring', key)
  return successor
end

register('ping', function() return 'pong' end)

-- KEYS: any. A small write, for WAIT and WAITAOF to wait for (functions.py).
register('confirm', function(keys)
  redis.call('SET', keys[1] .. ':confirm', '', 'EX', 60)
  return 1
end)
