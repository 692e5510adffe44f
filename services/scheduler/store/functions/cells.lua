-- Models that go from one cell to others. Only one that holds no slot goes, and of which no trainer writes
-- anything any more: its base and its log are all there is of it, and they fit any cell.

-- Slots nobody holds and no create of the cell waits for.
local function room_of(prefix, cell)
  local free = 0
  for _, holder in ipairs(redis.call('HVALS', cell_key(prefix, cell, 'slots'))) do
    if holder == '' then free = free + 1 end
  end
  return free - redis.call('ZCARD', cell_key(prefix, cell, 'creates')) - redis.call('ZCARD', cell_key(prefix, cell, 'unseated'))
end

local function with_room(prefix, names)
  local found = {}
  for cell in string.gmatch(names, '%S+') do
    if room_of(prefix, cell) > 0 then table.insert(found, cell) end
  end
  return table.concat(found, ' ')
end

-- Models that a trainer writes something of.
local function being_written(context)
  local found = {}
  for _, key in ipairs(redis.call('SMEMBERS', context.prefix .. ':capturing')) do
    found[redis.call('HGET', request_row(context, key), 'parent') or ''] = true
  end
  for _, id in ipairs(redis.call('HKEYS', context.prefix .. ':durables_running')) do found[id] = true end
  return found
end

local function move(context, id, from, to)
  for _, name in ipairs({ 'creates', 'seekers', 'unseated' }) do
    local score = redis.call('ZSCORE', cell_key(context.prefix, from, name), id)
    if score then
      redis.call('ZREM', cell_key(context.prefix, from, name), id)
      redis.call('ZADD', cell_key(context.prefix, to, name), score, id)
    end
  end
  settle_in(context, id, to)
  redis.call('HINCRBY', context.prefix .. ':counters', 'moved_total', 1)
  context.wake = true
end

local function movable(context, id, written)
  local inflight, slot = unpack(redis.call('HMGET', model_row(context, id), 'inflight', 'slot'))
  return inflight == '0' and (slot or '') == '' and not written[id]
end

local MOVED_PER_CALL = 100

-- The first of those that wait for a slot of the cell: creates, and all that lost or gave up theirs.
local function waiting(context, cell, all)
  local ids = redis.call('ZRANGE', cell_key(context.prefix, cell, 'creates'), 0, MOVED_PER_CALL - 1)
  if all then
    for _, id in ipairs(redis.call('ZRANGE', cell_key(context.prefix, cell, 'unseated'), 0, MOVED_PER_CALL - 1)) do
      table.insert(ids, id)
    end
  end
  return ids
end

-- args: term, retention_ms, cell, what, cells to go to (by spaces). Moves models that wait without a slot, each
-- to the emptiest: all; creates, which nothing is known of anywhere; or creates that others have a free slot for
-- and this one has not (`crowded`). Answers how many went.
register('cell_move', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local context, cell, what, moved = begin(keys[1], args[2]), args[3], args[4], 0
  if what == 'crowded' and room_of(context.prefix, cell) >= 0 then return 0 end
  local written = being_written(context)
  for _, id in ipairs(waiting(context, cell, what == 'all')) do
    local names = what == 'crowded' and with_room(context.prefix, args[5]) or args[5]
    local to = emptiest(context, names)
    if not to then break end
    if movable(context, id, written) then
      move(context, id, cell, to)
      moved = moved + 1
    end
    if what == 'crowded' and room_of(context.prefix, cell) >= 0 then break end
  end
  finish(context)
  return moved
end)

local FORGET_MS = 600000
local OF_A_CELL = { 'slots', 'cell', 'served', 'active', 'seekers', 'recovering', 'unseated', 'durables', 'creates' }

-- Entries of its trainers that are as old go.
local function seen_lately(prefix, cell, now)
  local trainers = prefix .. ':trainers'
  local flat = redis.call('HGETALL', trainers)
  for index = 1, #flat, 2 do
    local entry = cjson.decode(flat[index + 1])
    if entry.cell == cell then
      if now - tonumber(entry.seen_ms) <= FORGET_MS then return true end
      redis.call('HDEL', trainers, flat[index])
    end
  end
  return false
end

-- args: term, retention_ms, cell. Forgets one that has neither models nor, for ten minutes, a trainer. Answers 1 when it is gone.
register('cell_forget', function(keys, args)
  local stale = stale_term(keys[1], args[1])
  if stale then return stale end
  local prefix, cell = keys[1], args[3]
  if cell == FIRST_CELL or load_of(prefix, cell) > 0 or seen_lately(prefix, cell, now_ms()) then return 0 end
  local known = redis.call('HGET', cell_key(prefix, cell, 'cell'), 'incarnation')
  if known then return 0 end
  for _, name in ipairs(OF_A_CELL) do redis.call('DEL', cell_key(prefix, cell, name)) end
  redis.call('SREM', prefix .. ':cells', cell)
  return 1
end)
