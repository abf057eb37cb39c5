#!lua
-- Let the leader say something, and tell everybody who observes. A leader is seen by others once it has said something.
-- KEYS[1..5] the name (see state.lua)  KEYS[6] its watchers (see watchers.lua)
-- ARGV[1] value  ARGV[2] number: larger for what the same leader says later, so that a late request changes nothing
-- ARGV[3] fence of the hold  ARGV[4] ticket
-- Returns 1, or 0 when the hold is gone: who no longer leads says nothing. Sent by one that has just left, and whom
-- nobody has followed yet, it tells the observers to look.
-- What was said stands behind the owner, after a tab: "owner<tab>number value". So it ends with the hold, whatever
-- ends that, and is kept for as long.

local raw = redis.call('GET', KEYS[1])
-- include state.lua
-- include watchers.lua
if holder ~= ARGV[4] or fence ~= tonumber(ARGV[3]) or holder_end <= now then
  if kind == 'election' and holder == '-' and fence == tonumber(ARGV[3]) then tell('leader', fence, '') end
  return 0
end
local owner, number, value = string.match(holder_owner, '^([^\t]*)\t?(%d*) ?(.*)$')
if tonumber(ARGV[2]) >= tonumber(number ~= '' and number or 0) then
  holder_owner = owner .. '\t' .. ARGV[2] .. ' ' .. ARGV[1]
  save()
  if number == '' or value ~= ARGV[1] then tell('leader', fence, '') end
end
return 1
