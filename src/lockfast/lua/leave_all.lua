#!lua flags=allow-oom
-- Give back several names that are held whole and that nobody waits for, all or none: the quick way of leave.lua for
-- each of them. Whatever is not that simple is left to leave.lua.
-- KEYS[i] the state of name i (KEYS[1] of state.lua)
-- ARGV[i] ticket that holds it
-- Returns 1 when all of them held until now, 0 when nothing was changed.

local states = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do
  local rest, holder = string.match(states[i] or '', '^(1 %a+ %d+ %d+ 0 0 0 )(%S+) ')
  if holder ~= ARGV[i] then return 0 end
  states[i] = rest .. '- 0 0 '
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], states[i], 'KEEPTTL')
end
return 1
