-- Jobs: batches of sampling tasks. KEYS of every function: the pool's prefix.
--
-- job:<id> is a hash: tenant, fingerprint, directory (of its files), name, base_model, traceparent, created_ms,
-- arrival, keep_ms, state, started_ms, ended_ms, expires_ms, cancel_ms, doomed; tasks and how many of them are
-- queued, running, done, failed, cancelled; next (the first index never started), prompt_tokens, output_tokens.
-- jobtasks:<id> is a hash index -> "<letter> <term> <prompt tokens> <output tokens> <message>" of tasks that run (r)
-- or are done (d), failed (f), cancelled (c). One without an entry is queued, or was cancelled with its job.
-- What a running task has generated: jobout:<id>:<index>:<sample> (int32 token, float32 logprob, …),
-- jobtext:… beside it, jobfin:<id>:<index> (hash sample -> finish reason) and jobseg:<id>:<index> (hash
-- "<sample>:<tokens before>" -> JSON of the attempt that began there).
-- jobs_open: zset id -> arrival. jobs_ended: zset id -> when it may go, ms. jobs_doomed: set of ids whose files may go.

local COUNT_OF = { d = 'done', f = 'failed', c = 'cancelled' }

local function job_row(prefix, id) return prefix .. ':job:' .. id end
local function job_tasks(prefix, id) return prefix .. ':jobtasks:' .. id end
local function job_part(prefix, name, id, index) return prefix .. ':' .. name .. ':' .. id .. ':' .. index end

local function missing(id)
  return refuse('missing_resource', 'job ' .. id .. ' does not exist')
end

local function counts(row)
  local found = redis.call('HMGET', row, 'queued', 'running', 'done', 'failed', 'cancelled')
  return tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), tonumber(found[4]), tonumber(found[5])
end

local function ended_state(done, failed, cancelled)
  if cancelled > 0 then return 'cancelled' end
  if failed == 0 then return 'done' end
  return done > 0 and 'partial' or 'failed'
end

-- After its counts changed: its state, its indexes, and a word to those who watch it.
local function job_changed(prefix, id)
  local row = job_row(prefix, id)
  local queued, running, done, failed, cancelled = counts(row)
  local state = 'queued'
  if queued + running == 0 then
    local now = now_ms()
    local expires = int(now + tonumber(redis.call('HGET', row, 'keep_ms')))
    state = ended_state(done, failed, cancelled)
    redis.call('HSET', row, 'ended_ms', int(now), 'expires_ms', expires)
    redis.call('ZREM', prefix .. ':jobs_open', id)
    if redis.call('HEXISTS', row, 'doomed') == 0 then redis.call('ZADD', prefix .. ':jobs_ended', expires, id) end
  elseif redis.call('HEXISTS', row, 'cancel_ms') == 1 then
    state = 'cancelling'
  elseif redis.call('HEXISTS', row, 'started_ms') == 1 then
    state = 'running'
  end
  redis.call('HSET', row, 'state', state)
  redis.call('PUBLISH', 'tm:settled:' .. pool_of(prefix), '#' .. id)
end

local function job_usage(prefix, tenant, change)
  redis.call('HINCRBY', usage_key({ prefix = prefix }, tenant), 'job_tasks', int(change))
end

