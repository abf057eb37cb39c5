#!lua
-- Arrive at a barrier and wait for the others, leave it, break it on purpose, or make it anew.
-- KEYS[1..5] the name (see state.lua)  KEYS[6] its watchers (see watchers.lua)
-- ARGV[1] parties  ARGV[2] lease_ms of a party that waits  ARGV[3] over_ms: how long the end of a ticket is remembered
-- ARGV[4] channel  ARGV[5] owner  ARGV[6] verb: arrive (also a heartbeat), leave, abort, reset or look
-- ARGV[7] known: the generation that the ticket was told it waits in, 0 for none  ARGV[8] ticket
-- Returns {code, generation, number, ms}:
--   { 1, generation, index or 0 when that is forgotten, 0}    all parties of its generation have arrived
--   { 0, generation, index, ms until the first place ends}    it waits (look: not broken, `number` parties wait)
--   {-1, generation, 0, 0}                                    its generation is broken, or the barrier is, or it left
-- The fence is the generation: no two have the same, also after the server has forgotten everything. `holder` is
-- "whole:first:breaks" or "broken:first:breaks": the generations from `first` on that are over have tripped, except
-- `breaks`. In KEYS[5] are tickets that are over; one that has passed has "passed index generation" in KEYS[3].
-- Errors: LOCKFASTKIND kind limit (in use as something else, or by another number of parties), LOCKFASTFORMAT text

local raw = redis.call('GET', KEYS[1])
-- include state.lua
-- include watchers.lua
local MOST_BREAKS = 8
local parties, lease, over_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local verb, known, ticket = ARGV[6], tonumber(ARGV[7]), ARGV[8]
if is_other('barrier') then return refuse_kind() end
local standing, first, breaks
if kind == 'barrier' and holder_end > now then
  standing, first, breaks = string.match(holder, '^(%a+):(%d+):(%S*)$')
end
if not standing then
  if verb == 'look' then return {0, 0, 0, 0} end
  begin('barrier', parties, ARGV[5])
  standing, first, breaks = 'whole', fence, ''
end

local function answer(code, generation, number, ms)
  holder = string.format('%s:%d:%s', standing, first, breaks)
  holder_end = math.max(holder_end, now + lease + DAY)
  save()
  return {code, generation, number, ms}
end

-- Remember for a while how a ticket ended: a late or second request of it must not arrive anew.
local function is_over_now(one, how)
  redis.call('ZADD', KEYS[5], now + over_ms, one)
  if how then redis.call('HSET', KEYS[3], one, how) else redis.call('HDEL', KEYS[3], one) end
  tombs = math.max(tombs, now + over_ms)
  redis.call('PEXPIREAT', KEYS[5], tombs)
  redis.call('PEXPIREAT', KEYS[3], expiry())
end

local function next_generation()
  redis.call('DEL', KEYS[2], KEYS[6])
  waiting = 0
  fence = math.max(fence + 1, now_us)
end

local function fall_apart()
  if standing == 'broken' then return end
  standing = 'broken'
  breaks = string.format('%s%d,', breaks, fence)
  local _, count = string.gsub(breaks, ',', ',')
  if count > MOST_BREAKS then -- from the generation behind the oldest break on, the rest is still complete
    local oldest, rest = string.match(breaks, '^(%d+),(.*)$')
    first, breaks = tonumber(oldest) + 1, rest
  end
  tell('broken', fence, ticket)
  local waiters = redis.call('ZRANGE', KEYS[2], 0, -1)
  for i = 1, #waiters do is_over_now(waiters[i]) end
  redis.call('DEL', KEYS[2], KEYS[6])
  waiting = 0
end

local swept = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, SWEEP)
for i = 1, #swept do
  redis.call('ZREM', KEYS[5], swept[i])
  redis.call('HDEL', KEYS[3], swept[i])
end
if waiting > 0 then
  -- A key was evicted or deleted by hand: nobody knows any more who is here.
  local is_dead = redis.call('ZCARD', KEYS[2]) ~= waiting or redis.call('ZCARD', KEYS[6]) ~= waiting
  local ended = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, 2)
  for i = 1, #ended do -- whoever asks is alive, whatever its place says
    if string.match(ended[i], '^%S+') ~= ticket then is_dead = true end
  end
  if is_dead then fall_apart() end
end

if redis.call('ZSCORE', KEYS[5], ticket) then
  local index, generation = string.match(redis.call('HGET', KEYS[3], ticket) or '', '^passed (%d+) (%d+)$')
  if index then return answer(1, tonumber(generation), tonumber(index), 0) end
  return answer(-1, fence, 0, 0) -- it has left, or this abort or reset has been done
end

if verb == 'reset' then
  if waiting > 0 then fall_apart() end
  next_generation()
  standing, limit = 'whole', parties
  is_over_now(ticket)
  return answer(0, fence, 0, 0)
end
local is_here = redis.call('ZSCORE', KEYS[2], ticket)
local has_passed = known >= tonumber(first) and known < fence
  and not string.find(',' .. breaks, string.format(',%d,', known), 1, true)
if verb == 'leave' then
  if is_here then fall_apart() elseif has_passed then return answer(1, known, 0, 0) end
  is_over_now(ticket)
  return answer(-1, fence, 0, 0)
end
if limit ~= parties then
  if waiting > 0 or standing == 'broken' then
    answer(0, 0, 0, 0)
    return refuse_kind()
  end
  if verb ~= 'look' then limit = parties end -- nobody is there: it takes the number of its next user
end
if verb == 'look' then return answer(standing == 'whole' and 0 or -1, fence, waiting, 0) end
if verb == 'abort' then
  fall_apart()
  is_over_now(ticket)
  return answer(-1, fence, 0, 0)
end

if not is_here then
  if has_passed then return answer(1, known, 0, 0) end
  if known > 0 or standing == 'broken' then
    is_over_now(ticket) -- an earlier request of it may still be under way, and must not arrive after a reset
    return answer(-1, fence, 0, 0)
  end
end
holder_end = math.max(holder_end, now + lease + DAY)
local index = stand(ticket, ARGV[4], ARGV[5], lease)
if waiting < limit then
  local due = tonumber(redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2]) - now
  return answer(0, fence, index, math.max(due, 0))
end
local tripped = fence
tell('tripped', tripped, ticket)
local passed = redis.call('ZRANGE', KEYS[2], 0, -1)
for i = 1, #passed do is_over_now(passed[i], string.format('passed %d %d', i - 1, tripped)) end
next_generation()
return answer(1, tripped, index, 0)
