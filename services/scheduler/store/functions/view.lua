-- What the pure core chooses from: models with issuable work, in one bounded read.

local MODEL = { 'tenant', 'slot', 'load_number', 'next_seq', 'window_rejected', 'doomed', 'log_bytes', 'base_pos', 'barrier_pos' }
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

-- Those that may be issued now: at the limit of its log a model waits for the durable point that is due.
local function issuable(commands, full)
  if full ~= 'uncovered' then return commands end
  local found = {}
  for _, command in ipairs(commands) do
    if command[2] == 'forward_backward' then break end
    table.insert(found, command)
  end
  return found
end

local function model_view(prefix, id, tokens, limit, most)
  local row = redis.call('HMGET', prefix .. ':model:' .. id, unpack(MODEL))
  local tenant, slot, load_number, next_seq, rejected, doomed = unpack(row, 1, 6)
  if not tenant or doomed == '1' then return nil end
  local commands = issuable(commands_of(prefix, id, next_seq, tokens, limit), log_full(most, unpack(row, 7, 9)))
  return { id, tenant, slot, load_number, rejected, commands }
end

local GROUP = 256

-- The entries of the unit that comes next in a model's log, as {entry, …}.
local function next_group(prefix, id, base_pos, applied)
  local group, unit = {}, nil
  for _, text in ipairs(redis.call('LRANGE', prefix .. ':log:' .. id, applied - base_pos, applied - base_pos + GROUP - 1)) do
    local entry = cjson.decode(text)
    unit = unit or entry.u
    if entry.u ~= unit then break end
    table.insert(group, text)
  end
  return group
end

local RECOVERING = { 'tenant', 'slot', 'load_number', 'phase', 'base_pos', 'applied', 'log_end', 'replay_alone', 'inflight',
  'next_seq', 'captures', 'doomed' }

local function recovering_view(prefix, id)
  local row = redis.call('HMGET', prefix .. ':model:' .. id, unpack(RECOVERING))
  if not row[1] or row[12] == '1' or row[4] ~= 'replaying' or row[9] ~= '0' then return nil end
  local waits = redis.call('HEXISTS', prefix .. ':queue:' .. id, row[10]) == 1 or tonumber(row[11] or 0) > 0
  local applied = tonumber(row[6])
  return { id, row[1], row[2], row[3], waits and '1' or '', row[8] or '', row[6], next_group(prefix, id, tonumber(row[5]), applied) }
end

local SEATED = { 'load_number', 'phase', 'inflight', 'doomed', 'last_request_ms', 'worked_ms', 'seated_ms', 'base_pos',
  'barrier_pos', 'base', 'captures', 'durable_after' }

-- One whose save is being written would want its slot back at once; one whose durable point has just failed
-- would have another captured at once.
local function may_leave(row, now)  -- `now` = math.huge: whatever has become of its last one
  local live = row[2] == 'live' and row[3] == '0' and row[4] ~= '1' and (row[10] or '') ~= ''
  return live and tonumber(row[11] or 0) == 0 and tonumber(row[12] or 0) <= now
end

-- What may be paged out, of the slots that are held; of a trainer that is being emptied all that can leave.
local function seated_view(prefix, cell, slots, now, leaving)
  local found = {}
  for index = 1, #slots, 2 do
    local id = slots[index + 1]
    if id ~= '' and not string.match(id, '^unload:') and not string.match(id, '^quarantine:') then
      local row = redis.call('HMGET', prefix .. ':model:' .. id, unpack(SEATED))
      if may_leave(row, leaving and math.huge or now) then
        local idle = math.max(tonumber(row[5] or 0), tonumber(row[6] or 0))
        local busy = redis.call('ZSCORE', cell_key(prefix, cell, 'active'), id)
        local running = redis.call('HEXISTS', prefix .. ':durables_running', id)
        local uncovered = tonumber(row[9] or 0) > tonumber(row[8] or 0) and tonumber(row[12] or 0) <= now
        table.insert(found, { id, slots[index], row[1], busy and '' or int(idle), row[7] or '0', uncovered and '1' or '', int(running) })
      end
    end
  end
  return found
end

-- nil while its last seat on this trainer failed a moment ago.
local function seek_view(prefix, cell, id, since, now)
  local home, after, faults_of = unpack(redis.call('HMGET', prefix .. ':model:' .. id, 'home', 'seat_after', 'faults_of'))
  if tonumber(after or 0) > now and redis.call('HGET', cell_key(prefix, cell, 'cell'), 'incarnation') == faults_of then return nil end
  return { id, since, home or '' }
end

local SEEKERS = 16

-- {recovering, seekers, due durable points, idle lost models, unseated models, seated models, oldest waiting create, now}
local function recovery_view(prefix, cell, slots, free, now, leaving)
  local recovering, seekers, due, lost, seated, waiting = {}, {}, {}, {}, {}, ''
  for _, id in ipairs(redis.call('ZRANGE', cell_key(prefix, cell, 'recovering'), 0, -1)) do
    table.insert(recovering, recovering_view(prefix, id))
  end
  local flat = redis.call('ZRANGE', cell_key(prefix, cell, 'seekers'), 0, SEEKERS - 1, 'WITHSCORES')
  for index = 1, #flat, 2 do table.insert(seekers, seek_view(prefix, cell, flat[index], flat[index + 1], now)) end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', cell_key(prefix, cell, 'durables'), '-inf', int(now), 'LIMIT', 0, 1)) do
    local slot, load_number = unpack(redis.call('HMGET', prefix .. ':model:' .. id, 'slot', 'load_number'))
    table.insert(due, { id, slot, load_number })
  end
  if free > 0 then
    for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', cell_key(prefix, cell, 'unseated'), '+inf', '(0', 'LIMIT', 0, SEEKERS)) do
      if #lost == 0 then table.insert(lost, seek_view(prefix, cell, id, '0', now)) end
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', cell_key(prefix, cell, 'creates'), 0, 0)) do
    local key = redis.call('HGET', prefix .. ':queue:' .. id, '0')
    waiting = key and redis.call('HGET', row_key(prefix, key), 'admitted_ms') or ''
  end
  if leaving or (free == 0 and (#seekers > 0 or waiting ~= '')) then
    seated = seated_view(prefix, cell, slots, now, leaving)
  end
  local unseated = int(redis.call('ZCARD', cell_key(prefix, cell, 'unseated')))
  return { recovering, seekers, due, lost, unseated, seated, waiting, int(now) }
end

-- args: tokens per model, commands per model, cell, 1 = its trainer is being emptied. Answers {models, slots (flat hash), served (flat hash), recovery}.
register('train_view', function(keys, args)
  local prefix, tokens, limit = keys[1], tonumber(args[1]), tonumber(args[2])
  local cell = args[3] or FIRST_CELL
  local slots, free = redis.call('HGETALL', cell_key(prefix, cell, 'slots')), 0
  for index = 2, #slots, 2 do
    if slots[index] == '' then free = free + 1 end
  end
  local models, most = {}, log_limit(prefix, cell)
  for _, id in ipairs(redis.call('ZRANGE', cell_key(prefix, cell, 'active'), 0, -1)) do
    table.insert(models, model_view(prefix, id, tokens, limit, most))
  end
  if free > 0 then
    for _, id in ipairs(redis.call('ZRANGE', cell_key(prefix, cell, 'creates'), 0, free - 1)) do
      table.insert(models, model_view(prefix, id, tokens, limit, most))
    end
  end
  return { models, slots, redis.call('HGETALL', cell_key(prefix, cell, 'served')),
    recovery_view(prefix, cell, slots, free, now_ms(), args[4] == '1') }
end)
