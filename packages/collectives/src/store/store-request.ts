// Checks a client's request before anything is done: a client of another version, or a caller's
// mistake, must not get further than here.

import { StoreError, type StoreErrorCode } from '../errors.js';
import type { StoreLimits } from './store-limits.js';
import type { StoreReply, StoreRequest } from './store-messages.js';

const LONGEST_TIMEOUT_MS = 2 ** 31 - 1; // the longest that setTimeout can count

/** The request, or the reply that refuses it. Throws where there is no id to reply to. */
export function checkRequest(header: unknown, limits: StoreLimits): StoreRequest | StoreReply {
  const request = (header ?? {}) as Record<string, unknown>;
  if (!Number.isSafeInteger(request.id)) {
    throw new StoreError('STORE_USAGE', 'store: a request without a number');
  }
  const id = request.id as number;
  const problem = problemOf(request, limits);
  if (problem === undefined) {
    return request as unknown as StoreRequest;
  }
  const op = typeof request.op === 'string' ? request.op.slice(0, 20) : 'request';
  const message = `store ${op}: ${problem.message}`;
  return { id, error: { code: problem.code, message } };
}

type Problem = { readonly code: StoreErrorCode; readonly message: string };

function problemOf(request: Record<string, unknown>, limits: StoreLimits): Problem | undefined {
  const { key, keys, name, amount, timeoutMs, runId } = request;
  switch (request.op) {
    case 'set':
    case 'delete':
    case 'compareSet':
      return problemOfKey(key, limits);
    case 'add':
      return (
        problemOfKey(key, limits) ?? problemOfInteger('amount', amount, Number.MIN_SAFE_INTEGER)
      );
    case 'get':
      return problemOfKey(key, limits) ?? problemOfTimeout(timeoutMs);
    case 'check':
      return problemOfKeys(keys, limits);
    case 'wait':
      return problemOfKeys(keys, limits) ?? problemOfTimeout(timeoutMs);
    case 'barrier':
      return problemOfKey(name, limits) ?? problemOfTimeout(timeoutMs);
    case 'open':
      return problemOfKey(runId, limits);
    case 'numKeys':
    case 'alive':
      return undefined;
    default:
      return usage('no operation of the store');
  }
}

function problemOfKey(key: unknown, { maxKeyLength }: StoreLimits): Problem | undefined {
  if (typeof key !== 'string' || key === '') {
    return usage('expected a key that is a string of at least one character');
  }
  return key.length <= maxKeyLength
    ? undefined
    : limit(`expected a key of at most ${maxKeyLength} characters, got ${key.length}`);
}

function problemOfKeys(keys: unknown, limits: StoreLimits): Problem | undefined {
  if (!Array.isArray(keys)) {
    return usage('expected an array of keys');
  }
  return keys.length <= limits.maxKeysPerCall
    ? keys.map((key) => problemOfKey(key, limits)).find((problem) => problem !== undefined)
    : limit(`expected at most ${limits.maxKeysPerCall} keys, got ${keys.length}`);
}

function problemOfTimeout(timeoutMs: unknown): Problem | undefined {
  return problemOfInteger('timeoutMs', timeoutMs, 0, LONGEST_TIMEOUT_MS);
}

function problemOfInteger(
  name: string,
  value: unknown,
  min: number,
  max: number = Number.MAX_SAFE_INTEGER,
): Problem | undefined {
  const isGood = Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
  return isGood
    ? undefined
    : usage(
        `expected ${name} to be an integer from ${min} to ${max}, got ${JSON.stringify(value)}`,
      );
}

function usage(message: string): Problem {
  return { code: 'STORE_USAGE', message };
}

function limit(message: string): Problem {
  return { code: 'STORE_LIMIT', message };
}
