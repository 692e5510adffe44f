-- The curve of a model: one point an optimizer step, of which at most POINTS are kept, however long the run.
--
-- The model row sums up the open window: curve_loss and curve_tokens, of forward_backward parts as they settle. A step
-- makes a point of them: list curve:<model>, each >Iddddd of step, when (ms), loss sum, positions, learning rate and
-- gradient norm (NaN = not known). Every curve_stride-th step is kept; a full list doubles the stride and loses every
-- other point, so the whole run keeps its shape and each point stays what one step reported. curve_last is the newest
-- point, kept or not. A replay settles as other actions and adds nothing; curve_seq, the last step's sequence id,
-- refuses one that was counted.

local POINTS = 256

local function curve_key(prefix, id)
  return prefix .. ':curve:' .. id
end

local function number_of(text)
  return tonumber(text or '') or 0
end

-- loss: text of the sum; positions: of the datums it is the sum over.
local function add_loss(context, item, loss, positions)
  if item.o ~= 'forward_backward' or (positions or '') == '' then return end
  local row = model_row(context, item.m)
  local sum, count = unpack(redis.call('HMGET', row, 'curve_loss', 'curve_tokens'))
  redis.call('HSET', row, 'curve_loss', string.format('%.17g', number_of(sum) + number_of(loss)),
    'curve_tokens', int(number_of(count) + number_of(positions)))
end

local function forget_window(row)
  redis.call('HSET', row, 'curve_loss', '0', 'curve_tokens', '0')
end

local function thin_out(list)
  local points, kept = redis.call('LRANGE', list, 0, -1), {}
  for index = 1, #points, 2 do table.insert(kept, points[index]) end
  redis.call('DEL', list)
  redis.call('RPUSH', list, unpack(kept))
end

local function keep_point(context, id, steps, stride, point)
  if (steps - 1) % stride ~= 0 then return stride end
  local list = curve_key(context.prefix, id)
  if redis.call('RPUSH', list, point) < POINTS then return stride end
  thin_out(list)
  return stride * 2
end

-- rate, norm: texts, '' = not known.
local function add_point(context, item, rate, norm)
  local row, seq = model_row(context, item.m), redis.call('HGET', request_row(context, item.k), 'seq')
  local last, steps, stride, loss, positions =
    unpack(redis.call('HMGET', row, 'curve_seq', 'curve_steps', 'curve_stride', 'curve_loss', 'curve_tokens'))
  if last and not decimal_less(last, seq) then return end
  steps, stride = number_of(steps) + 1, math.max(1, number_of(stride))
  local point = struct.pack('>Iddddd', steps, context.now, number_of(loss), number_of(positions),
    tonumber(rate) or 0 / 0, tonumber(norm) or 0 / 0)
  stride = keep_point(context, item.m, steps, stride, point)
  redis.call('HSET', row, 'curve_seq', seq, 'curve_steps', int(steps), 'curve_stride', int(stride), 'curve_last', point)
  forget_window(row)
end
