#!lua flags=allow-oom
-- Raise the end of a live hold. Never revives one that has ended, never lowers an end.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] lease_ms  ARGV[2] weight: what it holds of the limit from now on, if that is less than before (0: as it is)
-- ARGV[3] fence of the hold: a ticket granted twice has two  ARGV[4] ticket
-- Returns {1, ms left} or {0, 0} when the hold is gone.

local raw = redis.call('GET', KEYS[1])
-- include state.lua
local lease_end, lower = now + tonumber(ARGV[1]), tonumber(ARGV[2])
if holder == ARGV[4] then
  if fence ~= tonumber(ARGV[3]) or holder_end <= now then return {0, 0} end
  local raised = math.max(holder_end, lease_end)
  if raised > holder_end or (lower > 0 and lower < limit) then
    holder_end = raised
    if lower > 0 and lower < limit then
      share_holder(lower)
      settle('') -- there is room for others now
    end
    save()
  end
  return {1, raised - now}
end
if used == 0 then return {0, 0} end
local stood = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[4]) or 0)
local entry = stood > now and redis.call('HGET', KEYS[3], ARGV[4])
if not entry then return {0, 0} end
local own_fence, weight, lease, since, owner = string.match(entry, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
if own_fence ~= ARGV[3] then return {0, 0} end
local lowers = lower > 0 and lower < tonumber(weight)
if lease_end > stood or lowers then
  stood = math.max(stood, lease_end)
  used = used - tonumber(weight)
  share(ARGV[4], own_fence, lowers and lower or weight, stood, lease, since, owner)
  if lowers then settle('') end
  save()
end
return {1, stood - now}
