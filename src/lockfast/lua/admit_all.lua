#!lua
-- Hold several names of one use that nobody holds or waits for, all of them whole, all or none. It does to each just
-- what the quick way of admit.lua does (a test compares them); whatever is not that simple is left to admit.lua. So is
-- a fence that is ahead of this server's clock, which makes the new one the same for all.
-- KEYS[i] the state of name i (KEYS[1] of state.lua)
-- ARGV[1] use: "kind limit"  ARGV[2] lease_ms  ARGV[3] owner
-- ARGV[4] seen: highest fence of any of them that the client knows of
-- ARGV[5] stem: the ticket of name i is this, "-" and as many "i"s (to make texts of numbers would take five times as long)
-- Returns the fence of all of them when they are held from now on, with the whole lease; 0 when nothing was changed.
-- Sent again with the same stem it changes nothing: they hold, so the names are no longer free.

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
if ARGV[4] + 0 >= now_us then return 0 end
local states = redis.call('MGET', unpack(KEYS))
local as_left = '1 ' .. ARGV[1] .. ' ' .. ARGV[4] .. ' 0 0 0 - 0 0 ' -- by this client, if nobody had it since
for i = 1, #KEYS do
  if states[i] ~= as_left then
    local fence = string.match(states[i] or '', '^1 ' .. ARGV[1] .. ' (%d+) 0 0 0 %- ')
    if not fence or fence + 0 >= now_us then return 0 end
  end
end

local now = math.floor(now_us / 1000)
local lease_end = now + ARGV[2]
local head = string.format('1 %s %d 0 0 0 %s-', ARGV[1], now_us, ARGV[5])
local tail = string.format(' %d %d %s', lease_end, now, ARGV[3])
local expiry = string.format('%d', lease_end + 86400000)
for i = 1, #KEYS do
  head = head .. 'i'
  redis.call('SET', KEYS[i], head .. tail, 'PXAT', expiry)
end
return now_us
