-- The consistency check: each function looks at some names, repairs what cannot be as it is, and answers
-- its findings {class, subject, …}. Every repair is a state the other functions could have made, so
-- a check may run beside them. What cannot be repaired without guessing is only reported.
--
-- KEYS: pool prefix. ARGV of each: retention_ms, then what it says. A call looks at what it is told and no
-- more: how much that is, its caller bounds.

local function open_report(prefix, retention_ms)
  local context = begin(prefix, retention_ms)
  context.found = {}
  return context
end

local function found(context, class, subject)
  table.insert(context.found, class)
  table.insert(context.found, subject)
end

local function report(context)
  finish(context)
  return context.found
end

local function settled(state) return state == 'done' or state == 'failed' end

local FIELDS = { 'request_id', 'kind', 'state', 'op', 'parent', 'seq', 'upload', 'segments', 'expires_ms', 'result_bytes',
  'arrival', 'flying', 'units', 'result_upload', 'result_segments', 'charged' }

local function read_row(context, key)
  local values, row = redis.call('HMGET', request_row(context, key), unpack(FIELDS)), {}
  for index, name in ipairs(FIELDS) do row[name] = values[index] or nil end
  return row
end

local function segments_missing(context, upload, count)
  for index = 0, tonumber(count) - 1 do
    if redis.call('EXISTS', context.prefix .. ':pay:' .. upload .. ':' .. index) == 0 then return true end
  end
end

-- A segment of an accepted payload must not run out.
local function keep_alive(context, key, row)
  for index = 0, tonumber(row.segments) - 1 do
    if redis.call('PERSIST', context.prefix .. ':pay:' .. row.upload .. ':' .. index) == 1 then
      found(context, 'payload_with_ttl', key)
    end
  end
end

local LOST_PAYLOAD = 'its payload was lost by the store; it was not executed'

-- Fails in its turn, as a command that was rejected at admission.
local function reject(context, key, row, text)
  if row.state ~= 'queued' then return end
  redis.call('HSET', request_row(context, key), 'rejected', text)
  advance(context, row.parent)
end

local function check_payload(context, key, row)
  if not row.upload or row.upload == '' or string.sub(row.upload, 1, 5) == 'blob-' then return end
  if not segments_missing(context, row.upload, row.segments) then return keep_alive(context, key, row) end
  if redis.call('HGET', request_row(context, key), 'rejected') ~= '' then return end
  found(context, 'payload_lost', key)
  reject(context, key, row, LOST_PAYLOAD)
end

local function fail_and_go_on(context, key, row, text)
  fail_row(context, key, SERVER, text)
  if row.parent and redis.call('EXISTS', model_row(context, row.parent)) == 1 then advance(context, row.parent) end
end

-- Whether the command is where its model looks for it.
local function check_place(context, key, row)
  local model = model_row(context, row.parent)
  local state, next_seq = unpack(redis.call('HMGET', model, 'state', 'next_seq'))
  if not state or state == 'closed' then
    found(context, state and 'row_of_closed_model' or 'row_without_model', key)
    fail_and_go_on(context, key, row, 'its model is gone; create a new model')
    return false
  end
  if redis.call('HGET', queue_of(context, row.parent), row.seq) == key then return true end
  found(context, 'row_not_queued', key)
  if decimal_less(row.seq, next_seq) then
    fail_and_go_on(context, key, row, 'it lost its place in the order of its model; it was not executed')
    return false
  end
  redis.call('HSET', queue_of(context, row.parent), row.seq, key)
  advance(context, row.parent)
  return true
end

-- Datums are with a trainer, but no unit says so: whether they took effect cannot be known.
local function check_flight(context, key, row)
  if row.state ~= 'running' or tonumber(row.flying or 0) <= 0 then return end
  for unit in string.gmatch(row.units or '', '%S+') do
    if redis.call('EXISTS', unit_key(context.prefix, unit)) == 1 then return end
  end
  found(context, 'running_without_unit', key)
  local path = redis.call('HGET', model_row(context, row.parent), 'last_checkpoint')
  redis.call('HSET', model_row(context, row.parent), 'inflight', '0')
  redis.call('HSET', request_row(context, key), 'flying', '0')
  close_model(context, row.parent, SERVER, 'the record of a running unit was lost; '
    .. (path and path ~= '' and 'restore from ' .. path or 'no checkpoint was saved: create a new model'))
end

local function check_command(context, key, row)
  if row.op == 'unload_model' or row.state == 'captured' then return end
  if not check_place(context, key, row) then return end
  check_payload(context, key, row)
  check_flight(context, key, row)
end

local function check_sample(context, key, row)
  local waiting = redis.call('ZSCORE', context.prefix .. ':samples', key)
  local running = redis.call('HEXISTS', context.prefix .. ':samples_running', key) == 1
  if redis.call('SADD', context.prefix .. ':sampling_open:' .. row.parent, key) == 1 then
    found(context, 'sample_not_listed', key)
  end
  if waiting or running then return end
  found(context, 'sample_not_queued', key)
  redis.call('HSET', request_row(context, key), 'state', 'queued')
  redis.call('ZADD', context.prefix .. ':samples', row.arrival, key)
  publish_ready(context.prefix, 'sample')
