-- The catalog of one tenant: what runs, checkpoints and sessions there are, indexed by time.
--
-- KEYS: the tenant's prefix. A checkpoint's id is <run>/<kind>/<name>. Every index is a sorted set by
-- creation time, so a total is one ZCARD and a page costs the page. A checkpoint that is deleted or
-- past its time is *doomed*: gone from every index at once, its row kept until its files are gone.

local DUE_PER_CALL = 200

local function part(prefix, name, id)
  return prefix .. ':cat:' .. name .. (id and ':' .. id or '')
end

local function split(id)
  return string.match(id, '^([^/]+)/([^/]+)/[^/]+$')
end

local function unlist(prefix, id)
  local run, kind = split(id)
  local size = redis.call('HGET', part(prefix, 'ck', id), 'size')
  redis.call('ZREM', part(prefix, 'expiring'), id)
  redis.call('ZREM', part(prefix, 'run_cks', run), id)
  redis.call('ZREM', part(prefix, 'run_cks', run .. ':' .. kind), id)
  if redis.call('ZREM', part(prefix, 'cks'), id) == 1 then
    redis.call('HINCRBY', part(prefix, 'run', run), 'bytes', int(0 - tonumber(size or '0')))
  end
end

local function doom(prefix, id)
  local row = part(prefix, 'ck', id)
  unlist(prefix, id)
  redis.call('HSET', row, 'doomed', '1')
  redis.call('SADD', part(prefix, 'doomed'), id .. ' ' .. redis.call('HGET', row, 'version'))
end

local function doom_due(prefix)
  local due = redis.call('ZRANGEBYSCORE', part(prefix, 'expiring'), '-inf', int(now_ms()), 'LIMIT', 0, DUE_PER_CALL)
  for _, id in ipairs(due) do doom(prefix, id) end
end

local function add_run(prefix, run, created, project, fields)
  local row, session = part(prefix, 'run', run), string.match(run, '^(.-):train:')
  if redis.call('EXISTS', row) == 1 then return end
  if project == '' then project = redis.call('HGET', part(prefix, 'session', session), 'project') or '' end
  redis.call('HSET', row, 'created_ms', created, 'project', project, 'bytes', '0', unpack(fields))
  redis.call('ZADD', part(prefix, 'runs'), created, run)
  redis.call('ZADD', part(prefix, 'session_runs', session), created, run)
  if project ~= '' then redis.call('ZADD', part(prefix, 'project_runs', project), created, run) end
end

local function rest(args, first)
  local found = {}
  for index = first, #args do table.insert(found, args[index]) end
  return found
end

