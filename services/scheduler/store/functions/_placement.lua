-- Which cell a model lives in.

-- Slots that are not free, and models without one.
local function load_of(prefix, cell)
  local held = 0
  for _, holder in ipairs(redis.call('HVALS', cell_key(prefix, cell, 'slots'))) do
    if holder ~= '' then held = held + 1 end
  end
  return held + redis.call('ZCARD', cell_key(prefix, cell, 'unseated')) + redis.call('ZCARD', cell_key(prefix, cell, 'creates'))
end

-- Of cell names by spaces, the first with the smallest load; nil of none.
local function emptiest(context, names)
  local best, least = nil, math.huge
  for cell in string.gmatch(names, '%S+') do
    local load = load_of(context.prefix, cell)
    if load < least then best, least = cell, load end
  end
  return best
end

local function settle_in(context, id, cell)
  if cell == FIRST_CELL then
    redis.call('HDEL', model_row(context, id), 'cell')
  else
    redis.call('HSET', model_row(context, id), 'cell', cell)
    redis.call('SADD', context.prefix .. ':cells', cell)
  end
end
