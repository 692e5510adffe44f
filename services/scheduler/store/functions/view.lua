-- What the pure core chooses from: models with issuable work, in one bounded read.

local MODEL = { 'tenant', 'slot', 'load_number', 'next_seq', 'window_rejected', 'doomed' }
local COMMAND = { 'op', 'seq', 'arrival', 'pack', 'datums', 'issued', 'rejected', 'group', 'state', 'tokens' }

-- The unsettled commands from the head on: the run, or the one barrier. Bounded by `tokens`.
local function commands_of(prefix, id, next_seq, tokens, limit)
  local found, seq, spent = {}, next_seq, 0
  while #found < limit and spent <= tokens do
    local key = redis.call('HGET', prefix .. ':queue:' .. id, seq)
    if not key then break end
    local row = redis.call('HMGET', row_key(prefix, key), unpack(COMMAND))
    local batch = is_batch(row[1])
    if not passed(row[9]) then
      if row[7] ~= '' or (not batch and #found > 0) then break end
      table.insert(found, { key, row[1], row[2], row[3], row[4], row[5], row[6], row[8] or '' })
      if not batch then break end
      if row[6] ~= row[5] then spent = spent + tonumber(row[10]) end
    end
    seq = int(tonumber(seq) + 1)
  end
  return found
end

local function model_view(prefix, id, tokens, limit)
  local tenant, slot, load_number, next_seq, rejected, doomed = unpack(redis.call('HMGET', prefix .. ':model:' .. id, unpack(MODEL)))
  if not tenant or doomed == '1' then return nil end
  return { id, tenant, slot, load_number, rejected, commands_of(prefix, id, next_seq, tokens, limit) }
end

-- args: tokens per model, commands per model. Answers {models, slots (flat hash), served (flat hash)}.
register('train_view', function(keys, args)
  local prefix, tokens, limit = keys[1], tonumber(args[1]), tonumber(args[2])
  local slots, free = redis.call('HGETALL', prefix .. ':slots'), 0
  for index = 2, #slots, 2 do
    if slots[index] == '' then free = free + 1 end
  end
  local models = {}
  for _, id in ipairs(redis.call('ZRANGE', prefix .. ':active', 0, -1)) do
    table.insert(models, model_view(prefix, id, tokens, limit))
  end
  if free > 0 then
    for _, id in ipairs(redis.call('ZRANGE', prefix .. ':creates', 0, free - 1)) do
      table.insert(models, model_view(prefix, id, tokens, limit))
    end
  end
  return { models, slots, redis.call('HGETALL', prefix .. ':served') }
end)
