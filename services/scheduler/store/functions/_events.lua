-- What happened to a request, for who operates the mesh: `events` of its row, lines of tab-separated
-- unix ms, event, unit, where (a trainer's incarnation, or a sampler), detail, and ms of execution.
--   issued    part of a unit that was sent to the trainer, or sent to a sampler
--   executed  what the unit came to, see Settlement in store/training.py
--   queued    it waits again; detail: why
-- Admission, capture, settlement and delivery are times of the row itself.

local EVENTS_BYTES = 4096

-- The lines with one more. Of too many the oldest half goes, told by a line `cut`.
local function with_event(context, held, ...)
  local line = table.concat({ int(context.now), ... }, '\t')
  if not held or held == '' then return line end
  if #held + #line >= EVENTS_BYTES then
    local at = string.find(held, '\n', #held - EVENTS_BYTES / 2, true) or 0
    held = '0\tcut\n' .. string.sub(held, at + 1)
  end
  return held .. '\n' .. line
end

local function note_event(context, row, ...)
  redis.call('HSET', row, 'events', with_event(context, redis.call('HGET', row, 'events'), ...))
end
