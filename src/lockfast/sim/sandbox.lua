-- The world that scripts see, made once per Lua state. Called with the bridge to the commands and with a function for
-- sha1; returns `compile` and `run`. What passes between it and scripting.py is told there and at `answer`.
local bridge, sha1hex = ...
local error, getinfo, pcall, select, setmetatable = error, debug.getinfo, pcall, select, setmetatable
local type, tostring, unpack, xpcall = type, tostring, unpack, xpcall
local MOST_ON_STACK = 2000 -- values in one call; Lua has room for 8000

-- What scripts see of a table that they all share: they can read it, and that is all.
local shared = {}
local function refuse()
  error('Attempt to modify a readonly table', 2)
end
local function share(fields, absent)
  if absent then setmetatable(fields, {__index = absent}) end
  local face = setmetatable({}, {__index = fields, __newindex = refuse, __metatable = false})
  shared[face] = true
  return face
end

local function failure(text)
  return {err = text}
end

local function returned(first, ...)
  if first == nil then return false end
  if first == true then return {...} end
  if first == false then
    local field, text = ...
    return {[field] = text}
  end
  return first
end

local redis = {}

function redis.pcall(...)
  return returned(bridge(...))
end

function redis.call(...)
  local reply = returned(bridge(...))
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end

function redis.error_reply(text, ...)
  if type(text) ~= 'string' or select('#', ...) > 0 then return failure('ERR wrong number or type of arguments') end
  if text:sub(1, 1) == '-' then text = text:sub(2) end
  if not text:find(' ', 1, true) then text = 'ERR ' .. text end
  return failure(text)
end

function redis.status_reply(text, ...)
  if type(text) ~= 'string' or select('#', ...) > 0 then return failure('ERR wrong number or type of arguments') end
  return {ok = text}
end

function redis.sha1hex(...)
  if select('#', ...) ~= 1 then error(failure('ERR wrong number of arguments'), 0) end
  return sha1hex(tostring((...)))
end

-- Not the format of the real one, which nobody sees who only packs and unpacks.
local cmsgpack = {}

function cmsgpack.pack(value)
  local kind = type(value)
  if kind == 'string' then return 's' .. #value .. ' ' .. value end
  if kind == 'number' then return string.format('n%.17g ', value) end
  if kind ~= 'table' then return value and 'y' or 'f' end
  local field = value.err and 'err' or value.ok and 'ok'
  if field then return field:sub(1, 1) .. cmsgpack.pack(value[field]) end
  local packed = {}
  for i = 1, #value do packed[i] = cmsgpack.pack(value[i]) end
  return 't' .. #value .. ' ' .. table.concat(packed)
end

local function unpacked(text, at)
  local mark = text:sub(at, at)
  if mark == 'f' then return false, at + 1 end
  if mark == 'y' then return true, at + 1 end
  if mark == 'e' or mark == 'o' then
    local inner, after = unpacked(text, at + 1)
    return {[mark == 'e' and 'err' or 'ok'] = inner}, after
  end
  local number, start = text:match('^(%S+) ()', at + 1)
  if mark == 'n' then return tonumber(number), start end
  if mark == 's' then return text:sub(start, start + number - 1), start + number end
  local items = {}
  for i = 1, tonumber(number) do items[i], start = unpacked(text, start) end
  return items, start
end

function cmsgpack.unpack(text)
  return (unpacked(text, 1))
end

local globals = {redis = share(redis), cmsgpack = share(cmsgpack), _VERSION = _VERSION}
local libraries = {}
for _, name in ipairs {'string', 'table', 'math'} do
  local library = {}
  for key, value in pairs(_G[name]) do library[key] = value end
  library.random, library.randomseed = nil, nil
  libraries[name] = library
  globals[name] = share(library)
