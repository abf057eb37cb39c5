#!lua flags=allow-oom
-- Forget a ticket wherever it is (release, cancel, end of a wait, break), then hand over to whoever is next.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] ticket  ARGV[2] lease_ms of the ticket, for how long it stays refused
-- ARGV[3] unsure: "1" when an `admit` of the ticket was sent and never answered, so that it may still arrive
-- ARGV[4] note: "" or "by reason", kept as the record of a break
-- Returns {found, waiting}: found 1 held, 2 held but its lease had ended (nobody had taken over), 3 queued, 0 nothing.
-- A ticket that was not found, or whose client is unsure, leaves a tombstone: an `admit` that comes later is refused.
-- Runs at maxmemory too: a server that is full must still let go.
local ticket, found = ARGV[1], 0
if holder == ticket then
  found = holder_end > now and 1 or 2
  forget_exclusive()
elseif used > 0 and redis.call('ZSCORE', KEYS[4], ticket) then
  found = tonumber(redis.call('ZSCORE', KEYS[4], ticket)) > now and 1 or 2
  forget_shared(ticket)
elseif waiting > 0 and forget_place(ticket) == 1 then
  found = 3
end

if found == 0 or ARGV[3] == '1' then
  local until_ms = now + tonumber(ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
  redis.call('ZADD', KEYS[5], until_ms, ticket)
  reach(until_ms)
  if until_ms > tombs then tombs = until_ms end
  -- Tombstones need no day of memory: they expire with the last of them.
  redis.call('PEXPIREAT', KEYS[5], tombs)
end
if found > 0 and ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], '!broken', string.format('%d %s', now, ARGV[4]))
  redis.call('PEXPIREAT', KEYS[3], expiry())
end
if raw then
  settle('')
  save()
end
return {found, waiting}
