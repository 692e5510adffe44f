-- Helpers every file of the library sees. A function makes all its checks before its first
-- write: what a failing function has written stays written.

local function register(name, callback)
  redis.register_function(name .. '_' .. DIGEST, callback)
end

-- A refusal the caller raises as the error class of `code`.
local function refuse(code, text)
  return redis.error_reply('TM:' .. code .. ' ' .. string.gsub(text, '[\r\n]', ' '))
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Whole numbers as decimal text, exact to 2^53 and never in exponent form.
local function int(value)
  return string.format('%.0f', value)
end

-- Comparison of decimal strings without leading zeros: sequence ids are full int64, doubles are not.
local function decimal_less(left, right)
  if #left ~= #right then return #left < #right end
  return left < right
end

local function varint(value)
  local out = ''
  while value >= 128 do
    out = out .. string.char(128 + value % 128)
    value = math.floor(value / 128)
  end
  return out .. string.char(value)
end

local USER, SERVER = 1, 2

-- A serialized v1.Result { failure { category, message } }.
local function failure_bytes(category, message)
  local failure = '\8' .. string.char(category) .. '\18' .. varint(#message) .. message
  return '\10' .. varint(#failure) .. failure
end

register('ping', function() return 'pong' end)
