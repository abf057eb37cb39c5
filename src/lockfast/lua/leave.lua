#!lua flags=allow-oom
-- Forget a ticket wherever it is (release, cancel, end of a wait, break), then hand over to whoever is next.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] lease_ms: for how long the ticket stays refused, its lease at least
-- ARGV[2] unsure: "1" when an `admit` of the ticket was sent and never answered, so that it may still arrive
-- ARGV[3] note: "" or "by reason", kept as the record of a break  ARGV[4] ticket
-- Returns 1 when it held (nobody has taken over until now), 2 when it was queued, 0 when it was nowhere.
-- A ticket that was not found, or whose client is unsure, leaves a tombstone: an `admit` that comes later is refused.
-- Runs at maxmemory too: a server that is full must still let go.

-- The quick ways, for a holder whom nobody waits for, and for one whose successor wants all of it: see admit.lua.
local raw = redis.call('GET', KEYS[1])
if raw and ARGV[2] == '0' and ARGV[3] == '' then
  local head, limit, fence, waiting, holder = string.match(raw, '^(1 %a+ (%d+) )(%d+) %d+ (%d+) 0 (%S+) ')
  if holder == ARGV[4] then
    if waiting == '0' then
      redis.call('SET', KEYS[1], head .. fence .. ' 0 0 0 - 0 0 ', 'KEEPTTL') -- the expiry that stands is late enough
      return 1
    end
    local ticket = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    local entry = ticket and redis.call('HGET', KEYS[3], ticket) or ''
    local place_end, weight, lease, seen, channel, owner =
      string.match(entry, '^(%d+) (%d+) (%d+) %d+ (%d+) (%S+) (.*)$')
    local clock = redis.call('TIME')
    local now_us = clock[1] * 1000000 + clock[2]
    local now = math.floor(now_us / 1000)
    if weight == limit and place_end - now > 0 then
      redis.call('ZREM', KEYS[2], ticket)
      redis.call('HDEL', KEYS[3], ticket)
      local lease_end, told = now + lease, string.format('%d', math.max(fence + 1, seen + 1, now_us))
      local text, heard = 'grant ' .. ticket .. ' ' .. told, 0
      if string.find(channel, '{', 1, true) then
        heard = redis.pcall('SPUBLISH', (string.gsub(channel, '%%20', ' ')), text)
      else
        heard = redis.pcall('PUBLISH', channel, text)
      end
      if type(heard) ~= 'number' or heard == 0 then lease_end = math.min(lease_end, place_end) end
      redis.call('SET', KEYS[1], string.format('%s%s 0 %d 0 %s %d %d %s', head, told, waiting - 1, ticket, lease_end,
        now, owner), 'PX', math.max(lease_end, math.floor(told / 1000)) + 86400000 - now)
      return 1
    end
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
