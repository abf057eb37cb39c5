#!lua
-- Run commands of the caller, all in one step, if a hold stands; otherwise write nothing. Errors of single commands are
-- as in EXEC: the others run all the same. Sent again with the same KEYS[6] it runs nothing and answers as before, so
-- that a lost reply is no second write.
-- KEYS[1..5] the name (see state.lua)  KEYS[6] string: the replies of this one guard, packed; "" if they were too many
-- KEYS[7..] keys of the commands, as far as they are known: a cluster checks that they are on this node
-- ARGV[1] fence of the hold  ARGV[2] ticket  ARGV[3] kept_ms: for how long the replies are kept for a second asking
-- ARGV[4..] for each command the number of its words, and the words
-- Returns {1, {a reply for each}} when they have run, now or before, {2, {}} when they ran before and their replies are
-- not known any more, {0, {}} when the hold is gone.
-- Like admit.lua it is refused as a whole by a server at its maxmemory.
-- Errors: LOCKFASTFORMAT text (see admit.lua)

-- Whether it has run comes first: it may have done so with the last breath of the hold.
local ran = redis.call('GET', KEYS[6])
if ran == '' then return {2, {}} end
if ran then return {1, cmsgpack.unpack(ran)} end

local raw = redis.call('GET', KEYS[1])
-- include state.lua
if not stands(ARGV[2], tonumber(ARGV[1])) then return {0, {}} end

local MOST_KEPT = 4096 -- bytes: replies are for a short time in the memory of the server
local replies, at = {}, 4
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  replies[#replies + 1] = redis.pcall(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
local packed = cmsgpack.pack(replies)
if #packed > MOST_KEPT then packed = '' end
redis.call('SET', KEYS[6], packed, 'PX', ARGV[3])
return {1, replies}