-- args: run, created_ms, project ("" = its session's), field, value, … A repeat changes nothing.
register('catalog_add_run', function(keys, args)
  add_run(keys[1], args[1], args[2], args[3], rest(args, 4))
  return 1
end)

local function alive(prefix, id)
  local version, doomed, expires = unpack(redis.call('HMGET', part(prefix, 'ck', id), 'version', 'doomed', 'expires_ms'))
  return version and not doomed and (expires == '0' or tonumber(expires) > now_ms())
end

-- args: id, version, created_ms, size, expires_ms (0 = never), metadata, then the run's fields in case
-- it is not known. The same version again changes nothing; another one replaces what was there. since_ms: when
-- its name came to be; what is older under it belongs to a checkpoint that is gone.
register('catalog_add_checkpoint', function(keys, args)
  local prefix, id = keys[1], args[1]
  local run, kind = split(id)
  local row = part(prefix, 'ck', id)
  local version, doomed = unpack(redis.call('HMGET', row, 'version', 'doomed'))
  if version == args[2] then return 0 end

  local since = alive(prefix, id) and redis.call('HGET', row, 'since_ms') or args[3]
  if version and not doomed then unlist(prefix, id) end
  add_run(prefix, run, args[3], '', rest(args, 7))
  redis.call('DEL', row)
  redis.call('HSET', row, 'version', args[2], 'created_ms', args[3], 'size', args[4], 'expires_ms', args[5],
    'metadata', args[6], 'public', '0', 'since_ms', since)
  redis.call('ZADD', part(prefix, 'cks'), args[3], id)
  redis.call('ZADD', part(prefix, 'run_cks', run), args[3], id)
  redis.call('ZADD', part(prefix, 'run_cks', run .. ':' .. kind), args[3], id)
  redis.call('HINCRBY', part(prefix, 'run', run), 'bytes', args[4])
  if args[5] ~= '0' then redis.call('ZADD', part(prefix, 'expiring'), args[5], id) end
  return 1
end)

local function missing(id)
  return refuse('missing_resource', 'tinker://' .. id .. ' does not exist, or its time is over')
end

-- args: id, 1 or 0.
register('catalog_set_public', function(keys, args)
  if not alive(keys[1], args[1]) then return missing(args[1]) end
  redis.call('HSET', part(keys[1], 'ck', args[1]), 'public', args[2])
  return 1
end)

-- args: id, how long it lives from now on, ms ("" = for ever). Answers its end, 0 = never.
register('catalog_set_ttl', function(keys, args)
  local prefix, id = keys[1], args[1]
  if not alive(prefix, id) then return missing(id) end
  local expires = args[2] == '' and '0' or int(now_ms() + tonumber(args[2]))
  redis.call('HSET', part(prefix, 'ck', id), 'expires_ms', expires)
  if expires == '0' then
    redis.call('ZREM', part(prefix, 'expiring'), id)
  else
    redis.call('ZADD', part(prefix, 'expiring'), expires, id)
  end
  return expires
end)

-- args: id. Answers its version, whose files may go; "" when it is not there (any more).
register('catalog_doom', function(keys, args)
  local row = part(keys[1], 'ck', args[1])
  local version, doomed = unpack(redis.call('HMGET', row, 'version', 'doomed'))
  if not version then return '' end
  if not doomed then doom(keys[1], args[1]) end
  return version
end)

-- args: how many. Dooms what is past its time. Answers {"<id> <version>" whose files may go …} and
-- when the next one is due, "" = never.
register('catalog_due', function(keys, args)
  local prefix = keys[1]
  doom_due(prefix)
  local doomed = redis.call('SRANDMEMBER', part(prefix, 'doomed'), tonumber(args[1]))
  local next = redis.call('ZRANGE', part(prefix, 'expiring'), 0, 0, 'WITHSCORES')
  return { doomed, next[2] and int(tonumber(next[2])) or '' }
end)

-- args: id, version. The files of a doomed version are gone.
register('catalog_forget', function(keys, args)
  local row = part(keys[1], 'ck', args[1])
  redis.call('SREM', part(keys[1], 'doomed'), args[1] .. ' ' .. args[2])
  local version, doomed = unpack(redis.call('HMGET', row, 'version', 'doomed'))
  if version == args[2] and doomed then redis.call('DEL', row) end
  return 1
end)

local function checkpoint_entry(prefix, id)
  return { id, redis.call('HGETALL', part(prefix, 'ck', id)) }
end

local function latest(prefix, run, kind)
  local id = redis.call('ZREVRANGE', part(prefix, 'run_cks', run .. ':' .. kind), 0, 0)[1]
  return id and checkpoint_entry(prefix, id) or {}
end

local function run_entry(prefix, run)
  return { run, redis.call('HGETALL', part(prefix, 'run', run)), latest(prefix, run, 'weights'),
    latest(prefix, run, 'sampler_weights') }
end

local function session_entry(prefix, id)
  return { id, redis.call('HGETALL', part(prefix, 'session', id)) }
end

local entries = { ck = checkpoint_entry, run = run_entry, session = session_entry }

-- args: index, kind of its entries, offset, limit. Answers {total, the newest entries from offset on}.
register('catalog_page', function(keys, args)
  local prefix, index = keys[1], part(keys[1], args[1])
  doom_due(prefix)
  local page, first = {}, tonumber(args[3])
  for _, id in ipairs(redis.call('ZREVRANGE', index, first, first + tonumber(args[4]) - 1)) do
    table.insert(page, entries[args[2]](prefix, id))
  end
  return { redis.call('ZCARD', index), page }
end)

-- args: run. Answers its entry; its hash is empty when there is none.
register('catalog_run', function(keys, args)
  doom_due(keys[1])
  return run_entry(keys[1], args[1])
end)

-- args: session, created_ms, field, value, … A repeat changes nothing.
register('catalog_add_session', function(keys, args)
  local row = part(keys[1], 'session', args[1])
  if redis.call('EXISTS', row) == 1 then return 0 end
  redis.call('HSET', row, 'created_ms', args[2], 'status', 'active', unpack(rest(args, 3)))
  redis.call('ZADD', part(keys[1], 'sessions'), args[2], args[1])
  return 1
end)

-- args: session, finished | expired, reason, detail. The first end is the one remembered.
register('catalog_end_session', function(keys, args)
  local row = part(keys[1], 'session', args[1])
  if redis.call('HGET', row, 'status') ~= 'active' then return 0 end
  redis.call('HSET', row, 'status', args[2], 'reason', args[3], 'detail', args[4])
  return 1
end)

-- args: session, project. Its runs move along.
register('catalog_assign_project', function(keys, args)
  local prefix, row = keys[1], part(keys[1], 'session', args[1])
  if args[2] == '' then return refuse('invalid_input', 'project_id: name a project') end
  if redis.call('EXISTS', row) == 0 then
    return refuse('missing_resource', 'session ' .. args[1] .. ' does not exist')
  end
  redis.call('HSET', row, 'project', args[2])
  for _, run in ipairs(redis.call('ZRANGE', part(prefix, 'session_runs', args[1]), 0, -1)) do
    local created, before = unpack(redis.call('HMGET', part(prefix, 'run', run), 'created_ms', 'project'))
    if before ~= '' then redis.call('ZREM', part(prefix, 'project_runs', before), run) end
    redis.call('ZADD', part(prefix, 'project_runs', args[2]), created, run)
    redis.call('HSET', part(prefix, 'run', run), 'project', args[2])
  end
  return 1
end)

-- args: latest created_ms, the session of that time where the last page ended ("" = none), how many.
-- Answers the newest sessions behind it.
register('catalog_sessions_behind', function(keys, args)
  local prefix, index = keys[1], part(keys[1], 'sessions')
  local ties = args[2] == '' and 0 or redis.call('ZCOUNT', index, args[1], args[1])
  local ids = redis.call('ZREVRANGEBYSCORE', index, args[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ties + tonumber(args[3]))
  local found = {}
  for place = 1, #ids, 2 do
    local before = args[2] ~= '' and ids[place + 1] == args[1] and ids[place] >= args[2]
    if not before and #found < tonumber(args[3]) then table.insert(found, session_entry(prefix, ids[place])) end
  end
  return found
end)

-- args: sessions. Answers {checkpoints, their bytes} of each.
register('catalog_session_sizes', function(keys, args)
  local prefix, found = keys[1], {}
  for _, session in ipairs(args) do
    local count, bytes = 0, 0
    for _, run in ipairs(redis.call('ZRANGE', part(prefix, 'session_runs', session), 0, -1)) do
      count = count + redis.call('ZCARD', part(prefix, 'run_cks', run))
      bytes = bytes + tonumber(redis.call('HGET', part(prefix, 'run', run), 'bytes') or '0')
    end
    table.insert(found, { count, int(bytes) })
  end
  return found
end)
