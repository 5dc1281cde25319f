"""What runs inside Redis: each script is atomic, and its keys lie in one slot.

``KEYS[1]`` is a hash for each shard: ``r``, the server's ``run_id``; ``g``, a generation; and for
each namespace that was forgotten ``n`` and its hash, a value that was new then. What was put in
under other values is not there. So nothing comes back that was forgotten: neither after a restart,
nor where a replica takes over.

``KEYS[2]`` is a hash for each key of answers: ``g``, those values together; for each question ``e``
and its id hold the time of its insertion (16 digits, microseconds) and its record, ``t`` and its id
the time of its last use, ``c`` and its id the farthest distance at which it may be served.

``ARGV[1]`` is a new generation, in case there is none, and ``ARGV[2]`` the hash of the namespace.
"""

from __future__ import annotations

from ragcache_integrations.query_cache.redis import EVICT_OLDEST, Script

__all__ = ["CLEAR", "FORGET", "INSERT", "LOOK_UP", "LOWER"]

_COMMON = """
local function begin()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  if not run then error('INFO has no run_id') end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'r', run, 'g', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], WEEK)
  return ARGV[1] .. ':'
end

local function epoch()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local kept = redis.pcall('HMGET', KEYS[1], 'r', 'g', 'n' .. ARGV[2])
  if not run or kept.err or kept[1] ~= run or not kept[2] then return begin() end
  if #kept[2] > NAME or #(kept[3] or '') > NAME then return begin() end
  redis.call('PEXPIRE', KEYS[1], WEEK)
  return kept[2] .. ':' .. (kept[3] or '')
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
"""
_NUMBERS = {"WEEK": 7 * 24 * 3600 * 1000, "NAME": 64, "NAMESPACES": 1000}  # milliseconds, bytes


def _script(body: str) -> Script:
    """Return a script that begins with what all have in common, numbers in the place of names."""
    text = _COMMON + body
    for name in sorted(_NUMBERS, key=len, reverse=True):
        text = text.replace(name, str(_NUMBERS[name]))
    return Script.of(text)


# ARGV: the question's id, whether all answers of the key are wanted where there is none of this id,
#   microseconds to live (0: for ever), how many fields and bytes there may be, beyond which the key
#   is deleted unread.
# Returns the time; for each answer its id, its time and record, and its cap; how many had ended,
#   and how many values were foreign; the values under which answers are put in now.
LOOK_UP = _script("""
local g, time = epoch(), now()
local bucket, id, lasts = KEYS[2], ARGV[3], tonumber(ARGV[5])
local ended, foreign = 0, 0

local function refuse()
  redis.call('UNLINK', bucket)
  return {time, {}, 0, 1, g}
end

local function drop(one)
  redis.call('HDEL', bucket, 'e' .. one, 't' .. one, 'c' .. one)
end

local function lives(one, value)
  local stamp = tonumber(string.sub(value, 1, 16))
  if not stamp or stamp ~= stamp then
    foreign = foreign + 1
  elseif lasts > 0 and time - stamp > lasts then
    ended = ended + 1
  else
    return true
  end
  drop(one)
  return false
end

local its = redis.pcall('HGET', bucket, 'g')
if not its then
  if redis.call('EXISTS', bucket) == 1 then return refuse() end
  return {time, {}, 0, 0, g}
end
if type(its) == 'table' then return refuse() end
if its ~= g then
  redis.call('UNLINK', bucket)
  return {time, {}, 0, 0, g}
end
if redis.call('HLEN', bucket) > tonumber(ARGV[6]) then return refuse() end
local size = redis.call('HSTRLEN', bucket, 'e' .. id) + redis.call('HSTRLEN', bucket, 'c' .. id)
if size > tonumber(ARGV[7]) then return refuse() end
local same = redis.call('HGET', bucket, 'e' .. id)
if same and lives(id, same) then
  local cap = redis.call('HGET', bucket, 'c' .. id) or ''
  redis.pcall('HSET', bucket, 't' .. id, string.format('%016.0f', time))  -- if there is room
  redis.call('PEXPIRE', bucket, WEEK)
  return {time, {id, same, cap}, ended, foreign, g}
end
if ARGV[4] ~= '1' then return {time, {}, ended, foreign, g} end
local fields, caps, found = redis.call('HGETALL', bucket), {}, {}
size = 0
for _, field in ipairs(fields) do size = size + #field end
if size > tonumber(ARGV[7]) then return refuse() end
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'c' then caps[string.sub(fields[i], 2)] = fields[i + 1] end
end
for i = 1, #fields, 2 do
  local one = string.sub(fields[i], 2)
  if string.sub(fields[i], 1, 1) == 'e' and lives(one, fields[i + 1]) then
    found[#found + 1] = one
    found[#found + 1] = fields[i + 1]
    found[#found + 1] = caps[one] or ''
  end
end
if #found > 0 then redis.call('PEXPIRE', bucket, WEEK) end
return {time, found, ended, foreign, g}
""")

# ARGV: the question's id, the record, how many answers a key may have, and the values of when the
#   question was looked up: what was forgotten since is not put in.
# Returns how many had to go, those of the least recent use; -1: it is not put in.
INSERT = _script(
    EVICT_OLDEST
    + """
local g, time = epoch(), string.format('%016.0f', now())
local bucket, id = KEYS[2], ARGV[3]
if g ~= ARGV[6] then return -1 end
redis.call('HSET', KEYS[1], 'g', string.match(g, '^[^:]*'))  -- which a full Redis refuses
if redis.pcall('HGET', bucket, 'g') ~= g then
  redis.call('UNLINK', bucket)
  redis.call('HSET', bucket, 'g', g)
end
redis.call('HSET', bucket, 'e' .. id, time .. ARGV[4], 't' .. id, time)
-- The answer before it may have been wrong. A cap that nobody can read serves the same words alone.
local cap = redis.call('HGET', bucket, 'c' .. id)
if cap and not (#cap <= NAME and string.match(cap, '^[%d.e+-]+$') and (tonumber(cap) or -1) >= 0)
then
  redis.call('HSET', bucket, 'c' .. id, '0')
end
local over = evict_oldest(bucket, id, tonumber(ARGV[5]))
redis.call('PEXPIRE', bucket, WEEK)
return over
"""
)

# ARGV: the question's id, a distance. However often it runs, the smallest one remains.
LOWER = _script("""
local g = epoch()
local bucket, id = KEYS[2], ARGV[3]
if redis.pcall('HGET', bucket, 'g') ~= g then return 0 end
if redis.call('HEXISTS', bucket, 'e' .. id) == 0 then return 0 end
local cap = tonumber(redis.call('HGET', bucket, 'c' .. id) or '')
if cap and cap <= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', bucket, 'c' .. id, ARGV[4])
return 1
""")

# Forgets the answers of a namespace.
FORGET = _script("""
epoch()
if redis.call('HLEN', KEYS[1]) > NAMESPACES then begin() return 1 end
redis.call('HSET', KEYS[1], 'n' .. ARGV[2], ARGV[1])
return 1
""")

CLEAR = _script("begin() return 1")
