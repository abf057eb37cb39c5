#!lua
-- Hold several names that nobody holds or waits for, all of them whole, all or none. It does to each just what the
-- quick way of admit.lua does (a test compares them); whatever is not that simple is left to admit.lua.
-- KEYS[i] the state of name i (KEYS[1] of state.lua)
-- ARGV[1] owner, then four for each name: "kind limit", lease_ms, seen, ticket (see admit.lua)
-- Returns the fences, in order, when all of them are held from now on, with the whole lease; 0 when nothing was changed.
-- Sent again with the same tickets it changes nothing: they hold, so the names are no longer free.

local states = redis.call('MGET', unpack(KEYS))
local fences = {}
for i = 1, #KEYS do
  local use, fence = string.match(states[i] or '', '^1 (%a+ %d+) (%d+) 0 0 0 %- ')
  if use ~= ARGV[4 * i - 2] then return 0 end
  fences[i] = fence
end

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)
local lease, tail, ttl
for i = 1, #KEYS do
  local at = 4 * i - 2
  if ARGV[at + 1] ~= lease then
    lease = ARGV[at + 1]
    tail = string.format(' %d %d %s', now + lease, now, ARGV[1])
    ttl = string.format('%d', lease + 86400000)
  end
  local fence, seen, keep = fences[i] + 1, ARGV[at + 2] + 1, ttl
  if seen > fence then fence = seen end
  if now_us > fence then fence = now_us end
  if fence > (now + lease + 1) * 1000 then -- a fence from ahead is kept until a day after its own time
    keep = math.floor(fence / 1000) + 86400000 - now
  end
  redis.call('SET', KEYS[i], string.format('1 %s %d 0 0 0 %s', ARGV[at], fence, ARGV[at + 3]) .. tail, 'PX', keep)
  fences[i] = fence
end
return fences
