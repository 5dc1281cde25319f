"""What runs inside Redis: each script is atomic, and its keys lie in one slot.

Each shard has two keys. ``KEYS[1]``, a hash, holds its generation ``g``, the server's
``run_id`` that it belongs to, the number of changes ``v``, up to which of them are forgotten ``f``,
and the bytes of the others ``s``. ``KEYS[2]``, a list, holds these. A bucket is a hash with the
generation ``g``; for each entry ``e`` and its id hold the time of its insertion and the entry,
and ``t`` and its id the time that eviction goes by.

A shard whose two keys do not fit together, or that another process of the server wrote (it was
restarted, or a replica took over, and what came back may lack the latest changes), begins a new
generation; what belongs to an old one is not there. Redis may evict any key at any time; one that
has answered nothing, and was not written to, for a week expires.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from .records import LARGEST_CHANGE

__all__ = [
    "CHANGE",
    "CLEAR",
    "DELETE",
    "EVICT_OLDEST",
    "INSERT",
    "LOOK_UP",
    "MOST_CHANGES",
    "Script",
]

MOST_CHANGES = 256
"""Changes that a shard remembers, as a cache in memory does."""


_BEGINNING = """
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
"""


@dataclass(frozen=True)
class Script:
    """A script and its name in Redis."""

    text: str
    sha: str

    @classmethod
    def of(cls, body: str, numbers: Mapping[str, int]) -> Script:
        """Return a script that begins with what all have in common.

        Args:
            body: What follows, with names in the place of numbers.
            numbers: What they stand for.
        """
        text = _BEGINNING + body
        for name in sorted(numbers, key=len, reverse=True):
            text = text.replace(name, str(numbers[name]))
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_COMMON = """
local function keep(count)
  for i = 1, count do redis.call('PEXPIRE', KEYS[i], WEEK) end
end

local function begin(generation)
  local run = run_id()
  if not run then error('INFO has no run_id') end
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[1], 'g', generation, 'r', run, 'v', 0, 'f', 0, 's', 0)
  keep(1)
  return {generation, 0, 0, 0}
end

local function shard(generation)
  local run = run_id()
  local kept = redis.pcall('HMGET', KEYS[1], 'g', 'r', 'v', 'f', 's')
  local count = redis.pcall('LLEN', KEYS[2])
  if run and not kept.err and kept[1] and kept[2] == run and type(count) == 'number' then
    local v, f, s = tonumber(kept[3]), tonumber(kept[4]), tonumber(kept[5])
    -- Numbers that Lua counts exactly; NaN is neither smaller nor larger.
    local whole = v and f and s and v % 1 == 0 and f % 1 == 0
    if whole and 0 <= f and f <= v and v < NUMBERS and 0 <= s and s <= BYTES
        and v - f == count and count <= CHANGES and #kept[1] <= NAME then
      return {kept[1], v, f, s}
    end
  end
  return begin(generation)
