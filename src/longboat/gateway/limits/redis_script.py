"""The script that runs inside Redis: it takes a gateway's batch of news and questions about its tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from longboat.core.policy import TenantPolicy
from longboat.routing.capacity.quota import DAY_S, MINUTE_S, Counts, Limits, limits_of

__all__ = ("SCRIPT", "Ask", "Batch", "News", "counts_from", "write_batch")

ALIVE_S = 15
"""A gateway that is silent for this long counts as dead, and its running requests as ended."""

SKEW_S = MINUTE_S
"""Most by which a gateway's clock may differ from Redis's. Times beyond it are taken to be that far away."""

# A batch that was sent twice (its answer was lost) is carried out once: the answer to the last one is kept.
# Windows roll as routing.capacity.quota.Counts does, and a request fits as routing.capacity.quota.check says.
SCRIPT = """
local batch = cjson.decode(ARGV[1])
local alive_key, last_key = KEYS[1], KEYS[2]
local last = redis.call('HMGET', last_key, 'number', 'answer')
if last[1] == tostring(batch.number) then return last[2] end

local clock = redis.call('TIME')
local now = tonumber(clock[1])
local first_s, last_s = now - batch.skew_s, now + batch.skew_s
local last_minute, last_day = math.floor(last_s / 60), math.floor(last_s / 86400)
redis.call('ZREMRANGEBYSCORE', alive_key, '-inf', now - batch.alive_s)
local known = redis.call('ZSCORE', alive_key, batch.gateway) and 1 or 0
if batch.leaves then
  redis.call('ZREM', alive_key, batch.gateway)
else
  redis.call('ZADD', alive_key, now, batch.gateway)
end
redis.call('EXPIRE', alive_key, batch.expiry_s)

local function text(number) return string.format('%.0f', number) end

local function roll(c, minute, day)
  if minute > c.minute then
    local follows = minute == c.minute + 1
    c.previous_requests = follows and c.requests or 0
    c.previous_tokens = follows and c.tokens or 0
    c.requests, c.tokens, c.minute = 0, 0, minute
  end
  if day > c.day then c.today, c.day = day == c.left_day and c.left_today or 0, day end
end

local function others(key)
  local sum, flat = 0, redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    if flat[i] ~= batch.gateway then
      if redis.call('ZSCORE', alive_key, flat[i]) then
        sum = sum + tonumber(flat[i + 1])
      else
        redis.call('HDEL', key, flat[i])
      end
    end
  end
  return sum
end

local fields = {'minute', 'requests', 'previous_requests', 'tokens', 'previous_tokens', 'day', 'today', 'left_day',
                'left_today'}
local tenants = {}
for i, tenant in ipairs(batch.tenants) do
  local c, values = {}, redis.call('HMGET', KEYS[1 + 2 * i], unpack(fields))
  for j, name in ipairs(fields) do c[name] = tonumber(values[j] or 0) end
  if c.minute > last_minute then  -- a clock went back
    c.minute = math.floor(now / 60)
    c.requests, c.previous_requests, c.tokens, c.previous_tokens = 0, 0, 0, 0
  end
  if c.day > last_day then  -- the day that is left resumes its count
    c.left_day, c.left_today, c.day = c.day, c.today, math.floor(now / 86400)
  end
  c.own, c.others, c.limits = tenant.running, 0, tenant.limits
  if c.limits[4] >= 0 then c.others = others(KEYS[2 + 2 * i]) end
  for _, news in ipairs(tenant.minutes) do
    local minute = math.min(news[1], last_minute)
    roll(c, minute, c.day)
    if minute == c.minute then
      c.requests, c.tokens = math.max(0, c.requests + news[2]), math.max(0, c.tokens + news[3])
    elseif minute == c.minute - 1 then
      c.previous_requests, c.previous_tokens = c.previous_requests + news[2], c.previous_tokens + news[3]
    end
  end
  for _, news in ipairs(tenant.days) do
    local day = math.min(news[1], last_day)
    roll(c, c.minute, day)
    if day == c.day then c.today = c.today + news[2] end
  end
  tenants[i] = c
end

local function fits(c, tokens, now_s)
  local left = 1 - (now_s % 60) / 60
  local most = c.limits
  if most[4] >= 0 and c.own + c.others >= most[4] then return false end
  if most[1] >= 0 and c.requests + c.previous_requests * left + 1 > most[1] then return false end
  if most[2] >= 0 and c.tokens + c.previous_tokens * left + tokens > most[2] then return false end
  return most[3] < 0 or c.today + tokens <= most[3]
end

local answers = {}
for i, ask in ipairs(batch.asks) do
  local c, tokens, now_s = tenants[ask[1] + 1], ask[2], math.max(first_s, math.min(last_s, ask[3]))
  roll(c, math.floor(now_s / 60), math.floor(now_s / 86400))
  if fits(c, tokens, now_s) then
    c.requests, c.tokens, c.today, c.own = c.requests + 1, c.tokens + tokens, c.today + tokens, c.own + 1
    answers[i] = 0
  else
    answers[i] = {c.minute, c.requests, c.previous_requests, c.tokens, c.previous_tokens, c.day, c.today,
                  c.own + c.others}
  end
