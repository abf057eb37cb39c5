#!lua flags=allow-oom
-- Forget a ticket wherever it is (release, cancel, end of a wait, break), then hand over to whoever is next.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] lease_ms: for how long the ticket stays refused, its lease at least
-- ARGV[2] unsure: "1" when an `admit` of the ticket was sent and never answered, so that it may still arrive
-- ARGV[3] note: "" or "by reason", kept as the record of a break  ARGV[4] ticket
-- Returns 1 when it held (nobody has taken over until now), 2 when it was queued, 0 when it was nowhere.
-- A ticket that was not found, or whose client is unsure, leaves a tombstone: an `admit` that comes later is refused.
-- Runs at maxmemory too: a server that is full must still let go.

-- The quick way, for a holder whom nobody waits for: see admit.lua. The expiry that stands is late enough.
local raw = redis.call('GET', KEYS[1])
if raw and ARGV[2] == '0' and ARGV[3] == '' then
  local rest, holder = string.match(raw, '^(1 %a+ %d+ %d+ )%d+ 0 0 (%S+) ')
  if holder == ARGV[4] then
    redis.call('SET', KEYS[1], rest .. '0 0 0 - 0 0 ', 'KEEPTTL')
    return 1
  end
end

-- include state.lua
local ticket, found = ARGV[4], 0
if holder == ticket then
  found = 1
  forget_holder()
elseif used > 0 and redis.call('ZSCORE', KEYS[4], ticket) then
  found = 1
  forget_shared(ticket)
elseif waiting > 0 and forget_place(ticket) == 1 then
  found = 2
end

if found == 0 or ARGV[2] == '1' then
  bury(ticket, now + tonumber(ARGV[1]))
end
if found > 0 and ARGV[3] ~= '' then
  redis.call('HSET', KEYS[3], '!broken', string.format('%d %s', now, ARGV[3]))
  redis.call('PEXPIREAT', KEYS[3], expiry())
end
if raw then
  settle('')
  save()
end
return found
