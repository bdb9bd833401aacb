// Applies a function to every tensor in a value and keeps the containers: arrays, maps, sets, plain
// objects and instances of classes (their public fields). What holds no tensor passes as it is.

import { isTensor, type Tensor, tensorsIn } from '@shardweave/tensor-core';

export function mapTensors<T>(value: T, map: (tensor: Tensor) => Tensor): T {
  return mapValue(value, map, new Map()) as T;
}

/** `done` has what came out for each tensor and container, so that shared ones stay shared. */
function mapValue(
  value: unknown,
  map: (tensor: Tensor) => Tensor,
  done: Map<unknown, unknown>,
): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (done.has(value)) return done.get(value);
  const put = <T>(result: T): T => {
    done.set(value, result);
    return result;
  };
  const mapped = (item: unknown) => mapValue(item, map, done);
  if (isTensor(value)) return put(map(value));
  if (tensorsIn(value).length === 0) return put(value);
  // A container is noted before its items, one of which may lead back to it.
  if (Array.isArray(value)) {
    const copy: unknown[] = put([]);
    for (const item of value) copy.push(mapped(item));
    return copy;
  }
  if (value instanceof Map) {
    const copy = put(new Map<unknown, unknown>());
    for (const [key, item] of value) copy.set(key, mapped(item));
    return copy;
  }
  if (value instanceof Set) {
    const copy = put(new Set<unknown>());
    for (const item of value) copy.add(mapped(item));
    return copy;
  }
  const copy = put(
    Object.create(Object.getPrototypeOf(value) as object) as Record<string, unknown>,
  );
  for (const [key, item] of Object.entries(value)) copy[key] = mapped(item);
  return copy;
}
