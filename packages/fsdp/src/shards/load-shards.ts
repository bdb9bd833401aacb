// Each rank reads the ranges that it owns, whatever the world size and wrapping of the save: nothing
// is ever whole on one of them.

import { byteSize } from '@shardweave/dtypes';
import type { Optimizer } from '@shardweave/nn';
import { type DType, isFloat, type Shape } from '@shardweave/tensor-core';
import { FsdpStateDictError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { namesFor } from '../state/optim-state-dict.js';
import { loadBuffers } from '../state/state-dict.js';
import { convertBytes, type StateEntry } from '../state/state-entry.js';
import { agree } from '../tree/agree.js';
import { collectiveCall } from '../tree/collective-call.js';
import { pieceOf } from '../unit/shard-layout.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { isOneGroups, type KeyedUnit, keyedUnits } from './keyed-units.js';
import {
  readIndex,
  readRange,
  type SavedTensor,
  type ShardIndex,
  type ShardReader,
  stateKey,
} from './shard-index.js';

export interface LoadShardsOptions {
  /** Gets the state that was saved, and its groups' options. */
  // biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
  readonly optimizer?: Optimizer<any>;
  /** As in saveShards. Default ''. */
  readonly prefix?: string;
  /** Refuse missing and unexpected names. Default true. */
  readonly strict?: boolean;
}

/**
 * Loads what saveShards wrote, at any world size. Collective. Floats are converted to what parameters
 * have here. At once on the host are 4 MiB of a file, and with an optimizer one flat parameter's
 * state; on the device nothing more than after it.
 * @param reader this rank's; all must see the files of all ranks of the save
 * @returns extra, as it was saved
 * @throws {FsdpStateDictError} for no index, missing, unexpected or misshapen names (nothing is
 * loaded), and on all ranks where one could not read (what is loaded is mixed: load again)
 * @throws {FsdpStateError} unless idle
 */
export async function loadShards(
  fsdp: FullyShardedDataParallel,
  reader: ShardReader,
  options: LoadShardsOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const call = { operation: 'loadShards', states: ['idle'] } as const;
  return collectiveCall(fsdp, call, () => readShards(fsdp, reader, options));
}

async function readShards(
  fsdp: FullyShardedDataParallel,
  reader: ShardReader,
  options: LoadShardsOptions,
): Promise<Readonly<Record<string, unknown>>> {
  const { optimizer, prefix = '', strict: isStrict = true } = options;
  const units = await keyedUnits(fsdp, { operation: 'loadShards' });
  const index = await agree(fsdp, 'loadShards', async () => {
    const found = await readIndex(reader, prefix);
    checkNames(fsdp, found, { units, isStrict });
    if (optimizer !== undefined) {
      checkOptimizer(fsdp, optimizer, { units, saved: found.optimizer });
    }
    return found;
  });
  await agree(fsdp, 'loadShards', async () => {
    for (const { unit, keys } of units) {
      await loadParameters(unit, keys, { index, reader });
      unit.drop();
      if (optimizer !== undefined) {
        await loadState(unit, keys, { index, reader, optimizer });
      }
    }
    await loadBuffers(fsdp, await readBuffers(fsdp, index, reader));
  });
  if (optimizer !== undefined) {
    loadGroups(optimizer, index);
  }
  return index.extra;
}

interface Source {
  readonly index: ShardIndex;
  readonly reader: ShardReader;
}

async function loadParameters(
  unit: ShardedUnit,
  keys: readonly string[],
  { index, reader }: Source,
): Promise<void> {
  const { dtype } = unit.flat;
  for (const [i, key] of keys.entries()) {
    const saved = index.tensors[key];
    if (saved === undefined) {
      continue;
    }
    for await (const { at, bytes } of ownParts(unit, i, { saved, reader })) {
      const converted = convertBytes(bytes, saved.dtype, dtype);
      // A half word at a parameter's end is followed by padding.
      const words = new Uint8Array(Math.ceil(converted.byteLength / 4) * 4);
      words.set(converted);
      await unit.writeMaster(words, at * byteSize(dtype));
    }
  }
}

async function loadState(
  unit: ShardedUnit,
  keys: readonly string[],
  // biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
  { index, reader, optimizer }: Source & { readonly optimizer: Optimizer<any> },
): Promise<void> {
  const { state } = index.optimizer!;
  const tensors = new Map<string, Uint8Array>();
  let step = 0;
  for (const [i, key] of keys.entries()) {
    const piece = pieceOf(unit.layout, i, unit.rank);
    const entry = state[key];
    if (entry === undefined || piece.start === piece.end) {
      continue;
    }
    step = entry.step;
    for (const part of entry.tensors) {
      if (!tensors.has(part)) {
        tensors.set(part, new Uint8Array(unit.layout.shardLength * 4));
      }
      const saved = index.tensors[stateKey(key, part)]!;
      for await (const { at, bytes } of ownParts(unit, i, { saved, reader })) {
        tensors.get(part)!.set(bytes, at * 4);
      }
    }
  }
  const isStepped = step > 0;
  if (isStepped || (await optimizer.readFlatState(unit.flat)) !== undefined) {
    await optimizer.writeFlatState(unit.flat, step, tensors);
  }
}

/** This rank's part of parameter `i` as saved, each run with its place in the shard. */
async function* ownParts(
  { layout, rank }: ShardedUnit,
  i: number,
  { saved, reader }: { readonly saved: SavedTensor; readonly reader: ShardReader },
): AsyncGenerator<{ readonly at: number; readonly bytes: Uint8Array }> {
  const piece = pieceOf(layout, i, rank);
  const first = rank * layout.shardLength - layout.offsets[i]!;
  const range = { start: first + piece.start, end: first + piece.end };
  for await (const { start, bytes } of readRange(reader, saved, range)) {
    yield { at: start - first, bytes };
  }
}

async function readBuffers(
  fsdp: FullyShardedDataParallel,
  index: ShardIndex,
  reader: ShardReader,
): Promise<Map<string, StateEntry>> {
  const entries = new Map<string, StateEntry>();
  for (const [name, { size }] of fsdp.namedBuffers()) {
    const saved = index.tensors[name];
    if (saved === undefined) {
      continue;
    }
    const { dtype, shape } = saved;
    const data = new Uint8Array(size * byteSize(dtype));
    for await (const { start, bytes } of readRange(reader, saved, { start: 0, end: size })) {
      data.set(bytes, start * byteSize(dtype));
    }
    entries.set(name, { dtype, shape, data });
  }
  return entries;
}

// biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
function loadGroups(optimizer: Optimizer<any>, index: ShardIndex): void {
  index.optimizer!.paramGroups.forEach(({ params: _, ...options }, i) => {
    Object.assign(optimizer.groups[i]!, options);
  });
}

// ---- checks ------------------------------------------------------------------------------------

function checkNames(
  fsdp: FullyShardedDataParallel,
  { tensors, optimizer }: ShardIndex,
  { units, isStrict }: { readonly units: readonly KeyedUnit[]; readonly isStrict: boolean },
): void {
  const expected = new Map<string, { readonly dtype: DType; readonly shape: Shape }>(
    fsdp.namedBuffers(),
  );
  for (const { unit, keys } of units) {
    unit.parameters.forEach(({ tensor: { shape } }, i) => {
      expected.set(keys[i]!, { dtype: unit.flat.dtype, shape });
    });
  }
  const isState = new Set(
    Object.entries(optimizer?.state ?? {}).flatMap(([name, entry]) =>
      entry.tensors.map((part) => stateKey(name, part)),
    ),
  );
  const given = Object.keys(tensors).filter((key) => !isState.has(key));
  const missing = isStrict ? [...expected.keys()].filter((key) => !(key in tensors)) : [];
  // An expert is looked for by the ranks of its own group alone.
  const unexpected = isStrict ? given.filter((key) => !expected.has(key) && !isOneGroups(key)) : [];
  const mismatched = [...expected].flatMap(([key, { dtype, shape }]) => {
    const saved = tensors[key];
    if (saved === undefined) {
      return [];
    }
    const isConvertible = saved.dtype === dtype || (isFloat(saved.dtype) && isFloat(dtype));
    if (isConvertible && saved.shape.join() === shape.join()) {
      return [];
    }
    return [
      `${key}: expected ${dtype} [${shape.join(', ')}], got ${saved.dtype} [${saved.shape.join(', ')}]`,
    ];
  });
  if (missing.length + unexpected.length + mismatched.length === 0) {
    return;
  }
  throw new FsdpStateDictError(
    `loadShards: expected the ${expected.size} entries of this module. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}. Misshapen: ${mismatched.join('; ') || 'none'}.`,
    { missing, unexpected, mismatched },
  );
}

function checkOptimizer(
  fsdp: FullyShardedDataParallel,
  // biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
  optimizer: Optimizer<any>,
  options: {
    readonly units: readonly KeyedUnit[];
    readonly saved: ShardIndex['optimizer'];
  },
): void {
  const { units, saved } = options;
  namesFor(fsdp, optimizer);
  const numGroups = saved?.paramGroups.length;
  if (saved === undefined || numGroups !== optimizer.groups.length) {
    throw new FsdpStateDictError(
      `loadShards: expected ${optimizer.groups.length} saved parameter groups, got ${numGroups ?? 'no optimizer state'}. Pass the optimizer to saveShards, with the same groups.`,
    );
  }
  for (const { unit, keys } of units) {
    const steps = new Set(keys.flatMap((key) => saved.state[key]?.step ?? []));
    if (steps.size <= 1) {
      continue;
    }
    throw new FsdpStateDictError(
      `loadShards: expected equal step counts in flat parameter '${unit.name}', got ${[...steps].join(', ')}. Load it into instances made with flattenParameters: false, or put parameters that differ into groups.`,
      { mismatched: keys },
    );
  }
}