-- args: id, tenant, fingerprint, directory, tasks, limit of the tenant's open tasks (0 = none), name, base_model,
-- traceparent, keep_ms, created_ms ('' = now), then index and entry of each task that is settled already.
-- Answers {1 = made | 0 = it was there, its directory}.
register('job_admit', function(keys, args)
  local prefix, id, tenant = keys[1], args[1], args[2]
  local row = job_row(prefix, id)
  local owner, known, directory, doomed = unpack(redis.call('HMGET', row, 'tenant', 'fingerprint', 'directory', 'doomed'))
  if owner and (owner ~= tenant or known ~= args[3]) then
    return refuse('key_conflict', 'this x-idempotency-key already made another job; use a new one')
  end
  if doomed then return refuse('key_conflict', 'the job of this x-idempotency-key was deleted; use a new one') end
  if owner then return { 0, directory } end

  local number = { d = 0, f = 0, c = 0 }
  local prompt, output, highest = 0, 0, 0
  for place = 12, #args, 2 do
    local letter, p, o = string.match(args[place + 1], '^(%a) %d+ (%d+) (%d+) ')
    number[letter] = number[letter] + 1
    prompt, output = prompt + tonumber(p), output + tonumber(o)
  end
  local queued = tonumber(args[5]) - number.d - number.f - number.c
  local open = tonumber(redis.call('HGET', usage_key({ prefix = prefix }, tenant), 'job_tasks') or 0)
  local limit = tonumber(args[6])
  if limit > 0 and open + queued > limit then
    return refuse('busy', 'quota job_tasks: ' .. int(open) .. ' of ' .. int(limit) .. ' are open and ' .. int(queued)
      .. ' more do not fit; wait for a job to end or cancel one, or ask your operator to raise the quota')
  end

  local created = args[11] ~= '' and args[11] or int(now_ms())
  local arrival = int(redis.call('INCR', prefix .. ':arrival'))
  redis.call('HSET', row, 'tenant', tenant, 'fingerprint', args[3], 'directory', args[4], 'tasks', args[5], 'name', args[7],
    'base_model', args[8], 'traceparent', args[9], 'keep_ms', args[10], 'created_ms', created, 'arrival', arrival,
    'queued', int(queued), 'running', 0, 'done', number.d, 'failed', number.f, 'cancelled', number.c, 'next', 0,
    'prompt_tokens', int(prompt), 'output_tokens', int(output))
  for place = 12, #args, 2 do redis.call('HSET', job_tasks(prefix, id), args[place], args[place + 1]) end
  redis.call('ZADD', prefix .. ':jobs_open', arrival, id)
  job_usage(prefix, tenant, queued)
  job_changed(prefix, id)
  publish_ready(prefix, 'job')
  return { 1, args[4] }
end)

-- Tokens a minute of its tenant: nil, or how long the task must wait, ms. It is charged once.
local function throttled(prefix, tenant, text)
  local limits = limits_of(text)
  if not limits or limits.tokens <= 0 then return nil end
  local context = { prefix = prefix, now = now_ms() }
  local usage = usage_key(context, tenant)
  local left = level(context, usage, 'tok', limits.tokens / 60, limits.tokens)
  if left <= 0 then return math.ceil(math.max(1, -left * 60000 / limits.tokens)) end
  take(context, usage, 'tok', limits.tokens / 60, limits.tokens, limits.cost)
end

-- args: term, id, index, limits with the task's tokens. Answers 1 = it is yours, 0 = it is not to run, or
-- minus the ms it must wait.
register('job_start', function(keys, args)
  local prefix, id, index = keys[1], args[2], args[3]
  local stale = stale_term(prefix, args[1])
  if stale then return stale end
  local row = job_row(prefix, id)
  local tenant, cancel, next = unpack(redis.call('HMGET', row, 'tenant', 'cancel_ms', 'next'))
  if not tenant then return 0 end
  local entry = redis.call('HGET', job_tasks(prefix, id), index)
  local runs = entry and string.sub(entry, 1, 1) == 'r'
  if entry and not runs then return 0 end
  if not runs then
    if cancel then return 0 end
    local wait = throttled(prefix, tenant, args[4])
    if wait then return -wait end
    redis.call('HINCRBY', row, 'queued', -1)
    redis.call('HINCRBY', row, 'running', 1)
    redis.call('HSETNX', row, 'started_ms', int(now_ms()))
    if tonumber(next) <= tonumber(index) then redis.call('HSET', row, 'next', int(tonumber(index) + 1)) end
  end
  redis.call('HSET', job_tasks(prefix, id), index, 'r ' .. args[1] .. ' 0 0 ')
  if not runs then job_changed(prefix, id) end
  return 1
end)

local function runs_under(prefix, term, id, index)
  local entry = redis.call('HGET', job_tasks(prefix, id), index)
  return entry and string.match(entry, '^r (%d+) ') == term
end

-- args: term, then of each sample: id, index, sample, tokens before, data, text bytes before, text, segment (JSON or
-- ''), finish ('' = goes on). What is written again lands on itself. Answers 1 or 0 (it does not run here) for each.
register('job_append', function(keys, args)
  local prefix = keys[1]
  local stale = stale_term(prefix, args[1])
  if stale then return stale end
  local answers = {}
  for at = 2, #args, 9 do
    local id, index, sample = args[at], args[at + 1], args[at + 2]
    local runs = runs_under(prefix, args[1], id, index)
    if runs then
      local stem = id .. ':' .. index
      if args[at + 4] ~= '' then
        redis.call('SETRANGE', job_part(prefix, 'jobout', stem, sample), tonumber(args[at + 3]) * 8, args[at + 4])
      end
      if args[at + 6] ~= '' then
        redis.call('SETRANGE', job_part(prefix, 'jobtext', stem, sample), args[at + 5], args[at + 6])
      end
      if args[at + 7] ~= '' then
        redis.call('HSET', job_part(prefix, 'jobseg', id, index), sample .. ':' .. args[at + 3], args[at + 7])
      end
      if args[at + 8] ~= '' then redis.call('HSET', job_part(prefix, 'jobfin', id, index), sample, args[at + 8]) end
    end
    table.insert(answers, runs and 1 or 0)
  end
  return answers
end)

