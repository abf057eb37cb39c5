#!lua flags=allow-oom
-- Give back several names of one use that are held whole and that nobody waits for, all or none: the quick way of
-- leave.lua for each of them. Whatever is not that simple is left to leave.lua.
-- KEYS[i] the state of name i (KEYS[1] of state.lua)
-- ARGV[1] use: "kind limit"  ARGV[2] fence by which all are held, or one for each with a blank between
-- ARGV[3] stem: the ticket that holds name i is this, "-" and as many "i"s
-- Returns 1 when all of them held until now, 0 when nothing was changed.

local states = redis.call('MGET', unpack(KEYS))
local fences = string.find(ARGV[2], ' ', 1, true) and string.gmatch(ARGV[2], '%d+')
local mark, head, free = ARGV[3] .. '-'
for i = 1, #KEYS do
  if fences or not head then
    head = '1 ' .. ARGV[1] .. ' ' .. (fences and fences() or ARGV[2]) .. ' 0 0 0 '
    free = head .. '- 0 0 '
  end
  mark = mark .. 'i'
  if string.find(states[i] or '', head .. mark .. ' ', 1, true) ~= 1 then return 0 end
  states[i] = free
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], states[i], 'KEEPTTL')
end
return 1
