// Applies a function to every tensor in a value and keeps the containers: arrays, maps, plain
// objects and instances of classes.

import { isTensor, type Tensor } from '@shardweave/tensor-core';

export function mapTensors<T>(value: T, map: (tensor: Tensor) => Tensor): T {
  return mapValue(value, map) as T;
}

function mapValue(value: unknown, map: (tensor: Tensor) => Tensor): unknown {
  if (isTensor(value)) return map(value);
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  if (Array.isArray(value)) return value.map((item) => mapValue(item, map));
  if (value instanceof Map) {
    return new Map([...value].map(([key, item]) => [key, mapValue(item, map)]));
  }
  if (value instanceof Set) return new Set([...value].map((item) => mapValue(item, map)));
  const copy = Object.create(Object.getPrototypeOf(value) as object) as Record<string, unknown>;
  for (const [key, item] of Object.entries(value)) copy[key] = mapValue(item, map);
  return copy;
}
