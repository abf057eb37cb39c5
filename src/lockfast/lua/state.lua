-- The state of one name, and the grant loop: the part that every script stands on. When a script is loaded, this
-- file takes the place of its line `-- include state.lua`; it is never sent alone. Before that line the script has
-- read KEYS[1] into `raw`.
--
-- All five keys of a name share one hash tag:
--   KEYS[1] string  the name itself: "FORMAT kind limit fence used waiting tombs holder end since owner"
--                   A holder of the whole limit stands here, with used = 0; and one of less that is alone and has
--                   nobody waiting behind it, with its weight as `used`. The fence is then the holder's.
--   KEYS[2] zset    the queue: ticket -> arrival number, lowest first
--   KEYS[3] hash    what is known of tickets in KEYS[2] and KEYS[4]; "!broken" -> "at by reason" of the last break;
--                   "!wanted" -> fence: whoever holds with this one or an older one has been asked to let go
--                   a place:  "place_end weight lease since seen channel owner"
--                   a holder: "fence weight since owner"
--   KEYS[4] zset    shared holders: ticket -> end of lease; `used` is the sum of their weights
--   KEYS[5] zset    tombstones: ticket -> until when an `admit` of it is refused
--
-- Times are ms of this server's clock; a client's clock never comes in here. Fences are integers below 2^53.
-- `tombs` is when the last tombstone ends, 0 for none. A holder "-" is nobody. Every key that is written expires a day
-- after the latest of now, the fence and every end that stands for the name: nothing is forgotten that still counts.
local FORMAT = '1'
local DAY = 86400000
local SWEEP = 500 -- tickets dropped or let in per call at most, so that no call takes long; the next call goes on

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2] -- arithmetic makes numbers of texts, at half the cost of tonumber
local now = math.floor(now_us / 1000)

local kind, limit, fence, used, waiting, tombs = '', 0, 0, 0, 0, 0
local holder, holder_end, holder_since, holder_owner = '-', 0, 0, ''
if raw then
  local f
  f, kind, limit, fence, used, waiting, tombs, holder, holder_end, holder_since, holder_owner =
    string.match(raw, '^(%d+) (%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (.*)$')
  if f ~= FORMAT then
    return redis.error_reply('LOCKFASTFORMAT ' .. string.sub(raw, 1, 40))
  end
  limit, fence, used, waiting, tombs, holder_end = limit + 0, fence + 0, used + 0, waiting + 0, tombs + 0, holder_end + 0
else -- never used, or forgotten: only tombstones may stand without a state
  tombs = tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2] or 0)
end

local function expiry()
  local shared_end = 0
  if used > 0 then
    shared_end = tonumber(redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2] or 0)
  end
  return math.max(now, math.floor(fence / 1000), holder_end, shared_end, tombs) + DAY
end

local function save()
  if tombs <= now then tombs = 0 end
  redis.call('SET', KEYS[1], string.format('%s %s %d %d %d %d %d %s %d %d %s', FORMAT, kind, limit, fence, used,
    waiting, tombs, holder, holder_end, holder_since, holder_owner), 'PX', expiry() - now)
end

-- Keep a shared holder until `lease_end`. Its fence is told with it: of several holders each has its own.
local function share(ticket, own_fence, weight, lease_end, since, owner)
  used = used + weight
  redis.call('ZADD', KEYS[4], lease_end, ticket)
  redis.call('HSET', KEYS[3], ticket, string.format('%d %d %d %s', own_fence, weight, since, owner))
  redis.call('PEXPIREAT', KEYS[3], expiry())
  redis.call('PEXPIREAT', KEYS[4], expiry())
end

-- Tell a client something; returns how many heard it. A channel with braces is one of a cluster, in the slot of the
-- name: only this node and its subscribers are concerned. A space in that name is told as %20, which no name has in it.
local function push(channel, text)
  if string.find(channel, '{', 1, true) then
    return redis.pcall('SPUBLISH', (string.gsub(channel, '%%20', ' ')), text)
  end
  return redis.pcall('PUBLISH', channel, text)
end

-- Forget the holder in KEYS[1].
local function forget_holder()
  holder, holder_end, holder_since, holder_owner, used = '-', 0, 0, '', 0
end

local function forget_shared(ticket)
  local entry = redis.call('HGET', KEYS[3], ticket)
  local weight = entry and tonumber(string.match(entry, '^%d+ (%d+) ')) or 0
  redis.call('ZREM', KEYS[4], ticket)
  redis.call('HDEL', KEYS[3], ticket)
  used = used - weight
end

