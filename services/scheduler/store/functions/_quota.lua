-- Quotas of one tenant in one pool: checked with the key's claim, in the same step, and before it.
--
-- usage:<tenant> is a hash: models (holding a slot or waiting for one), open and bytes (unsettled
-- commands and samples, and their payloads), job_tasks (of jobs, not settled), results and records
-- (bytes of results and of recorded sequences that are kept), tok and req with tok_ms and req_ms (what is left in
-- the two buckets, and when that was so). Limits arrive as one argument of numbers, 0 = no limit.

local BURST_SECONDS = 10

-- 'limits <models> <bytes> <open> <tokens per minute> <requests per second> <tokens of this request> <results>
-- <records>'; the last two are 0 as well for a request that leaves none behind.
local function limits_of(text)
  local models, bytes, open, tokens, requests, cost, results, records =
    string.match(text or '', '^limits (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  if not models then return nil end
  return { models = tonumber(models), bytes = tonumber(bytes), open = tonumber(open), tokens = tonumber(tokens),
    requests = tonumber(requests), cost = tonumber(cost), results = tonumber(results), records = tonumber(records) }
end

local function over(name, said, remedy)
  return refuse('busy', 'quota ' .. name .. ': ' .. said .. '; ' .. remedy .. ', or ask your operator to raise the quota')
end

-- What a bucket that fills at `rate` per second up to `size` holds now.
local function level(context, usage, name, rate, size)
  local left, since = unpack(redis.call('HMGET', usage, name, name .. '_ms'))
  if not left then return size end
  local gained = math.max(0, context.now - tonumber(since)) * rate / 1000
  return math.min(size, tonumber(left) + gained)
end

local function request_burst(limits) return math.max(1, limits.requests * BURST_SECONDS) end

local function seconds(value) return string.format('%d', math.ceil(math.max(1, value))) end

local function over_rate(context, usage, limits)
  if limits.requests > 0 then
    local left = level(context, usage, 'req', limits.requests, request_burst(limits))
    if left < 1 then
      return over('requests_per_second', 'more than ' .. limits.requests .. ' a second came in',
        'send again in ' .. seconds((1 - left) / limits.requests) .. ' s')
    end
  end
  if limits.tokens > 0 and limits.cost > 0 then
    local left = level(context, usage, 'tok', limits.tokens / 60, limits.tokens)
    if left <= 0 then
      return over('tokens_per_minute', int(limits.tokens) .. ' a minute are used up',
        'send again in ' .. seconds(-left * 60 / limits.tokens) .. ' s')
    end
  end
end

local function over_kept(usage, limits, waited_for)
  local results, records = unpack(redis.call('HMGET', usage, 'results', 'records'))
  results, records = tonumber(results or 0), tonumber(records or 0)
  if not waited_for and limits.results > 0 and results >= limits.results then
    return over('result_bytes', int(results) .. ' of ' .. int(limits.results) .. ' are kept',
      'fetch your results, which go a while after their delivery')
  end
  if limits.records > 0 and records >= limits.records then
    return over('sequence_bytes', int(records) .. ' of ' .. int(limits.records) .. ' are kept',
      'sample without record_stability_info, wait until recorded sequences end')
  end
end

-- nil, or why one more is too much. `head`: the command its model waits for. Refusing that one would
-- hold everything accepted behind it, so occupancy never does. `waited_for`: there is something behind it.
local function quota_refusal(context, tenant, limits, bytes, head, waited_for)
  if not limits then return nil end
  local usage = usage_key(context, tenant)
  local open, held = unpack(redis.call('HMGET', usage, 'open', 'bytes'))
  open, held = tonumber(open or 0), tonumber(held or 0)
  if not head and limits.open > 0 and open >= limits.open then
    return over('open_futures', int(open) .. ' of ' .. int(limits.open) .. ' are unsettled', 'await some of them')
  end
  if not head and limits.bytes > 0 and bytes > 0 and held + bytes > limits.bytes then
    return over('queued_bytes', int(held) .. ' of ' .. int(limits.bytes) .. ' are queued and ' .. int(bytes)
      .. ' more do not fit', 'await some of your requests')
  end
  return over_kept(usage, limits, waited_for) or over_rate(context, usage, limits)
end

local function model_refusal(context, tenant, limits)
  if not limits then return nil end
  local usage = usage_key(context, tenant)
  local models = tonumber(redis.call('HGET', usage, 'models') or 0)
  if limits.models > 0 and models >= limits.models then
    return over('models', int(models) .. ' of ' .. int(limits.models) .. ' are live', 'unload one or finish its session')
  end
  return over_rate(context, usage, limits)
end

-- Generations under way (generations.lua): a sorted set of the tenant's, by when each stops to count.
local function generations_key(prefix, tenant) return prefix .. ':generations:' .. tenant end

-- The tenant's samples in flight: those with a request row, and the prompts of its generations.
local function open_samples(context, tenant)
  local held = generations_key(context.prefix, tenant)
  redis.call('ZREMRANGEBYSCORE', held, '-inf', int(context.now))
  return tonumber(redis.call('HGET', context.prefix .. ':sample_counts', tenant) or '0') + redis.call('ZCARD', held)
end

-- A request larger than what is left is admitted and leaves a debt: the next one waits for it.
local function take(context, usage, name, rate, size, cost)
  local left = level(context, usage, name, rate, size) - cost
  redis.call('HSET', usage, name, string.format('%.3f', left), name .. '_ms', int(context.now))
end

-- Counts an accepted request against its tenant; settle_row takes it off again, by `charged` of its row.
local function charge(context, tenant, key, limits, bytes)
  local usage = usage_key(context, tenant)
  redis.call('HINCRBY', usage, 'open', 1)
  redis.call('HINCRBY', usage, 'bytes', bytes)
  redis.call('HSET', request_row(context, key), 'charged', bytes)
  if not limits then return end
  if limits.requests > 0 then take(context, usage, 'req', limits.requests, request_burst(limits), 1) end
  if limits.tokens > 0 then take(context, usage, 'tok', limits.tokens / 60, limits.tokens, limits.cost) end
end
