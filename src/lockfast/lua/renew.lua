#!lua flags=allow-oom
-- Raise the end of a live hold. Never revives one that has ended, never lowers an end.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] lease_ms  ARGV[2] weight: what it holds of the limit from now on, if that is less than before (0: as it is)
-- ARGV[3] heir: the ticket that goes on with this hold from now on, in place of the one that had it ('': the same)
-- ARGV[4] fence of the hold: a ticket granted twice has two  ARGV[5] ticket
-- Returns {1, ms left}, {2, ms left} when its holder is asked to let go, or {0, 0} when the hold is gone.
-- A ticket that has an heir is refused from then on, for longer than a request of it may still be under way.

local LATE = 60000
local raw = redis.call('GET', KEYS[1])
-- include state.lua
local lease_end, lower, heir, own_fence, ticket = now + tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if heir ~= '' then
  if holder == heir or redis.call('ZSCORE', KEYS[4], heir) then
    ticket, heir = heir, '' -- sent again: it has gone over already
  elseif redis.call('ZSCORE', KEYS[5], heir) then
    return {0, 0} -- whoever asked has given up since
  end
end

local alone = holder == ticket
local entry, stood, weight, since, owner
if alone then
  if fence ~= tonumber(own_fence) or holder_end <= now then return {0, 0} end
  stood, weight = holder_end, used > 0 and used or limit
else
  if used == 0 then return {0, 0} end
  stood = tonumber(redis.call('ZSCORE', KEYS[4], ticket) or 0)
  entry = stood > now and redis.call('HGET', KEYS[3], ticket)
  if not entry then return {0, 0} end
  local its_fence
  its_fence, weight, since, owner = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
  if its_fence ~= own_fence then return {0, 0} end
  weight = tonumber(weight)
end

local lowers = lower > 0 and lower < weight
if lease_end > stood or lowers or heir ~= '' then
  stood = math.max(stood, lease_end)
  if alone then
    holder_end = stood
    if heir ~= '' then holder = heir end
    if lowers then share_holder(lower) end
  else
    if heir ~= '' then
      redis.call('ZREM', KEYS[4], ticket)
      redis.call('HDEL', KEYS[3], ticket)
    end
    used = used - weight
    share(heir ~= '' and heir or ticket, own_fence, lowers and lower or weight, stood, since, owner)
  end
  if heir ~= '' then bury(ticket, now + LATE) end
  if lowers then settle('') end -- there is room for others now
  save()
else
  save() -- nothing has changed, but a WAIT behind this counts only what this connection has written
end
local wanted = tonumber(redis.call('HGET', KEYS[3], '!wanted') or 0) >= tonumber(own_fence)
return {wanted and 2 or 1, stood - now}