end
for _, name in ipairs {'assert', 'error', 'getmetatable', 'ipairs', 'next', 'pairs', 'rawequal', 'rawget', 'select',
    'setmetatable', 'tonumber', 'tostring', 'type', 'unpack', 'xpcall'} do
  globals[name] = _G[name]
end
getmetatable('').__index = globals.string
getmetatable('').__metatable = false

-- What writes without asking the metatable has to ask here.
local function guard(write)
  return function(t, ...)
    if shared[t] then error(failure('ERR Attempt to modify a readonly table'), 0) end
    return write(t, ...)
  end
end
globals.rawset = guard(rawset)
for _, name in ipairs {'insert', 'remove', 'sort'} do
  libraries.table[name] = guard(table[name])
end

-- A script that catches an error of a command gets its text.
local function caught(ok, first, ...)
  if type(first) == 'userdata' then error(first, 0) end -- raised by Python: a fault of the simulator
  if not ok and type(first) == 'table' and first.err then return false, first.err end
  return ok, first, ...
end
function globals.pcall(...)
  return caught(pcall(...))
end

local environment = share(globals, function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end)
globals._G = environment

-- The text of an error that a script did not catch, with the line it came from. A call in `return redis.call(…)` has
-- left its line behind: then the line is unknown, here as opposed to the real servers.
local function explain(problem)
  if type(problem) == 'userdata' then return problem end
  local line = '?'
  local level = 2
  local info = getinfo(level, 'Sl')
  while info do
    if info.source == '@user_script' and info.currentline > 0 then
      line = info.currentline
      break
    end
    level = level + 1
    info = getinfo(level, 'Sl')
  end
  local text = type(problem) == 'table' and problem.err or 'ERR ' .. tostring(problem)
  return text .. ' script: on @user_script:' .. line .. '.'
end

-- A reply in one row: a number or a string is itself, nil is nil, `true, count` opens a list of so many replies,
-- `false, field, text` is a status or an error.
local function flatten(value, row, n)
  local kind = type(value)
  if kind == 'number' or kind == 'string' then
    row[n + 1] = value
    return n + 1
  elseif kind == 'boolean' then
    row[n + 1] = value and 1 or nil
    return n + 1
  elseif kind ~= 'table' then
    return n + 1
  end
  local field = type(value.err) == 'string' and 'err' or type(value.ok) == 'string' and 'ok'
  if field then
    row[n + 1], row[n + 2], row[n + 3] = false, field, value[field]
    return n + 3
  end
  local at, count = n + 2, 0
  n = at
  while value[count + 1] ~= nil do
    count = count + 1
    n = flatten(value[count], row, n)
  end
  row[at - 1], row[at] = true, count
  return n
end

-- What a run gives to Python: a number, a string or nil alone; a list of these as `true, items…`; anything else as
-- `false, row…`, or as `false, row, length` with the row as one table where it is long; an error as `nil, text`.
local function answer(ok, value)
  if not ok then
    if type(value) == 'userdata' then error(value, 0) end
    return nil, value
  end
  local kind = type(value)
  if kind == 'number' or kind == 'string' then return value end
  if kind ~= 'table' then
    if value == true then return 1 end
    return nil
  end
  if value.err == nil and value.ok == nil then
    local count = 0
    local item = value[1]
    while type(item) == 'number' or type(item) == 'string' do
      count = count + 1
      item = value[count + 1]
    end
    if item == nil and count <= MOST_ON_STACK then return true, unpack(value, 1, count) end
  end
  local row = {}
  local n = flatten(value, row, 0)
  if n > MOST_ON_STACK then return false, row, n end
  return false, unpack(row, 1, n)
end

local function compile(text)
  local script, problem = loadstring(text, '@user_script')
  if not script then return nil, problem end
  return setfenv(script, environment)
end

local function run(script, key_count, ...)
  local words = {...}
  globals.KEYS, globals.ARGV = {unpack(words, 1, key_count)}, {unpack(words, key_count + 1)}
  return answer(xpcall(script, explain))
end

return compile, run
