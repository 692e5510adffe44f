-- Admission: the key is claimed, the command queued and its payload kept in one step, or nothing is.

local function refused_as_closed(context, row)
  local reason = redis.call('HGET', row, 'reason')
  return refuse('model_closed', 'model is closed: ' .. (reason or ''))
end

-- What every admission asks first: an answer to give at once, or nil and the model's row fields.
local function checked(context, a)
  local row = model_row(context, a.model)
  local owner, state, ending, next_seq = unpack(redis.call('HMGET', row, 'tenant', 'state', 'ending', 'next_seq'))
  if not owner and not is_create(a.op) then
    return refuse('unknown_id', 'model_id ' .. a.model .. ' is not known; create the model first')
  end
  if owner and owner ~= a.tenant then
    return refuse('forbidden', 'model_id ' .. a.model .. ' belongs to another tenant')
  end
  return known_key(context, a.key, a.tenant, a.fingerprint), { state = state, ending = ending, next_seq = next_seq }
end

local function store_row(context, a)
  local request_id = pool_of(context.prefix) .. '.' .. a.key .. '.0'
  local arrival = int(redis.call('INCR', context.prefix .. ':arrival'))
  redis.call('HSET', request_row(context, a.key),
    'request_id', request_id, 'fingerprint', a.fingerprint, 'tenant', a.tenant, 'session', a.session,
    'parent', a.model, 'kind', 'train', 'op', a.op, 'seq', a.seq, 'arrival', arrival, 'state', 'queued',
    'pack', a.pack, 'datums', a.datums, 'tokens', a.tokens, 'issued', '0', 'reported', '0', 'flying', '0',
    'command', a.command, 'upload', a.upload, 'segments', a.segments, 'payload_bytes', a.payload_bytes,
    'traceparent', a.traceparent, 'rejected', a.rejected, 'units', '', 'admitted_ms', int(context.now))
  redis.call('SADD', context.prefix .. ':rows:' .. a.model, a.key)
  keep_segments(context.prefix, a.upload, a.segments)
  charge(context, a.tenant, a.key, a.limits, a.payload_bytes)
  return request_id, arrival
end

local function admitted(context, request_id)
  context.wake = true
  finish(context)
  return { request_id, int(context.now) }
end

local function arguments(args)
  return {
    key = args[2], fingerprint = args[3], tenant = args[4], session = args[5], model = args[6], seq = args[7],
    op = args[8], pack = args[9], datums = args[10], tokens = args[11], command = args[12], upload = args[13],
    segments = args[14], payload_bytes = args[15], traceparent = args[16], rejected = args[17],
    limits = limits_of(args[#args]),
  }
end

local function missing_payload(prefix, a)
  if a.upload == '' or string.sub(a.upload, 1, 5) == 'blob-' then return nil end
  return missing_segment(prefix, a.upload, a.segments)
end

-- args: retention_ms, key, fingerprint, tenant, session, model, seq, op, pack, datums, tokens, command,
-- upload, segments, payload_bytes, traceparent, rejected, last the limits (_quota.lua; '' = none). Answers
-- {request id, admitted ms}, or the request id alone when the key was used before.
register('train_submit', function(keys, args)
  local context, a = begin(keys[1], args[1]), arguments(args)
  local answer, model = checked(context, a)
  if answer then return answer end
  local row = model_row(context, a.model)
  if model.ending == '1' then return refused_as_closed(context, row) end
  if decimal_less(a.seq, model.next_seq) then
    return refuse('invalid_input', 'seq_id ' .. a.seq .. ' lies before the next one of this model, ' .. model.next_seq)
  end
  local head = a.seq == model.next_seq
  local waited_for = head and redis.call('HLEN', queue_of(context, a.model)) > 0
  local busy = quota_refusal(context, a.tenant, a.limits, tonumber(a.payload_bytes), head, waited_for)
  if busy then return busy end
  local missing = missing_payload(context.prefix, a)
  if missing then return missing end

  local request_id = store_row(context, a)
  redis.call('HSET', queue_of(context, a.model), a.seq, a.key)
  redis.call('HSET', row, 'last_request_ms', int(context.now))
  advance(context, a.model)
  return admitted(context, request_id)
end)

-- args as train_submit (seq is 0), then base_model, layout, user_metadata, cells to choose from (by spaces, '' = the
-- first) before the limits.
register('train_create', function(keys, args)
  local context, a = begin(keys[1], args[1]), arguments(args)
  local answer = checked(context, a)
  if answer then return answer end
  if redis.call('EXISTS', context.prefix .. ':ended:' .. a.session) == 1 then
    return refuse('invalid_input', 'session_id ' .. a.session .. ' has ended; create a new session')
  end
  local busy = model_refusal(context, a.tenant, a.limits)
  if busy then return busy end

  local request_id, arrival = store_row(context, a)
  settle_in(context, a.model, emptiest(context, args[21]) or FIRST_CELL)
  redis.call('HSET', model_row(context, a.model), 'tenant', a.tenant, 'session', a.session, 'state', 'creating',
    'next_seq', '0', 'inflight', '0', 'slot', '', 'load_number', '0', 'window_rejected', '0', 'snapshots', '0',
    'counted', '1', 'base_model', args[18], 'layout', args[19], 'user_metadata', args[20],
    'created_ms', int(context.now), 'last_request_ms', int(context.now))
  redis.call('HSET', queue_of(context, a.model), '0', a.key)
  redis.call('SADD', context.prefix .. ':session_models:' .. a.session, a.model)
  redis.call('HINCRBY', usage_key(context, a.tenant), 'models', 1)
  if a.rejected == '' then redis.call('ZADD', index_key(context, a.model, 'creates'), arrival, a.model) end
  advance(context, a.model)
  return admitted(context, request_id)
end)

-- args as train_submit (seq is empty); no quota refuses what only frees something. An ordered end: accepted
-- work settles first. A model that is closed already answers at once.
register('train_unload', function(keys, args)
  local context, a = begin(keys[1], args[1]), arguments(args)
  local answer, model = checked(context, a)
  if answer then return answer end

  local request_id = store_row(context, a)
  redis.call('HSET', model_row(context, a.model), 'unload_key', a.key)
  if model.state == 'closed' then
    settle_unload(context, a.model)
  else
    end_model(context, a.model, 'model was unloaded by its client')
  end
  return admitted(context, request_id)
end)
