// Parameters in and out: whole under their original names, or this rank's shards.

import { byteSize } from '@shardweave/dtypes';
import { elementCountOf, type Shape } from '@shardweave/tensor-core';
import { FsdpStateDictError } from './errors.js';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

/** One tensor of a state dict: raw little-endian elements. */
export interface StateEntry {
  readonly dtype: 'f32';
  readonly shape: Shape;
  readonly data: Uint8Array;
}

export type StateDict = Map<string, StateEntry>;

const F32_BYTES = byteSize('f32');

/**
 * All parameters whole, in f32, under the names the bare module has. Collective. Inside
 * summonFullParams: what this rank sees there.
 */
export async function stateDict(fsdp: FullyShardedDataParallel): Promise<StateDict> {
  await fsdp.initialize();
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  const found = new Map<string, StateEntry>();
  for (const unit of fsdp.instances().flatMap(({ units }) => units)) {
    const whole = await unit.gatherMaster();
    unit.parameters.forEach(({ tensor }, index) => {
      const start = unit.layout.offsets[index]! * F32_BYTES;
      const data = whole.slice(start, start + tensor.size * F32_BYTES);
      found.set(names.get(tensor)!, { dtype: 'f32', shape: tensor.shape, data });
    });
  }
  // In the order of the bare module, not of the units.
  return new Map([...names.values()].map((name) => [name, found.get(name)!]));
}

/**
 * Sets all parameters from whole ones; each rank keeps its shard. No communication, unless strict is
 * false and a unit has only part of its entries: then collective. Inside summonFullParams it sets
 * what is summoned.
 * @param options.strict refuse missing and unexpected names. Default true.
 * @throws {FsdpStateDictError} naming what is missing, unexpected or misshapen; nothing is loaded
 * @throws {FsdpStateError} inside forward or backward
 */
export async function loadStateDict(
  fsdp: FullyShardedDataParallel,
  entries: ReadonlyMap<string, StateEntry>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  await fsdp.initialize();
  fsdp.assertState('idle', 'summonFullParams');
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  checkEntries(
    entries,
    new Map(fsdp.namedParameters().map(([name, tensor]) => [name, tensor.shape])),
    options.strict ?? true,
  );
  for (const unit of fsdp.instances().flatMap(({ units }) => units)) {
    // Without strict, what has no entry keeps its value.
    const numGiven = unit.parameters.filter(({ tensor }) => entries.has(names.get(tensor)!)).length;
    if (numGiven === 0) continue;
    const whole =
      numGiven === unit.parameters.length
        ? new Uint8Array(unit.flat.storage.byteLength * unit.layout.worldSize)
        : await unit.gatherMaster();
    unit.parameters.forEach(({ tensor }, index) => {
      const entry = entries.get(names.get(tensor)!);
      if (entry !== undefined) whole.set(entry.data, unit.layout.offsets[index]! * F32_BYTES);
    });
    unit.scatterMaster(whole);
    unit.drop();
  }
}

/** This rank's shards, one entry a flat parameter: flat_param_0, flat_param_1, ... in unit order. */
export async function localStateDict(fsdp: FullyShardedDataParallel): Promise<StateDict> {
  await fsdp.initialize();
  if (fsdp.trainingState === 'summonFullParams') fsdp.assertState('idle');
  const entries: StateDict = new Map();
  for (const unit of fsdp.instances().flatMap(({ units }) => units)) {
    const data = await unit.flat.storage.read();
    entries.set(`flat_param_${entries.size}`, { dtype: 'f32', shape: unit.flat.shape, data });
  }
  return entries;
}

/**
 * Sets this rank's shards from what localStateDict gave on the same rank of an equal world.
 * @throws {FsdpStateDictError} when names or lengths differ; nothing is loaded
 */
export async function loadLocalStateDict(
  fsdp: FullyShardedDataParallel,
  entries: ReadonlyMap<string, StateEntry>,
): Promise<void> {
  await fsdp.initialize();
  fsdp.assertState('idle');
  const units = fsdp.instances().flatMap(({ units }) => units);
  checkEntries(
    entries,
    new Map(units.map((unit, index) => [`flat_param_${index}`, unit.flat.shape])),
    true,
  );
  units.forEach((unit, index) => {
    unit.flat.storage.write(entries.get(`flat_param_${index}`)!.data);
    unit.drop();
  });
}

function checkEntries(
  entries: ReadonlyMap<string, StateEntry>,
  shapes: ReadonlyMap<string, Shape>,
  isStrict: boolean,
): void {
  const missing = isStrict ? [...shapes.keys()].filter((name) => !entries.has(name)) : [];
  const unexpected = isStrict ? [...entries.keys()].filter((name) => !shapes.has(name)) : [];
  const mismatched = [...shapes].flatMap(([name, shape]) => {
    const entry = entries.get(name);
    if (entry === undefined) return [];
    const isFit =
      entry.dtype === 'f32' &&
      entry.shape.length === shape.length &&
      entry.shape.every((dim, i) => dim === shape[i]) &&
      entry.data.byteLength === elementCountOf(shape) * F32_BYTES;
    return isFit
      ? []
      : [
          `${name}: expected f32 [${shape.join(', ')}], got ${entry.dtype} [${entry.shape.join(', ')}] of ${entry.data.byteLength} bytes`,
        ];
  });
  if (missing.length + unexpected.length + mismatched.length === 0) return;
  throw new FsdpStateDictError(
    `loadStateDict: expected the ${shapes.size} entries of this module. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}. Misshapen: ${mismatched.join('; ') || 'none'}.`,
    { missing, unexpected, mismatched },
  );
}
