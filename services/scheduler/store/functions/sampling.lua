-- Sampling sessions and samples. KEYS[1] is always the pool prefix; sequence ids stay strings.

local function session_key(prefix, id) return prefix .. ':sampling:' .. id end

-- ARGV: id, then field, value, … (tenant first). Answers the row's {tenant, base_model, model_path}.
register('sampling_open', function(keys, args)
  local key = session_key(keys[1], args[1])
  if redis.call('EXISTS', key) == 0 then
    redis.call('HSET', key, 'state', 'open', 'created_ms', int(now_ms()))
    for i = 2, #args, 2 do redis.call('HSET', key, args[i], args[i + 1]) end
  end
  return redis.call('HMGET', key, 'tenant', 'base_model', 'model_path')
end)

-- ARGV: id, reason, how long the row stays known (ms). No further sample is admitted; answers the
-- request keys that are still open.
register('sampling_close', function(keys, args)
  local key = session_key(keys[1], args[1])
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 'state', 'closed', 'reason', args[2])
    redis.call('PEXPIRE', key, args[3])
  end
  return redis.call('SMEMBERS', keys[1] .. ':sampling_open:' .. args[1])
end)

-- The final outcome of a sample, with everything that counts it as open. False = it was settled before.
local function settle_sample(context, key, state, result)
  local prefix = context.prefix
  local tenant, parent = unpack(redis.call('HMGET', row_key(prefix, key), 'tenant', 'parent'))
  if not settle_row(context, key, state, result) then return false end
  redis.call('HDEL', row_key(prefix, key), 'command', 'starts')
  redis.call('ZREM', prefix .. ':samples', key)
  redis.call('HDEL', prefix .. ':samples_running', key)
  redis.call('SREM', prefix .. ':sampling_open:' .. parent, key)
  redis.call('ZADD', prefix .. ':samples_settled', int(context.now + context.retention), key)
  if redis.call('HINCRBY', prefix .. ':sample_counts', tenant, -1) <= 0 then
    redis.call('HDEL', prefix .. ':sample_counts', tenant)
  end
  return true
end

local function refused_session(session, tenant)
  if not session[1] then return refuse('unknown_id', 'sampling_session_id is not known, or its session is gone') end
  if session[1] ~= tenant then return refuse('forbidden', 'sampling session belongs to another tenant') end
  if session[2] == 'closed' then
    return refuse('unknown_id', 'sampling session is closed: ' .. (session[6] or ''))
  end
  return nil
end