end
"""
_NUMBERS = {
    "WEEK": 7 * 24 * 3600 * 1000,  # milliseconds
    "NUMBERS": 1 << 53,
    "BYTES": LARGEST_CHANGE,
    "CHANGES": MOST_CHANGES,
    "NAME": 64,
}


EVICT_OLDEST = """
-- Deletes what was used longest ago, but never one id, where a bucket has more; returns how many.
local function evict_oldest(bucket, id, most)
  local others = {}
  for _, name in ipairs(redis.call('HKEYS', bucket)) do
    if string.sub(name, 1, 1) == 'e' and name ~= 'e' .. id then
      local one = string.sub(name, 2)
      local stamp = tonumber(redis.call('HGET', bucket, 't' .. one) or 0) or 0
      if stamp ~= stamp then stamp = 0 end  -- NaN, by which nothing can be sorted
      others[#others + 1] = {stamp, one}
    end
  end
  local over = math.max(#others + 1 - most, 0)
  table.sort(others, function(a, b) return a[1] < b[1] end)
  for i = 1, over do
    local one = others[i][2]
    redis.call('HDEL', bucket, 'e' .. one, 't' .. one, 'c' .. one)
  end
  return over
end
"""
"""For insertions, also of answers, which have a field ``c`` besides."""


def _script(body: str) -> Script:
    return Script.of(_COMMON + body, _NUMBERS)


# KEYS: the shard's, buckets to read, buckets to note something in.
# ARGV: a new generation, the generation and version known, how many buckets to read, how many
#   fields and bytes a bucket may have, beyond which it is deleted unread;
#   for each note: an entry's id, and 't' for a touch, or 'd' and how the entry begins that is to
#   be deleted.
LOOK_UP = _script("""
local state, time = shard(ARGV[1]), now()
local g, v, f = state[1], state[2], state[3]
local buckets = tonumber(ARGV[4])
for i = 3 + buckets, #KEYS do
  local id, what = ARGV[2 * (i - buckets) + 1], ARGV[2 * (i - buckets) + 2]
  if redis.pcall('HGET', KEYS[i], 'g') == g then
    local entry = redis.call('HGET', KEYS[i], 'e' .. id)
    if entry and what == 't' then
      redis.pcall('HSET', KEYS[i], 't' .. id, string.format('%.0f', time))  -- if there is room
      redis.call('PEXPIRE', KEYS[i], WEEK)
      keep(2)
    elseif entry and 'd' .. string.sub(entry, 1, 16) == what then
      redis.call('HDEL', KEYS[i], 'e' .. id, 't' .. id)
    end
  end
end
local base = f
if ARGV[2] == g and tonumber(ARGV[3]) > f then base = tonumber(ARGV[3]) end
local changes = {}
if v > base then changes = redis.call('LRANGE', KEYS[2], base - f, -1) end
local bytes, foreign = 0, 0
for _, one in ipairs(changes) do bytes = bytes + #one end
if bytes > BYTES then
  local new = begin(ARGV[1])
  g, base, changes, foreign = new[1], 0, {}, 1
end
local found = {}
for i = 1, buckets do
  local its = redis.pcall('HGET', KEYS[2 + i], 'g')
  local fits = its == g and redis.call('HLEN', KEYS[2 + i]) <= tonumber(ARGV[5])
  local fields, size = fits and redis.call('HGETALL', KEYS[2 + i]) or {}, 0
  for _, field in ipairs(fields) do size = size + #field end
  if fits and size <= tonumber(ARGV[6]) then
    found[i] = fields
  else
    found[i] = {}
    if its == g or type(its) == 'table' then foreign = foreign + 1 end
    if its then redis.call('UNLINK', KEYS[2 + i]) end
  end
end
return {g, base, time, changes, found, foreign}
""")

# KEYS: the shard's, the bucket.
# ARGV: a new generation, the generation and version that the search was made in, the entry's id,
#   the entry, how many entries a bucket may have, whether nothing may have changed since.
INSERT = _script(
    EVICT_OLDEST
    + """
local state, time = shard(ARGV[1]), string.format('%016.0f', now())
local version = tonumber(ARGV[3])
if state[1] ~= ARGV[2] or version < state[3] then return {0, 0} end
if ARGV[7] == '1' and version < state[2] then return {0, 0} end
redis.call('HSET', KEYS[1], 'g', state[1])  -- which a full Redis refuses, before anything is done
local bucket, id = KEYS[3], ARGV[4]
if redis.pcall('HGET', bucket, 'g') ~= state[1] then
  redis.call('UNLINK', bucket)
  redis.call('HSET', bucket, 'g', state[1])
end
redis.call('HSET', bucket, 'e' .. id, time .. ARGV[5], 't' .. id, time)
local over = evict_oldest(bucket, id, tonumber(ARGV[6]))
keep(3)
return {1, over}
"""
)

# ARGV: a new generation, the change, how many of them and of their bytes are remembered.
CHANGE = _script("""
local state = shard(ARGV[1])
local v, f, s = state[2] + 1, state[3], state[4] + #ARGV[2]
redis.call('RPUSH', KEYS[2], ARGV[2])
while v > f and (v - f > tonumber(ARGV[3]) or s > tonumber(ARGV[4])) do
  s = s - #redis.call('LPOP', KEYS[2])
  f = f + 1
end
if v == f then s = 0 end
redis.call('HSET', KEYS[1], 'v', v, 'f', f, 's', s)
keep(2)
return v
""")

# ARGV: a new generation.
CLEAR = _script("begin(ARGV[1]) return 1")

# KEYS: the shard's, the bucket. ARGV: a new generation, the entry's id.
DELETE = _script("""
local state = shard(ARGV[1])
if redis.pcall('HGET', KEYS[3], 'g') ~= state[1] then return 0 end
return math.min(redis.call('HDEL', KEYS[3], 'e' .. ARGV[2], 't' .. ARGV[2]), 1)
""")
