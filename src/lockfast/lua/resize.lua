#!lua flags=allow-oom
-- Change the limit of a name that is in use. Holders keep what they have; waiters are let in, or refused, by the new one.
-- KEYS[1..5] the name (see state.lua)
-- ARGV[1] kind  ARGV[2] limit
-- Returns the limit that was there before, 0 for a name that nobody has used (the new limit is kept for its next user).
-- Errors: LOCKFASTKIND kind limit, LOCKFASTFORMAT text (see admit.lua)

local raw = redis.call('GET', KEYS[1])
-- include state.lua
local before = limit
if not raw then redis.call('DEL', KEYS[2], KEYS[3], KEYS[4]) end -- as in admit.lua
if raw and kind ~= ARGV[1] then
  local settled = settle('')
  if holder ~= '-' or used > 0 or waiting > 0 then
    if settled then save() end
    return redis.error_reply(string.format('LOCKFASTKIND %s %d', kind, limit))
  end
  before = 0
end
-- Who holds what was the whole may hold a part of it from now on.
if holder ~= '-' then share_holder(used > 0 and used or before) end
kind, limit = ARGV[1], tonumber(ARGV[2])
if waiting > 0 then -- drop those who want more than the limit, wherever they stand: they would hold up the others
  local tickets = redis.call('ZRANGE', KEYS[2], 0, -1)
  for i = 1, #tickets do
    local entry = redis.call('HGET', KEYS[3], tickets[i])
    local weight, channel = string.match(entry or '', '^%d+ (%d+) %d+ %d+ %d+ (%S+) ')
    if weight and tonumber(weight) > limit then
      forget_place(tickets[i])
      push(channel, 'refused ' .. tickets[i] .. ' ' .. string.format('%d', limit))
    end
  end
end
settle('')
save()
return before
