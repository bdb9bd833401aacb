// Replaces tensors inside arguments and results, whatever arrays and plain objects hold them.

import { isTensor, type Tensor } from '@shardweave/tensor-core';

/**
 * `value` with each tensor replaced by what `map` gives for it, in order of appearance. Arrays and
 * plain objects are copied; anything else, and what it holds, passes through.
 */
export function mapTensors<T>(value: T, map: (tensor: Tensor) => Tensor): T {
  return mapValue(value, map) as T;
}

/** All tensors that mapTensors would visit, in its order; one that appears twice comes twice. */
export function listTensors(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  mapValue(value, (tensor) => {
    found.push(tensor);
    return tensor;
  });
  return found;
}

function mapValue(value: unknown, map: (tensor: Tensor) => Tensor): unknown {
  if (isTensor(value)) return map(value);
  if (Array.isArray(value)) return value.map((item) => mapValue(item, map));
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapValue(item, map)]));
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
