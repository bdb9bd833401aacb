// Parameters in and out: whole under their original names, or this rank's shards.

import { byteSize } from '@shardweave/dtypes';
import { type DType, elementCountOf, type Shape } from '@shardweave/tensor-core';
import { FsdpStateDictError } from './errors.js';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

/** One tensor of a state dict: raw little-endian elements. */
export interface StateEntry {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly data: Uint8Array;
}

export type StateDict = Map<string, StateEntry>;

type ExpectedEntry = Pick<StateEntry, 'dtype' | 'shape'>;

/**
 * All parameters whole, in the masters' dtype (f32, but in pure 16-bit training), under the names the bare module has. Collective. Inside
 * summonFullParams: what this rank sees there.
 */
export async function stateDict(fsdp: FullyShardedDataParallel): Promise<StateDict> {
  await fsdp.initialize();
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  const found = new Map<string, StateEntry>();
  for (const unit of fsdp.instances().flatMap(({ units }) => units)) {
    const whole = await unit.gatherMaster();
    const { dtype } = unit.flat;
    unit.parameters.forEach(({ tensor }, index) => {
      const start = unit.layout.offsets[index]! * byteSize(dtype);
      const data = whole.slice(start, start + tensor.size * byteSize(dtype));
      found.set(names.get(tensor)!, { dtype, shape: tensor.shape, data });
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
  const units = fsdp.instances().flatMap((instance) => instance.units);
  const expected = new Map<string, ExpectedEntry>();
  for (const { flat, parameters } of units) {
    for (const { tensor } of parameters) {
      expected.set(names.get(tensor)!, { dtype: flat.dtype, shape: tensor.shape });
    }
  }
  checkEntries(entries, expected, options.strict ?? true);
  for (const unit of units) {
    // Without strict, what has no entry keeps its value.
    const numGiven = unit.parameters.filter(({ tensor }) => entries.has(names.get(tensor)!)).length;
    if (numGiven === 0) continue;
    const whole =
      numGiven === unit.parameters.length ? unit.emptyMaster() : await unit.gatherMaster();
    unit.parameters.forEach(({ tensor }, index) => {
      const entry = entries.get(names.get(tensor)!);
      const start = unit.layout.offsets[index]! * byteSize(unit.flat.dtype);
      if (entry !== undefined) whole.set(entry.data, start);
    });
    await unit.scatterMaster(whole);
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
    entries.set(`flat_param_${entries.size}`, {
      dtype: unit.flat.dtype,
      shape: unit.flat.shape,
      data,
    });
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
    new Map(units.map(({ flat }, index) => [`flat_param_${index}`, flat])),
    true,
  );
  units.forEach((unit, index) => {
    unit.flat.storage.write(entries.get(`flat_param_${index}`)!.data);
    unit.drop();
  });
}

function checkEntries(
  entries: ReadonlyMap<string, StateEntry>,
  expected: ReadonlyMap<string, ExpectedEntry>,
  isStrict: boolean,
): void {
  const missing = isStrict ? [...expected.keys()].filter((name) => !entries.has(name)) : [];
  const unexpected = isStrict ? [...entries.keys()].filter((name) => !expected.has(name)) : [];
  const mismatched = [...expected].flatMap(([name, { dtype, shape }]) => {
    const entry = entries.get(name);
    if (entry === undefined) return [];
    const isFit =
      entry.dtype === dtype &&
      entry.shape.length === shape.length &&
      entry.shape.every((dim, i) => dim === shape[i]) &&
      entry.data.byteLength === elementCountOf(shape) * byteSize(dtype);
    return isFit
      ? []
      : [
          `${name}: expected ${dtype} [${shape.join(', ')}], got ${entry.dtype} [${entry.shape.join(', ')}] of ${entry.data.byteLength} bytes`,
        ];
  });
  if (missing.length + unexpected.length + mismatched.length === 0) return;
  throw new FsdpStateDictError(
    `loadStateDict: expected the ${expected.size} entries of this module. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}. Misshapen: ${mismatched.join('; ') || 'none'}.`,
    { missing, unexpected, mismatched },
  );
}
