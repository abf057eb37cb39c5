-- Who is to be told when something about a name changes, and who waits in it without being admitted: the part that
-- election, latch and barrier share. Stands behind state.lua in a script, and like that is never sent alone.
--   KEYS[6] zset    watchers: "ticket channel" -> until when it is told; its heartbeats move that on
-- A latch or a barrier stands in KEYS[1] as a name of its kind that is held, by no ticket but by its own condition, so
-- that it is in use for everybody else. Its `end` is when it is forgotten; whoever waits in it has a place in KEYS[2]
-- and KEYS[3] as a waiter for a lock has, for tools to list. It never ends before a place does: so no place of it is
-- ever let in by the grant loop.

-- Whether the name is in use as something else than `own`.
local function is_other(own)
  if not raw or kind == own then return false end
  if settle('') then save() end
  return holder ~= '-' or used > 0 or waiting > 0
end

local function refuse_kind()
  return redis.error_reply(string.format('LOCKFASTKIND %s %d', kind, limit))
end

local function watch(ticket, channel, watch_ms)
  redis.call('ZADD', KEYS[6], now + watch_ms, ticket .. ' ' .. channel)
  redis.call('PEXPIREAT', KEYS[6], expiry())
end

local function unwatch(ticket, channel)
  return redis.call('ZREM', KEYS[6], ticket .. ' ' .. channel)
end

-- Push to everybody who watches, but for `asker`: it reads the same in its reply.
local function tell(word, number, asker)
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now)
  local watchers = redis.call('ZRANGE', KEYS[6], 0, -1)
  for i = 1, #watchers do
    local ticket, channel = string.match(watchers[i], '^(%S+) (%S+)$')
    if ticket ~= asker then
      push(channel, string.format('%s %s %d', word, ticket, number))
    end
  end
end

-- Make the name a new latch or barrier. Its fence says which one it is: no two have the same.
local function begin(own, size, owner)
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[6])
  kind, limit, used, waiting = own, size, 0, 0
  fence = math.max(fence + 1, now_us)
  holder_end, holder_since, holder_owner = 0, now, owner
end

-- Let a ticket wait here, or go on waiting, for `place_ms`. Returns how many came before it.
local function stand(ticket, channel, owner, place_ms)
  local index = redis.call('ZSCORE', KEYS[2], ticket)
  local since = index and string.match(redis.call('HGET', KEYS[3], ticket) or '', '^%d+ %d+ %d+ (%d+) ') or now
  if not index then
    index = tonumber(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or -1) + 1
    redis.call('ZADD', KEYS[2], index, ticket)
    waiting = waiting + 1
  end
  redis.call('HSET', KEYS[3], ticket, string.format('%d 1 %d %d 0 %s %s', now + place_ms, place_ms, since, channel,
    owner))
  redis.call('PEXPIREAT', KEYS[2], expiry())
  redis.call('PEXPIREAT', KEYS[3], expiry())
  watch(ticket, channel, place_ms)
  return tonumber(index)
end
