-- Delete a lock if it still has the value that we gave it.
-- KEYS[1] the lock   ARGV[1] our value
-- Returns 1 when it was ours, 0 when not.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
