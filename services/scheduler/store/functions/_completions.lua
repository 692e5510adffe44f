-- What settled for one client of a sampling session, in the order of settlement: a zset number ->
-- "<result bytes, or failed> <request id>". The numbers come from one counter per tenant and pool: they
-- rise in each list, a list that was trimmed to nothing goes on behind its last entry, and no tenant can
-- count by its cursor what others sample.

-- Far above what one tenant may have in flight: what a client has not seen is never cut off.
local COMPLETIONS_KEPT = 32768

-- A client's seq ids are all in one block of 10^9. Decimal text: seq ids are full int64.
local function clone_of(seq)
  return #seq > 9 and string.sub(seq, 1, -10) or '0'
end

local function completions_key(prefix, session, clone)
  return prefix .. ':completions:' .. session .. ':' .. clone
end

-- The settled sample `key`; its client's waiters hear of it by the word "@<session>:<clone>".
local function note_completion(context, key)
  local row = redis.call('HMGET', context.prefix .. ':req:' .. key, 'parent', 'seq', 'request_id', 'state', 'result_bytes',
    'tenant')
  local session, clone = row[1], clone_of(row[2])
  local list = completions_key(context.prefix, session, clone)
  local size = row[4] == 'done' and row[5] or 'failed'
  local number = redis.call('HINCRBY', context.prefix .. ':completion_numbers', row[6], 1)
  redis.call('ZADD', list, int(number), size .. ' ' .. row[3])
  redis.call('ZREMRANGEBYRANK', list, 0, -COMPLETIONS_KEPT - 1)
  redis.call('PEXPIRE', list, int(context.retention))
  table.insert(context.settled, '@' .. session .. ':' .. clone)
end
