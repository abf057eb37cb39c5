#!lua
-- Ask to hold a name. Acquire, retry, heartbeat and poke are this one call: sent again with the same ticket it
-- changes nothing, so a lost reply or a second send can neither orphan a hold nor take a second one.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] kind  ARGV[2] limit, 0 for the one that is stored  ARGV[3] weight  ARGV[4] lease_ms
-- ARGV[5] channel to push to  ARGV[6] owner
-- ARGV[7] place_ms: how long a place in the queue is kept without a heartbeat; 0: do not queue
-- ARGV[8] seen: highest fence of this name that the client knows of  ARGV[9] ticket
-- Returns the fence alone when it holds from now on, with the whole lease; otherwise {code, fence, ms, position}:
--   { 1, fence of the hold, ms LEFT of its lease, 0}            it held before (never a fresh lease for an old hold)
--   { 0, fence of the name, ms until the earliest lease ends, position in the queue or 0 when not queued}
--   {-1, fence of the name, 0, 0}                               a `leave` of this ticket came first: refused
-- The first line makes a server at its maxmemory refuse the whole script, not only some of its commands.
-- Errors: LOCKFASTKIND kind limit (the name is in use as that), LOCKFASTLIMIT limit (less than the weight; 0: none is
-- stored), LOCKFASTFORMAT text (not a state we know)

-- The quick way, for a name that is known, free and not waited for. It writes and answers just what the rest of this
-- script would (a test compares them), without unpacking what it does not need.
local raw = redis.call('GET', KEYS[1])
local used = ARGV[2] == ARGV[3] and '0' or ARGV[3]
if raw and (used == '0' or used - ARGV[2] < 0) then
  local kind, limit, fence = string.match(raw, '^1 (%a+) (%d+) (%d+) 0 0 0 %- ')
  if kind == ARGV[1] and limit == ARGV[2] then
    local clock = redis.call('TIME')
    local now_us = clock[1] * 1000000 + clock[2]
    local now, seen = math.floor(now_us / 1000), ARGV[8] + 1
    local lease_end = now + ARGV[4]
    fence = fence + 1
    if seen > fence then fence = seen end
    if now_us > fence then fence = now_us end
    redis.call('SET', KEYS[1], string.format('1 %s %s %d %s 0 0 %s %d %d %s', ARGV[1], ARGV[2], fence, used,
      ARGV[9], lease_end, now, ARGV[6]), 'PX', math.max(lease_end, math.floor(fence / 1000)) + 86400000 - now)
    return fence
  end
end

-- include state.lua
local ticket, weight, lease, asked = ARGV[9], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[2])
local settled = false
if raw then
  if kind ~= ARGV[1] or (asked ~= 0 and asked ~= limit) then
    settled = settle(ticket)
    -- A limit counts for whoever comes. Who is here already may have come before a resize.
    local is_here = kind == ARGV[1]
      and (holder == ticket or redis.call('ZSCORE', KEYS[4], ticket) or redis.call('ZSCORE', KEYS[2], ticket))
    if not is_here then
      if holder ~= '-' or used > 0 or waiting > 0 then
        if settled then save() end -- whom it let in has been told
        return redis.error_reply(string.format('LOCKFASTKIND %s %d', kind, limit))
      end
      kind, limit = ARGV[1], asked -- an empty name takes the kind and limit of its next user
    end
  end
else
  kind, limit = ARGV[1], asked
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4]) -- leftovers of a state that was evicted or deleted by hand
end

local changed = settle(ticket) or settled

if holder == ticket then
  if changed then save() end
  return {1, fence, holder_end - now, 0}
end
if used > 0 and holder == '-' then
  local lease_end = redis.call('ZSCORE', KEYS[4], ticket)
  local entry = lease_end and redis.call('HGET', KEYS[3], ticket)
  if entry then
    if changed then save() end
    local own_fence = string.match(entry, '^(%d+) ')
    return {1, tonumber(own_fence), tonumber(lease_end) - now, 0}
  elseif lease_end then -- its fence was evicted or deleted by hand: it asks anew
    forget_shared(ticket)
    changed = true
  end
end

if weight > limit then
  if changed and limit > 0 then save() end
  return redis.error_reply(string.format('LOCKFASTLIMIT %d', limit))
end

if tombs > now and tonumber(redis.call('ZSCORE', KEYS[5], ticket) or 0) > now then
  if changed then save() end
  return {-1, fence, 0, 0}
end

if (holder == '-' or used > 0) and waiting == 0 and used + weight <= limit then
  hold(ticket, weight, now + lease, tonumber(ARGV[8]), ARGV[6])
  save()
  return fence
end

local due = holder_end
if holder == '-' then
  due = tonumber(redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or now)
end
due = math.max(due - now, 0)

local place_ms = tonumber(ARGV[7])
if place_ms == 0 then
  if changed then save() end
  return {0, fence, due, 0}
end
if holder ~= '-' and used > 0 then share_holder(used) end -- somebody waits behind it from now on
local since = now
local rank = waiting > 0 and redis.call('ZRANK', KEYS[2], ticket)
local entry = rank and redis.call('HGET', KEYS[3], ticket)
if entry then
  since = tonumber(string.match(entry, '^%d+ %d+ %d+ (%d+) '))
end
if not rank then
  local last = waiting > 0 and redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
  if not last then last, waiting = 0, 0 end -- nobody, or the queue was evicted
  redis.call('ZADD', KEYS[2], last + 1, ticket)
  rank, waiting = waiting, waiting + 1
end
redis.call('HSET', KEYS[3], ticket, string.format('%d %d %d %d %s %s %s', now + place_ms, weight, lease, since,
  ARGV[8], ARGV[5], ARGV[6]))
local keep = expiry()
redis.call('PEXPIREAT', KEYS[2], keep)
redis.call('PEXPIREAT', KEYS[3], keep)
save()
return {0, fence, due, rank + 1}
