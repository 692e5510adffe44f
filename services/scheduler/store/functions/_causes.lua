-- Why requests of a tenant failed of late, as its client reads it. List causes:<tenant>, the newest first: a line of
-- JSON (t when, r request id, o op, m what it belonged to, n how many in a row failed alike), a newline, and the
-- serialized v1.Result. Read by Console (store/causes.py).

local CAUSES, CAUSE_BYTES, CAUSES_MS = 50, 2048, 604800000

-- nil, or how many the newest entry stands for, when it tells the same of the same model or sampling session.
local function alike(newest, parent, text)
  local line = newest and string.find(newest, '\n', 1, true)
  if not line or string.sub(newest, line + 1) ~= text then return nil end
  local entry = cjson.decode(string.sub(newest, 1, line - 1))
  return entry.m == parent and entry.n or nil
end

-- All that waits behind a broken model fails with it: one entry counts them, so that others are not pushed out.
-- A longer text than CAUSE_BYTES is left to the request's own result.
local function note_cause(prefix, row, now, result)
  local tenant, request_id, op, parent = unpack(redis.call('HMGET', row, 'tenant', 'request_id', 'op', 'parent'))
  if not tenant or not request_id then return end
  local list, text = prefix .. ':causes:' .. tenant, #result <= CAUSE_BYTES and result or ''
  local before = alike(redis.call('LINDEX', list, 0), parent, text)
  if before then redis.call('LPOP', list) end
  local entry = cjson.encode({ t = now, r = request_id, o = op or '', m = parent or '', n = (before or 0) + 1 })
  redis.call('LPUSH', list, entry .. '\n' .. text)
  redis.call('LTRIM', list, 0, CAUSES - 1)
  redis.call('PEXPIRE', list, CAUSES_MS)
end
