#!lua
-- Count a latch down, wait until it is at zero, or only look at it.
-- KEYS[1..5] the name (see state.lua; `holder` is "left:COUNT")  KEYS[6] its watchers (see watchers.lua)
-- ARGV[1] count that it starts with  ARGV[2] life_ms: how long it is kept after its last use
-- ARGV[3] channel  ARGV[4] owner  ARGV[5] down: by how much to count down, once for each ticket; 0: not at all
-- ARGV[6] place_ms: how long this ticket waits without a heartbeat; 0: it does not wait, or no longer
-- ARGV[7] ticket
-- Returns {count left, fence}. Another fence than before means that the server has forgotten the latch in between;
-- 0 that nobody has used it, and that looking at it did not make it.
-- Errors: LOCKFASTKIND kind limit (in use as something else, or with another count), LOCKFASTFORMAT text

local raw = redis.call('GET', KEYS[1])
-- include state.lua
-- include watchers.lua
local count, life, down, place_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6])
local channel, ticket = ARGV[3], ARGV[7]
if is_other('latch') then return refuse_kind() end
local left = kind == 'latch' and holder_end > now and tonumber(string.match(holder, '^left:(%d+)$'))
if left and limit ~= count then return refuse_kind() end
local looks = down == 0 and place_ms == 0
if not left then
  if looks then return {count, 0} end
  begin('latch', count, ARGV[4])
  left = count
end

if looks then
  unwatch(ticket, channel)
  if forget_place(ticket) == 1 then save() end
  return {left, fence}
end
if left > 0 then
  local ended = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, SWEEP)
  for i = 1, #ended do
    redis.call('ZREM', KEYS[6], ended[i])
    forget_place(string.match(ended[i], '^%S+'))
  end
  if down > 0 and redis.call('HEXISTS', KEYS[3], ticket) == 0 then
    left = math.max(left - down, 0)
    redis.call('HSET', KEYS[3], ticket, down) -- a second send of it finds that it was counted
    if left == 0 then -- from here on nothing more is counted, and nobody has to wait
      tell('open', fence, ticket)
      redis.call('DEL', KEYS[2], KEYS[3], KEYS[6])
      waiting = 0
    end
  end
end
holder, holder_end = string.format('left:%d', left), math.max(holder_end, now + life)
redis.call('PEXPIREAT', KEYS[3], expiry()) -- what was counted is known for as long as the latch
if place_ms > 0 and left > 0 then stand(ticket, channel, ARGV[4], place_ms) end
save()
return {left, fence}
