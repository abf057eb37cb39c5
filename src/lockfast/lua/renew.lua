#!lua flags=allow-oom
-- Raise the end of a live hold. Never revives one that has ended, never lowers an end.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] lease_ms  ARGV[2] fence of the hold: a ticket granted twice has two  ARGV[3] ticket
-- Returns {1, ms left} or {0, 0} when the hold is gone.

local raw = redis.call('GET', KEYS[1])
-- include state.lua
local lease_end = now + tonumber(ARGV[1])
if holder == ARGV[3] then
  if fence ~= tonumber(ARGV[2]) or holder_end <= now then return {0, 0} end
  if lease_end > holder_end then
    holder_end = lease_end
    save()
  end
  return {1, holder_end - now}
end
if used == 0 then return {0, 0} end
local stood = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[3]) or 0)
local entry = stood > now and redis.call('HGET', KEYS[3], ARGV[3])
if not entry or string.match(entry, '^%d+') ~= ARGV[2] then return {0, 0} end
if lease_end > stood then
  stood = lease_end
  redis.call('ZADD', KEYS[4], lease_end, ARGV[3])
  redis.call('PEXPIREAT', KEYS[3], expiry())
  redis.call('PEXPIREAT', KEYS[4], expiry())
  save()
end
return {1, stood - now}