local function forget_place(ticket)
  local was_there = redis.call('ZREM', KEYS[2], ticket)
  redis.call('HDEL', KEYS[3], ticket)
  waiting = waiting - was_there
  return was_there
end

-- Refuse every `admit` of a ticket for a while.
local function bury(ticket, until_ms)
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
  redis.call('ZADD', KEYS[5], until_ms, ticket)
  if until_ms > tombs then tombs = until_ms end
  -- Tombstones need no day of memory: they expire with the last of them.
  redis.call('PEXPIREAT', KEYS[5], tombs)
end

-- Whether a ticket holds the name at this moment, by that very grant: a ticket granted twice has two fences.
local function stands(ticket, own_fence)
  if holder == ticket then return fence == own_fence and holder_end > now end
  if used == 0 or tonumber(redis.call('ZSCORE', KEYS[4], ticket) or 0) <= now then return false end
  local entry = redis.call('HGET', KEYS[3], ticket)
  return entry and tonumber(string.match(entry, '^%d+')) == own_fence
end

-- Make the holder in KEYS[1] one of the shared ones, with `weight` and the fence that it has.
local function share_holder(weight)
  local ticket, lease_end, since, owner = holder, holder_end, tonumber(holder_since), holder_owner
  forget_holder()
  share(ticket, fence, weight, lease_end, since, owner)
end

-- Make `ticket` a holder with a fence that nobody has had, from now until `lease_end`.
local function hold(ticket, weight, lease_end, seen, owner)
  if holder ~= '-' then share_holder(used) end -- it is no longer alone
  fence = math.max(fence + 1, seen + 1, now_us)
  if used == 0 and (weight == limit or waiting == 0) then
    holder, holder_end, holder_since, holder_owner = ticket, lease_end, now, owner
    used = weight < limit and weight or 0
  else
    share(ticket, fence, weight, lease_end, now, owner)
  end
end

-- Drop holders whose lease has ended, then let the head of the queue in while it fits. `asker` is the ticket whose
-- call this is ('' in leave): it reads its grant in the reply, so it needs no push and is surely alive.
local function settle(asker)
  local changed = false
  if holder ~= '-' and holder_end <= now then
    forget_holder()
    changed = true
  end
  if used > 0 and holder == '-' then
    local ended = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, SWEEP)
    for i = 1, #ended do forget_shared(ended[i]) end
    if #ended > 0 then changed = true end
    if used < 0 or redis.call('EXISTS', KEYS[4]) == 0 then used = 0 end
  end
  local steps = 0
  while waiting > 0 and holder == '-' and used < limit and steps < SWEEP do
    steps = steps + 1
    local ticket = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not ticket then -- the queue was evicted or deleted by hand
      waiting = 0
      return true
    end
    local entry = redis.call('HGET', KEYS[3], ticket)
    local place_end, weight, lease, seen, channel, owner = 0, 0, 0, 0
    if entry then
      place_end, weight, lease, seen, channel, owner =
        string.match(entry, '^(%d+) (%d+) (%d+) %d+ (%d+) (%S+) (.*)$')
      place_end, weight, lease, seen = place_end + 0, weight + 0, lease + 0, seen + 0
    end
    if not entry or (place_end <= now and ticket ~= asker) then -- without an entry: evicted, nobody knows what it wants
      forget_place(ticket)
    elseif weight > limit then -- the limit was lowered while it waited
      forget_place(ticket)
      push(channel, 'refused ' .. ticket .. ' ' .. string.format('%d', limit))
    elseif used + weight > limit then
      break -- the head waits for more room, and nobody overtakes it
    else
      forget_place(ticket)
      local lease_end = now + lease
      if ticket ~= asker then
        local next_fence = math.max(fence + 1, seen + 1, now_us)
        local heard = push(channel, 'grant ' .. ticket .. ' ' .. string.format('%d', next_fence))
        -- Nobody is listening: dead, or not yet subscribed. It has until its place would have ended to ask for itself.
        if type(heard) ~= 'number' or heard == 0 then lease_end = math.min(lease_end, place_end) end
      end
      hold(ticket, weight, lease_end, seen, owner)
    end
    changed = true
  end
  if steps == SWEEP and waiting > 0 and used < limit then -- somebody must ask, so that this goes on at once: the first that hears it
    local next_ones = redis.call('ZRANGE', KEYS[2], 0, 9)
    for i = 1, #next_ones do
      local channel = string.match(redis.call('HGET', KEYS[3], next_ones[i]) or '', '^%d+ %d+ %d+ %d+ %d+ (%S+) ')
      local heard = channel and push(channel, 'again ' .. next_ones[i] .. ' 0')
      if type(heard) == 'number' and heard > 0 then break end
    end
  end
  return changed
end

