#!lua flags=allow-oom
-- Who leads, and tell this ticket when that changes. Asked again and again, as a heartbeat; it changes nothing else.
-- KEYS[1..5] the name (see state.lua)  KEYS[6] its watchers (see watchers.lua)
-- ARGV[1] watch_ms: how long it is told without a heartbeat; 0: it is not told any more, which it is told if it was
-- ARGV[2] channel  ARGV[3] ticket
-- Returns {fence, ms, since, text}: of a leader that has said something, with "owner<tab>number value" as its text.
-- Otherwise fence is 0 and text is ""; ms is until the lease ends of whoever holds, 0 when nobody does.
-- Errors: LOCKFASTKIND kind limit, LOCKFASTFORMAT text (see admit.lua)

local raw = redis.call('GET', KEYS[1])
-- include state.lua
-- include watchers.lua
if is_other('election') then return refuse_kind() end
local watch_ms, channel, ticket = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if watch_ms > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now) -- those who went without a word: nothing may change for long
  watch(ticket, channel, watch_ms)
elseif unwatch(ticket, channel) == 1 then
  push(channel, 'over ' .. ticket .. ' 0')
end
if kind ~= 'election' or holder == '-' or holder_end <= now then return {0, 0, 0, ''} end
if not string.find(holder_owner, '\t', 1, true) then return {0, holder_end - now, 0, ''} end
return {fence, holder_end - now, tonumber(holder_since), holder_owner}
