#!lua flags=allow-oom
-- Give one server's vote for a hold that a majority of servers decides on; and keep it. It never queues: whoever waits
-- does so with `admit`, at one of the servers. Sent again with the same ticket it keeps the vote for another lease.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] kind  ARGV[2] limit  ARGV[3] weight: what it holds of the limit, if that is not less already
-- ARGV[4] lease_ms  ARGV[5] owner
-- ARGV[6] proposal: the fence that the hold is to have; a vote has it, or a larger one if this name or this server's
--         clock knows of such. A vote that has a smaller one is raised to it.  ARGV[7] ticket
-- Returns {code, fence, ms, server time in us}:
--   { 3, fence of the vote, ms of its lease}                    it has the vote, and did not have it before
--   { 1, fence of the vote, ms of its lease}                    it had the vote, and keeps it for another lease
--   { 2, fence of the vote, ms of its lease}                    the same, and its holder is asked to let go
--   { 0, fence of the name, ms until the earliest lease ends}   others hold the name
--   {-2, fence of the name, ms until the earliest lease ends}   others wait for it here, whether it is held or not
--   {-1, fence of the name, 0}                                  a `leave` of this ticket came first: refused
-- Errors: LOCKFASTKIND, LOCKFASTFORMAT (see admit.lua)
-- Runs at maxmemory too: a server that is full must still keep what it has promised.

-- The quick way, for a name that is known, free and not waited for: see admit.lua.
local raw = redis.call('GET', KEYS[1])
local used = ARGV[2] == ARGV[3] and '0' or ARGV[3]
if raw and (used == '0' or used - ARGV[2] < 0) then
  local kind, limit, fence = string.match(raw, '^1 (%a+) (%d+) (%d+) 0 0 0 %- ')
  if kind == ARGV[1] and limit == ARGV[2] then
    local clock = redis.call('TIME')
    local now_us = clock[1] * 1000000 + clock[2]
    local now, proposal = math.floor(now_us / 1000), ARGV[6] + 0
    local lease_end = now + ARGV[4]
    fence = fence + 1
    if proposal > fence then fence = proposal end
    if now_us > fence then fence = now_us end
    redis.call('SET', KEYS[1], string.format('1 %s %s %d %s 0 0 %s %d %d %s', ARGV[1], ARGV[2], fence, used,
      ARGV[7], lease_end, now, ARGV[5]), 'PX', math.max(lease_end, math.floor(fence / 1000)) + 86400000 - now)
    return {3, fence, ARGV[4] + 0, now_us}
  end
end

-- include state.lua
local weight, lease, owner, proposal, ticket = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
if not raw then
  kind, limit = ARGV[1], tonumber(ARGV[2])
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4]) -- leftovers of a state that was evicted or deleted by hand
end
local changed = settle('')
if kind ~= ARGV[1] or limit ~= tonumber(ARGV[2]) then
  if holder ~= '-' or used > 0 or waiting > 0 then
    if changed then save() end
    return redis.error_reply(string.format('LOCKFASTKIND %s %d', kind, limit))
  end
  kind, limit = ARGV[1], tonumber(ARGV[2])
end

local lease_end = now + lease
if holder == ticket then
  holder_end = math.max(holder_end, lease_end)
  fence = math.max(fence, proposal)
  local own_fence, own_end = fence, holder_end -- those of the name may be others' when there is room for them
  if weight < (used > 0 and used or limit) then
    share_holder(weight)
    settle('')
  end
  save()
  local wanted = tonumber(redis.call('HGET', KEYS[3], '!wanted') or 0) >= own_fence
  return {wanted and 2 or 1, own_fence, own_end - now, now_us}
end
local entry = used > 0 and redis.call('ZSCORE', KEYS[4], ticket) and redis.call('HGET', KEYS[3], ticket)
if entry then
  local own_fence, own_weight, since, own_owner = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
  own_fence = math.max(own_fence + 0, proposal)
  lease_end = math.max(lease_end, tonumber(redis.call('ZSCORE', KEYS[4], ticket)))
  fence = math.max(fence, own_fence)
  used = used - own_weight
  share(ticket, own_fence, math.min(weight, own_weight + 0), lease_end, since + 0, own_owner)
  if weight < own_weight + 0 then settle('') end
  save()
  local wanted = tonumber(redis.call('HGET', KEYS[3], '!wanted') or 0) >= own_fence
  return {wanted and 2 or 1, own_fence, lease_end - now, now_us}
end

if tombs > now and tonumber(redis.call('ZSCORE', KEYS[5], ticket) or 0) > now then
  if changed then save() end
  return {-1, fence, 0, now_us}
end
if (holder == '-' or used > 0) and waiting == 0 and used + weight <= limit then
  hold(ticket, weight, lease_end, proposal - 1, owner)
  save()
  return {3, fence, lease, now_us}
end
if changed then save() end
local due = holder_end
if holder == '-' then
  due = tonumber(redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or now)
end
return {waiting > 0 and -2 or 0, fence, math.max(due - now, 0), now_us}