end

local function result_lost(context, key, row)
  if row.state ~= 'done' or tonumber(row.result_bytes or 0) == 0 then return false end
  if redis.call('HEXISTS', request_row(context, key), 'result') == 1 then return false end
  if string.sub(row.result_upload or '', 1, 5) == 'blob-' then return false end
  if row.result_upload then return segments_missing(context, row.result_upload, row.result_segments) end
  return redis.call('EXISTS', context.prefix .. ':out:' .. key) == 0
end

local function check_settled(context, key, row)
  local expires = tonumber(row.expires_ms or 0)
  if row.charged then
    found(context, 'settled_but_charged', key)
    discharge(context, request_row(context, key))
  end
  if expires == 0 or expires <= context.now then return end
  if result_lost(context, key, row) then
    found(context, 'result_lost', key)
    local result = failure_bytes(SERVER, 'it was executed, but its result was lost by the store')
    drop_result(context, key)
    redis.call('HSET', request_row(context, key), 'state', 'failed', 'result', result, 'result_bytes', #result)
    count_result(context, key, #result)
  end
  if not redis.call('ZSCORE', context.prefix .. ':expiring', key) then
    found(context, 'result_without_end', key)
    redis.call('ZADD', context.prefix .. ':expiring', int(expires), key)
  end
end

local function check_row(context, key)
  local row = read_row(context, key)
  if not row.request_id then
    if redis.call('EXISTS', request_row(context, key)) == 0 then return end
    found(context, 'row_without_id', key)
    redis.call('UNLINK', request_row(context, key), context.prefix .. ':out:' .. key)
  elseif settled(row.state) then
    check_settled(context, key, row)
  elseif row.kind == 'sample' then
    check_sample(context, key, row)
  else
    check_command(context, key, row)
  end
end

-- args: retention_ms, request keys.
register('check_rows', function(keys, args)
  local context = open_report(keys[1], args[1])
  for index = 2, #args do check_row(context, args[index]) end
  return report(context)
end)

-- args: retention_ms, request keys whose payload files are gone.
register('check_lost_payloads', function(keys, args)
  local context = open_report(keys[1], args[1])
  for index = 2, #args do
    local key = args[index]
    local row = read_row(context, key)
    if row.request_id and not settled(row.state) and row.upload ~= '' then
      found(context, 'payload_lost', key)
      reject(context, key, row, LOST_PAYLOAD)
    end
  end
  return report(context)
end)

local function drop_from_indexes(context, id)
  local names = { context.prefix .. ':gaps' }
  for _, cell in ipairs(known_cells(context.prefix)) do
    for _, name in ipairs({ 'active', 'creates', 'seekers', 'recovering', 'unseated', 'durables' }) do
      table.insert(names, cell_key(context.prefix, cell, name))
    end
  end
  for _, name in ipairs(names) do
    if redis.call('ZREM', name, id) == 1 then found(context, 'index_of_closed_model', id) end
  end
end

local function is_open(context, id)
  local state = redis.call('HGET', model_row(context, id), 'state')
  return state and state ~= 'closed'
end

-- args: retention_ms, model, then the sequence ids of its queue that are looked at.
register('check_queue', function(keys, args)
  local context, id = open_report(keys[1], args[1]), args[2]
  for index = 3, is_open(context, id) and #args or 0 do
    local key = redis.call('HGET', queue_of(context, id), args[index])
    if key and redis.call('HGET', request_row(context, key), 'parent') ~= id then
      found(context, 'queued_without_row', key)
      redis.call('HDEL', queue_of(context, id), args[index])
    end
  end
  return report(context)
end)

-- What a replay of the model would miss. Its slot still holds the effect: nothing is closed for it now.
local function check_entry(context, id, entry)
  local row = read_row(context, entry.k)
  if not row.request_id then
    found(context, 'log_without_row', id .. ' ' .. entry.k)
  elseif is_batch(entry.o) and row.upload and string.sub(row.upload, 1, 5) ~= 'blob-'
    and (row.upload == '' or segments_missing(context, row.upload, row.segments)) then
    found(context, 'logged_payload_lost', entry.k)
  end
end

-- args: retention_ms, model, log position ('' = where its log begins), how many entries. Answers the position
-- that comes next ('' = that was the end), then the findings. What a durable point covers meanwhile is passed over.
register('check_log', function(keys, args)
  local context, id, count = open_report(keys[1], args[1]), args[2], tonumber(args[4])
  local base_pos = tonumber(redis.call('HGET', model_row(context, id), 'base_pos') or 0)
  local first = math.max(tonumber(args[3]) or 0, base_pos) - base_pos
  local texts = is_open(context, id) and redis.call('LRANGE', log_key(context, id), first, first + count - 1) or {}
  for _, text in ipairs(texts) do check_entry(context, id, cjson.decode(text)) end
  table.insert(context.found, 1, #texts == count and int(base_pos + first + count) or '')
  return report(context)
end)

local function check_open_model(context, id, state)
  local active = redis.call('ZSCORE', index_key(context, id, 'active'), id)
  local waiting = redis.call('ZSCORE', index_key(context, id, 'creates'), id)
  advance(context, id)
  if not active and redis.call('ZSCORE', index_key(context, id, 'active'), id) then found(context, 'model_not_active', id) end
  if state ~= 'creating' or waiting then return end
  local key = redis.call('HGET', queue_of(context, id), '0')
  local row = key and read_row(context, key)
  if row and row.state == 'queued' and redis.call('HGET', request_row(context, key), 'rejected') == '' then
    found(context, 'create_not_queued', id)
    redis.call('ZADD', index_key(context, id, 'creates'), row.arrival, id)
    context.wake = true
  end
end

-- args: retention_ms, model ids. Their queues and logs are check_queue's and check_log's.
register('check_models', function(keys, args)
  local context = open_report(keys[1], args[1])
  for index = 2, #args do
    local id = args[index]
    local state = redis.call('HGET', model_row(context, id), 'state')
    if state == 'closed' then
      drop_from_indexes(context, id)
    elseif state then
      check_open_model(context, id, state)
    end
  end
  return report(context)
end)

local function check_slots(context, cell)
  local slots = cell_key(context.prefix, cell, 'slots')
  local flat = redis.call('HGETALL', slots)
  for index = 1, #flat, 2 do
    local holder = flat[index + 1]
    if string.find(holder, '^[^:]+:train:%d+$') then
      local state = redis.call('HGET', model_row(context, holder), 'state')
      if not state or state == 'closed' then
        found(context, 'slot_without_model', flat[index] .. ' ' .. holder)
        redis.call('HSET', slots, flat[index], 'unload:' .. holder)
        context.wake = true
      end
    end
  end
end

-- args: retention_ms, ids of unit records. The set of running units and the records must agree.
register('check_units', function(keys, args)
  local context = open_report(keys[1], args[1])
  local running = context.prefix .. ':units'
  for _, unit in ipairs(redis.call('SMEMBERS', running)) do
    if redis.call('HGET', unit_key(context.prefix, unit), 'state') ~= 'running' then
      found(context, 'unit_without_record', unit)
      redis.call('SREM', running, unit)
    end
  end
  for index = 2, #args do
    local unit = args[index]
    local state, text = unpack(redis.call('HMGET', unit_key(context.prefix, unit), 'state', 'items'))
    if state == 'running' and redis.call('SADD', running, unit) == 1 then found(context, 'unit_not_listed', unit) end
    for _, item in ipairs(state == 'running' and cjson.decode(text) or {}) do
      if item.k and redis.call('EXISTS', request_row(context, item.k)) == 0 then
        found(context, 'unit_without_row', unit .. ' ' .. item.k)
      end
    end
  end
  for _, cell in ipairs(known_cells(context.prefix)) do check_slots(context, cell) end
  return report(context)
end)

local INDEXES = {
  active = { 'ZREM', ':model:' }, creates = { 'ZREM', ':model:' }, gaps = { 'ZREM', ':model:' },
  seekers = { 'ZREM', ':model:' }, recovering = { 'ZREM', ':model:' }, unseated = { 'ZREM', ':model:' },
  durables = { 'ZREM', ':model:' }, closed = { 'ZREM', ':model:' }, expiring = { 'ZREM', ':req:' }, samples = { 'ZREM', ':req:' },
  samples_settled = { 'ZREM', ':req:' }, samples_running = { 'HDEL', ':req:' }, capturing = { 'SREM', ':req:' },
}

-- args: retention_ms, name of an index, members of it. Those that name nothing go.
register('check_index', function(keys, args)
  local context, name = open_report(keys[1], args[1]), args[2]
  local command, kind = unpack(INDEXES[string.match(name, '^[^@]+')])  -- name, or name@cell
  for index = 3, #args do
    if redis.call('EXISTS', context.prefix .. kind .. args[index]) == 0
      and redis.call(command, context.prefix .. ':' .. name, args[index]) == 1 then
      found(context, 'index_without_row', name .. ' ' .. args[index])
    end
  end
  return report(context)
end)

-- args: retention_ms, tenant, then what its usage must be: models, open, bytes, results, samples.
-- Only for a pool in which nobody else works: the caller has counted.
register('check_usage', function(keys, args)
  local context, tenant = open_report(keys[1], args[1]), args[2]
  local usage, counts = usage_key(context, tenant), context.prefix .. ':sample_counts'
  for index, name in ipairs({ 'models', 'open', 'bytes', 'results' }) do
    local held, counted = redis.call('HGET', usage, name) or '0', args[index + 2]
    if held ~= counted then
      found(context, 'usage_wrong', tenant .. ' ' .. name .. ' ' .. held .. ' instead of ' .. counted)
      redis.call('HSET', usage, name, counted)
    end
  end
  local held, counted = redis.call('HGET', counts, tenant) or '0', args[7]
  if held ~= counted then
    found(context, 'usage_wrong', tenant .. ' samples ' .. held .. ' instead of ' .. counted)
    if counted == '0' then redis.call('HDEL', counts, tenant) else redis.call('HSET', counts, tenant, counted) end
  end
  return report(context)
end)
