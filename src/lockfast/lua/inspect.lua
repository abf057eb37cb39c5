#!lua flags=no-writes
-- Who holds a name and who waits for it, in order. Reads only.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] how many waiters to list at most
-- Returns {now_ms, state string or "", {shared ticket, end, entry, …}, {queued ticket, entry, …}, break note or "", queue length}

local raw = redis.call('GET', KEYS[1])
-- include state.lua
local function entries(tickets, step)
  local out = {}
  for i = 1, #tickets, step do
    out[#out + 1] = tickets[i]
    if step == 2 then out[#out + 1] = tickets[i + 1] end
    out[#out + 1] = redis.call('HGET', KEYS[3], tickets[i]) or ''
  end
  return out
end
local shared = redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')
local queue = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)
return {now, raw or '', entries(shared, 2), entries(queue, 1), redis.call('HGET', KEYS[3], '!broken') or '',
  redis.call('ZCARD', KEYS[2])}
