-- Where the dispatcher of its cell looks for a model, by the phase of its slot (_seats.lua):
--   active      live, with a command to run           -> arrival of that command
--   seekers     unseated, and something waits for it  -> since when, ms
--   recovering  its slot is being filled              -> since when, ms
--   unseated    every unseated one                    -> last request, ms; 0 = it was paged out
--   durables    live, and a durable point is due      -> not before, ms

local function index_key(context, id, name)
  return cell_key(context.prefix, cell_of(context, id), name)
end

local function leave_indexes(context, id)
  local cell = cell_of(context, id)
  for _, name in ipairs({ 'active', 'seekers', 'recovering', 'unseated', 'durables' }) do
    redis.call('ZREM', cell_key(context.prefix, cell, name), id)
  end
end

-- After the model's queue or phase changed. `head`: the key of its next command, or nil.
local function index_model(context, id, head, captures)
  local phase, cell = unpack(redis.call('HMGET', model_row(context, id), 'phase', 'cell'))
  local active = cell_key(context.prefix, cell or FIRST_CELL, 'active')
  local seekers = cell_key(context.prefix, cell or FIRST_CELL, 'seekers')
  if head and (phase or 'live') == 'live' then
    redis.call('ZADD', active, redis.call('HGET', request_row(context, head), 'arrival'), id)
  else
    redis.call('ZREM', active, id)
  end
  if phase == 'unseated' and (head or captures > 0) then
    redis.call('ZADD', seekers, 'NX', int(context.now), id)
  else
    redis.call('ZREM', seekers, id)
  end
end
