#!lua flags=allow-oom
-- Ask whoever holds a name to let go of it. They are told by a push, if they listen, and at their next renewal. Nobody
-- is made to, and whoever comes later is not meant.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] what the push channels of clients start with; the rest is the client's id, the first part of its tickets
-- Returns how many were asked.

local raw = redis.call('GET', KEYS[1])
-- include state.lua
if not raw then return 0 end
local settled = settle('') -- those whose lease has ended are nobody to ask, those who come in now are
local holders = redis.call('ZRANGE', KEYS[4], 0, -1)
if holder ~= '-' then holders = {holder} end
if #holders > 0 then
  redis.call('HSET', KEYS[3], '!wanted', string.format('%d', fence))
  redis.call('PEXPIREAT', KEYS[3], expiry())
end
if settled then save() end
for i = 1, #holders do
  local own_fence = holder ~= '-' and string.format('%d', fence)
    or string.match(redis.call('HGET', KEYS[3], holders[i]) or '', '^%d+') or '0'
  local client = string.match(holders[i], '^([^.]+)%.')
  if client then push(ARGV[1] .. client, 'wanted ' .. holders[i] .. ' ' .. own_fence) end
end
return #holders
