// Applies a function to every tensor in a value and keeps the containers: arrays, maps, sets, plain
// objects and instances of classes (their public fields), subclasses included. A value without
// tensors passes through unchanged.

import {
  cast,
  type DType,
  isFloat,
  isTensor,
  type Tensor,
  tensorsIn,
} from '@shardweave/tensor-core';

/**
 * Copies `value` with each tensor replaced by what `map` returns for it. `map` is called once for
 * each distinct tensor, in order of appearance.
 */
export function mapTensors<T>(value: T, map: (tensor: Tensor) => Tensor): T {
  return mapValue(value, map, new Map()) as T;
}

/** The distinct tensors in a value, in the order in which mapTensors visits them. */
export function listTensors(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  mapTensors(value, (tensor) => {
    found.push(tensor);
    return tensor;
  });
  return found;
}

/** Casts the float tensors in a value to `dtype`, and records the casts for autograd. */
export function castFloats<T>(value: T, dtype: DType): T {
  return mapTensors(value, (tensor) => (isFloat(tensor.dtype) ? cast(tensor, dtype) : tensor));
}

/**
 * `done` holds the result for each tensor and container, so that what is shared in the value is
 * shared in the copy.
 */
function mapValue(
  value: unknown,
  map: (tensor: Tensor) => Tensor,
  done: Map<unknown, unknown>,
): unknown {
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  if (done.has(value)) {
    return done.get(value);
  }
  const put = <T>(result: T): T => {
    done.set(value, result);
    return result;
  };
  const mapped = (item: unknown) => mapValue(item, map, done);
  if (isTensor(value)) {
    return put(map(value));
  }
  if (tensorsIn(value).length === 0) {
    return put(value);
  }
  // A container is recorded before its items, since one of them may lead back to it. The
  // constructor of a subclass is not run, because it may need arguments that are not known here.
  const copy: object = put(emptyLike(value));
  if (value instanceof Map) {
    for (const [key, item] of value) {
      (copy as Map<unknown, unknown>).set(key, mapped(item));
    }
  } else if (value instanceof Set) {
    for (const item of value) {
      (copy as Set<unknown>).add(mapped(item));
    }
  }
  for (const [key, item] of Object.entries(value)) {
    (copy as Record<string, unknown>)[key] = mapped(item);
  }
  return copy;
}

/** An empty container with the value's prototype and the internal slots of its kind. */
function emptyLike(value: object): object {
  for (const kind of [Array, Map, Set]) {
    if (value instanceof kind) {
      return Reflect.construct(kind, [], value.constructor) as object;
    }
  }
  return Object.create(Object.getPrototypeOf(value) as object) as object;
}