end

for i, c in ipairs(tenants) do
  local windows, running = KEYS[1 + 2 * i], KEYS[2 + 2 * i]
  local flat = {}
  for _, name in ipairs(fields) do
    flat[#flat + 1] = name
    flat[#flat + 1] = text(c[name])
  end
  redis.call('HSET', windows, unpack(flat))
  redis.call('EXPIRE', windows, batch.expiry_s)
  if c.own ~= 0 and not batch.leaves then
    redis.call('HSET', running, batch.gateway, text(c.own))
    redis.call('EXPIRE', running, batch.expiry_s)
  else
    redis.call('HDEL', running, batch.gateway)
  end
end

local answer = cjson.encode({known = known, answers = answers})
redis.call('HSET', last_key, 'number', tostring(batch.number), 'answer', answer)
redis.call('EXPIRE', last_key, batch.expiry_s)
return answer
"""

_EXPIRY_S = 2 * DAY_S
_NO_LIMIT = -1
_COUNTS = (
    "minute", "requests", "previous_requests", "tokens", "previous_tokens", "day", "tokens_today", "running",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Ask:
    """A request that waits for an answer."""

    tenant: TenantPolicy
    tokens: int
    now_s: float
    # what the node decided by itself, where the answer came too late
    admitted: bool | None = None


@dataclass(slots=True)
class News:
    """The use of a tenant that Redis does not know yet."""

    # requests and tokens by minute
    minutes: dict[int, list[int]] = field(default_factory=dict)
    # tokens by day
    days: dict[int, int] = field(default_factory=dict)

    def count(self, requests: int, tokens: int, now_s: float) -> None:
        """Add requests and tokens, or take them off, at ``now_s`` (Unix)."""
        self._minute(int(now_s // MINUTE_S), requests, tokens)
        self._day(int(now_s // DAY_S), tokens)

    def correct(self, change: int, reserved_s: float, now_s: float) -> None:
        """Correct tokens as :func:`longboat.gateway.limits.counters.correct` does."""
        reserved, minute = int(reserved_s // MINUTE_S), int(now_s // MINUTE_S)
        if minute - 1 <= reserved <= minute + 1:
            self._minute(reserved, 0, change)
        elif change > 0:
            self._minute(minute, 0, change)
        self._day(int(reserved_s // DAY_S), change)

    def _minute(self, minute: int, requests: int, tokens: int) -> None:
        counts = self.minutes.get(minute)
        if counts is None:
            for old in [m for m in self.minutes if m < minute - 2]:
                del self.minutes[old]  # no window holds it any more
            counts = self.minutes[minute] = [0, 0]
        counts[0] += requests
        counts[1] += tokens

    def _day(self, day: int, tokens: int) -> None:
        self.days[day] = self.days.get(day, 0) + tokens


@dataclass(slots=True)
class Batch:
    """The arguments of one call of the script. They may be sent again, unchanged."""

    keys: list[str]
    document: bytes


def write_batch(
    prefix: str,
    gateway: str,
    number: int,
    *,
    tenants: dict[str, tuple[TenantPolicy, int, News]],
    asks: Sequence[Ask],
    leaves: bool = False,
) -> Batch:
    """Write a batch. tenants: by name, with the number of its requests that run in this gateway."""
    keys = [f"{prefix}:alive", f"{prefix}:last:{gateway}"]
    places = {name: place for place, name in enumerate(tenants)}
    told: list[dict[str, Any]] = []
    for name, (tenant, running, news) in tenants.items():
        keys += [f"{prefix}:used:{name}", f"{prefix}:running:{name}"]
        told.append(
            {
                "running": running,
                "limits": _limits(limits_of(tenant)),
                "minutes": [[minute, *counts] for minute, counts in sorted(news.minutes.items())],
                "days": sorted(news.days.items()),
            }
        )
    document = {
        "gateway": gateway,
        "number": number,
        "alive_s": ALIVE_S,
        "skew_s": SKEW_S,
        "expiry_s": _EXPIRY_S,
        "leaves": leaves,
        "tenants": told,
        "asks": [[places[ask.tenant.name], ask.tokens, ask.now_s] for ask in asks],
    }
    return Batch(keys, orjson.dumps(document))


def counts_from(values: Sequence[int]) -> Counts:
    """Read the counts that the script found where a request did not fit."""
    return Counts(**dict(zip(_COUNTS, map(int, values), strict=True)))


def _limits(limits: Limits) -> list[int]:
    four = (limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day, limits.concurrent_requests)
    return [_NO_LIMIT if limit is None else limit for limit in four]