-- args: id, index, samples. Answers {its entry or '', segments, then data, text and finish of each sample}: as of one moment.
register('job_partial', function(keys, args)
  local prefix, id, index = keys[1], args[1], args[2]
  local stem = id .. ':' .. index
  local answer = { redis.call('HGET', job_tasks(prefix, id), index) or '',
    redis.call('HVALS', job_part(prefix, 'jobseg', id, index)) }
  for sample = 0, tonumber(args[3]) - 1 do
    table.insert(answer, redis.call('GET', job_part(prefix, 'jobout', stem, sample)) or '')
    table.insert(answer, redis.call('GET', job_part(prefix, 'jobtext', stem, sample)) or '')
    table.insert(answer, redis.call('HGET', job_part(prefix, 'jobfin', id, index), int(sample)) or '')
  end
  return answer
end)

-- args: term, id, index, letter, prompt tokens, output tokens, samples, message. Its result is in its file. Answers
-- 1, or 0 when it does not run under this term.
register('job_settle', function(keys, args)
  local prefix, id, index, letter = keys[1], args[2], args[3], args[4]
  local stale = stale_term(prefix, args[1])
  if stale then return stale end
  if not runs_under(prefix, args[1], id, index) then return 0 end
  local row, stem = job_row(prefix, id), id .. ':' .. index
  redis.call('HSET', job_tasks(prefix, id), index, table.concat({ letter, args[1], args[5], args[6], args[8] }, ' '))
  redis.call('HINCRBY', row, 'running', -1)
  redis.call('HINCRBY', row, COUNT_OF[letter], 1)
  redis.call('HINCRBY', row, 'prompt_tokens', args[5])
  redis.call('HINCRBY', row, 'output_tokens', args[6])
  job_usage(prefix, redis.call('HGET', row, 'tenant'), -1)
  redis.call('UNLINK', job_part(prefix, 'jobfin', id, index), job_part(prefix, 'jobseg', id, index))
  for sample = 0, tonumber(args[7]) - 1 do
    redis.call('UNLINK', job_part(prefix, 'jobout', stem, sample), job_part(prefix, 'jobtext', stem, sample))
  end
  job_changed(prefix, id)
  return 1
end)

local function cancel(prefix, id)
  local row = job_row(prefix, id)
  local queued, running = counts(row)
  if queued + running == 0 or redis.call('HEXISTS', row, 'cancel_ms') == 1 then return end
  redis.call('HSET', row, 'cancel_ms', int(now_ms()), 'queued', 0)
  redis.call('HINCRBY', row, 'cancelled', int(queued))
  job_usage(prefix, redis.call('HGET', row, 'tenant'), 0 - queued)
  job_changed(prefix, id)
  publish_ready(prefix, 'job_cancelled')
end

local function owned(prefix, id, tenant)
  local owner, doomed = unpack(redis.call('HMGET', job_row(prefix, id), 'tenant', 'doomed'))
  return owner and not doomed and (owner == tenant or tenant == '')
end

-- args: id, tenant.
register('job_cancel', function(keys, args)
  if not owned(keys[1], args[1], args[2]) then return missing(args[1]) end
  cancel(keys[1], args[1])
  return 1
end)

-- args: id, tenant ('' = whose time is over). Gone for everybody; its files follow.
register('job_doom', function(keys, args)
  local prefix, id = keys[1], args[1]
  if not owned(prefix, id, args[2]) then return missing(id) end
  redis.call('HSET', job_row(prefix, id), 'doomed', '1')
  redis.call('SADD', prefix .. ':jobs_doomed', id)
  redis.call('ZREM', prefix .. ':jobs_ended', id)
  cancel(prefix, id)
  return 1
end)

-- args: id. Its files are gone. Answers 0 while a task of it still runs.
register('job_forget', function(keys, args)
  local prefix, id = keys[1], args[1]
  local row = job_row(prefix, id)
  local doomed, running = unpack(redis.call('HMGET', row, 'doomed', 'running'))
  if doomed and tonumber(running) > 0 then return 0 end
  redis.call('SREM', prefix .. ':jobs_doomed', id)
  if not doomed then return 1 end
  redis.call('UNLINK', row, job_tasks(prefix, id))
  redis.call('ZREM', prefix .. ':jobs_open', id)
  return 1
end)