-- ARGV: 1 sampling session id, 2 request key, 3 tenant, 4 fingerprint, 5 seq id, 6 sequence ids,
-- 7 command, 8 traceparent, 9 limit of open samples per tenant, 10 retention (ms), 11 a result when
-- the sample fails at once, else '', 12 the limits (_quota.lua), 13 the starts of its prompt ('' = none).
-- Answers {request id, sequence ids}.
register('sampling_admit', function(keys, args)
  local prefix, key, tenant = keys[1], args[2], args[3]
  local context = begin(prefix, args[10])
  local held = redis.call('HGET', row_key(prefix, key), 'request_id')
  local known = known_key(context, key, tenant, args[4])
  if type(known) == 'table' then return known end
  if known and known ~= held then -- the terminal answer of an expired key: who waits for it hears of it
    note_completion(context, key)
    publish_settled(context)
  end
  if known then return { known, redis.call('HGET', row_key(prefix, key), 'sequence_ids') } end
  local session = redis.call('HMGET', session_key(prefix, args[1]),
    'tenant', 'state', 'session', 'adapter_name', 'adapter_path', 'reason')
  local refusal = refused_session(session, tenant)
  if refusal then return refusal end
  local counts, most = prefix .. ':sample_counts', tonumber(args[9])
  local open = open_samples(context, tenant)
  if most > 0 and open >= most then
    return over('samples', int(open) .. ' of ' .. int(most) .. ' are in flight', 'await some of them')
  end
  local limits = limits_of(args[12])
  local busy = quota_refusal(context, tenant, limits, #args[7], false, false)
  if busy then return busy end
  local request_id = pool_of(prefix) .. '.' .. key .. '.0'
  local arrival = int(redis.call('INCR', prefix .. ':arrival'))
  local sequences = select(2, string.gsub(args[6], ' ', '')) + 1
  redis.call('HSET', row_key(prefix, key), 'request_id', request_id, 'fingerprint', args[4], 'tenant', tenant,
    'session', session[3], 'parent', args[1], 'kind', 'sample', 'op', 'sample', 'seq', args[5],
    'arrival', arrival, 'state', 'queued', 'command', args[7], 'traceparent', args[8], 'units', '',
    'sequence_ids', args[6], 'sequences', sequences, 'adapter_name', session[4], 'adapter_path', session[5],
    'admitted_ms', int(context.now))
  if args[13] ~= '' then redis.call('HSET', row_key(prefix, key), 'starts', args[13]) end
  redis.call('HINCRBY', counts, tenant, 1)
  charge(context, tenant, key, limits, #args[7])
  redis.call('SADD', prefix .. ':sampling_open:' .. args[1], key)
  if args[11] ~= '' then
    settle_sample(context, key, 'failed', args[11])
    note_completion(context, key)
  else
    redis.call('ZADD', prefix .. ':samples', arrival, key)
    publish_ready(prefix, 'sample')
  end
  publish_settled(context)
  return { request_id, args[6] }
end)

-- ARGV: highest arrival already known, how many. Answers {key, arrival, …} of waiting samples after it.
register('sampling_waiting', function(keys, args)
  return redis.call('ZRANGEBYSCORE', keys[1] .. ':samples', '(' .. args[1], '+inf', 'WITHSCORES', 'LIMIT', 0, args[2])
end)

-- ARGV: term, then key, sampler id, … Marks them as running there, also when they ran elsewhere
-- before. Answers per key the command, or '' when it is settled. Refused under another term.
register('sampling_start', function(keys, args)
  local prefix = keys[1]
  local stale = stale_term(prefix, args[1])
  if stale then return stale end
  local commands, context = {}, begin(prefix, 0)
  for i = 2, #args, 2 do
    local key, sampler = args[i], args[i + 1]
    local row = redis.call('HMGET', row_key(prefix, key), 'state', 'command', 'units', 'events')
    if row[1] == 'queued' or row[1] == 'running' then
      local units = row[3] == '' and sampler or (row[3] .. ' ' .. sampler)
      redis.call('HSET', row_key(prefix, key), 'state', 'running', 'issued_ms', int(context.now), 'units', units,
        'events', with_event(context, row[4], 'issued', '', sampler))
      redis.call('ZREM', prefix .. ':samples', key)
      redis.call('HSET', prefix .. ':samples_running', key, sampler)
      commands[#commands + 1] = row[2]
    else
      commands[#commands + 1] = ''
    end
  end
  return commands
end)

-- ARGV: request key. A running sample waits again at its old place.
register('sampling_requeue', function(keys, args)
  local prefix, key = keys[1], args[1]
  local row = redis.call('HMGET', row_key(prefix, key), 'state', 'arrival')
  if row[1] ~= 'running' then return row[1] == 'queued' and 1 or 0 end
  redis.call('HSET', row_key(prefix, key), 'state', 'queued')
  note_event(begin(prefix, 0), row_key(prefix, key), 'queued', '', '', 'its sampler did not run it')
  redis.call('HDEL', prefix .. ':samples_running', key)
  redis.call('ZADD', prefix .. ':samples', row[2], key)
  return 1
end)

local function missing_record(prefix, upload, count)
  for index = 0, count - 1 do
    if redis.call('EXISTS', prefix .. ':recording:' .. upload .. ':' .. index) == 0 then
      return refuse('unavailable', 'record ' .. index .. ' expired before its sample was settled; settle it again')
    end
  end
end

-- They live as long as they were written for, see records.lua.
local function keep_records(context, key, upload, count)
  if count == 0 then return end
  local prefix, bytes = context.prefix, 0
  local tenant = redis.call('HGET', row_key(prefix, key), 'tenant')
  for index = 0, count - 1 do
    local record = prefix .. ':record:' .. key .. ':' .. index
    redis.call('RENAME', prefix .. ':recording:' .. upload .. ':' .. index, record)
    local ends = context.now + redis.call('PTTL', record)
    redis.call('PERSIST', record)
    redis.call('ZADD', prefix .. ':records', int(ends), tenant .. ' ' .. key .. ' ' .. index)
    bytes = bytes + redis.call('STRLEN', record)
  end
  redis.call('HINCRBY', usage_key(context, tenant), 'records', int(bytes))
  redis.call('HSET', row_key(prefix, key), 'recorded', '1')
end

-- ARGV: request key, done|failed, result, retention (ms), upload and number of segments of a large
-- result ('' and 0 = it is in `result`), its size, upload and number of its recorded sequences ('' and
-- 0 = none). The first settlement wins. Answers {1 = this one won, the sampler it ran on or ''}.
register('sampling_settle', function(keys, args)
  local prefix, key = keys[1], args[1]
  local context = begin(prefix, args[4])
  local sampler = redis.call('HGET', prefix .. ':samples_running', key) or ''
  local missing = missing_record(prefix, args[8], tonumber(args[9]))
  if missing then return missing end
  if not settle_sample(context, key, args[2], args[3]) then return { 0, '' } end
  if args[2] == 'done' and sampler ~= '' then
    note_event(context, row_key(prefix, key), 'executed', '', sampler, 'done')
  end
  if args[5] ~= '' then
    redis.call('HDEL', row_key(prefix, key), 'result')
    redis.call('HSET', row_key(prefix, key), 'result_upload', args[5], 'result_segments', args[6], 'result_bytes', args[7])
    keep_result(context, key, tonumber(args[7]))
  end
  keep_records(context, key, args[8], tonumber(args[9]))
  note_completion(context, key)
  publish_settled(context)
  return { 1, sampler }
end)

-- ARGV: how many, how long a row without its result stays (ms). Results past their retention go; the
-- rows stay while their sampling session is known. Answers how many were looked at.
register('sampling_sweep', function(keys, args)
  local prefix = keys[1]
  local now = now_ms()
  local index = prefix .. ':samples_settled'
  local due = redis.call('ZRANGEBYSCORE', index, '-inf', int(now), 'LIMIT', 0, args[1])
  for _, key in ipairs(due) do
    local parent = redis.call('HGET', row_key(prefix, key), 'parent')
    drop_result({ prefix = prefix }, key)
    if parent and redis.call('EXISTS', session_key(prefix, parent)) == 1 then
      redis.call('HDEL', row_key(prefix, key), 'command')
      redis.call('ZADD', index, int(now + tonumber(args[2])), key)
    else
      redis.call('DEL', row_key(prefix, key))
      redis.call('ZREM', index, key)
    end
  end
  return #due
end)
