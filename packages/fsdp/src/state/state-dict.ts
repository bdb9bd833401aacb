// Gets and sets whole parameters and buffers under the names that the bare module has: what is
// written here loads into a bare module and back. local-state-dict.ts does it for this rank's
// shards.

import { byteSize } from '@shardweave/dtypes';
import type { Module } from '@shardweave/nn';
import { restShape, restSize } from '@shardweave/nn/flat';
import { isFloat, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, STATE_DICT_CALL_RULES } from '../check-options.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { agree, agreeOnText, share } from '../tree/agree.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { ownersBeside } from '../tree/own-parameters.js';
import { pieceOf } from '../unit/shard-layout.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import {
  bytesOf,
  checkEntries,
  convertBytes,
  digestOf,
  type ExpectedEntry,
  type GivenEntry,
  type StateDict,
  type StateEntry,
} from './state-entry.js';

/**
 * Options of stateDict: which parameters have entries, whether those are bytes or tensors, and
 * which ranks get them.
 */
export interface StateDictOptions {
  /**
   * 'host': bytes. 'device': tensors, which the caller has to dispose. Default: the instance's
   * option.
   */
  readonly stateDictDevice?: 'host' | 'device';
  /**
   * Only the first rank gets entries. The others get an empty dict and never hold more than one
   * shard, but all ranks take part. Default: the instance's option.
   */
  readonly stateDictOnRank0Only?: boolean;
  /**
   * Frozen parameters are left out, and units that have nothing else are not gathered, such as
   * those of a base model whose adapters are trained. Default false.
   */
  readonly onlyTrained?: boolean;
}

/**
 * All parameters whole in the masters' dtype (f32, except in pure 16-bit training), and all
 * buffers, with float ones in f32, each under its first name in the bare module. Collective; one
 * unit at a time, and each tensor is copied once. It may be called before the first forward, on an
 * inner instance, and inside summonFullParams, where it has what this rank sees there.
 * @throws {FsdpStateError} inside forward or backward
 */
export async function stateDict(
  fsdp: FullyShardedDataParallel,
  options: StateDictOptions = {},
): Promise<StateDict> {
  checkOptions('stateDict', options, STATE_DICT_CALL_RULES);
  const call = { operation: 'stateDict', states: ['idle', 'summonFullParams'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () => gatherStateDict(root, options));
}

async function gatherStateDict(root: Instance, options: StateDictOptions): Promise<StateDict> {
  const { wrapper } = root;
  const {
    stateDictDevice,
    stateDictOnRank0Only,
    onlyTrained = false,
  } = {
    ...root.options.stateDict,
    ...options,
  };
  const names = new Map(
    wrapper
      .namedParameters()
      .flatMap(([name, tensor]) => (onlyTrained && !tensor.requiresGrad ? [] : [[tensor, name]])),
  );
  const found = new Map<string, StateEntry>();
  const checkShards = noteShards(root, 'stateDict');
  const isElsewhere = stateDictOnRank0Only && !root.isFirstRank;
  for (const unit of unitsUsedBy(root)) {
    if (onlyTrained && !unit.parameters.some(({ tensor }) => names.has(tensor))) {
      continue;
    }
    const whole = await gatherWhole(root, unit, stateDictOnRank0Only);
    if (whole === undefined || isElsewhere) {
      continue;
    }
    const { dtype } = unit.flat;
    unit.parameters.forEach(({ tensor }, index) => {
      const name = names.get(tensor);
      if (name === undefined) {
        return; // belongs to another instance alone, or is left out
      }
      const start = unit.layout.offsets[index]! * byteSize(dtype);
      const data = whole.slice(start, start + restSize(tensor) * byteSize(dtype));
      found.set(name, { dtype, shape: restShape(tensor), data });
    });
  }
  checkShards();
  if (isElsewhere) {
    return new Map();
  }
  // The entries come in the order of the bare module, not of the units.
  const entries = new Map([...names.values()].map((name) => [name, found.get(name)!]));
  for (const [name, buffer] of wrapper.namedBuffers()) {
    entries.set(name, await bufferEntry(buffer));
  }
  if (stateDictDevice === 'host') {
    return entries;
  }
  return new Map([...entries].map(([name, entry]) => [name, onDevice(wrapper, entry)]));
}

/**
 * Sets parameters and buffers from whole ones; floats may have any dtype, and each rank keeps its
 * shard. Collective: ranks compare names and values. They don't compare the values of experts and
 * buffers, which may differ, nor those of lazy tensors: each rank reads only the part that its
 * shard has (`readPart`), unit by unit. Inside summonFullParams it sets the summoned values.
 * @param options.strict refuse missing and unexpected names. Default true.
 * @throws {StateDictError} naming what is missing, unexpected or misshapen, and where ranks differ:
 * nothing is loaded
 * @throws {FsdpRankFailedError} where another rank could not write
 * @throws {FsdpStateError} inside forward or backward
 */
export async function loadStateDict(
  fsdp: FullyShardedDataParallel,
  entries: ReadonlyMap<string, GivenEntry>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  const call = { operation: 'loadStateDict', states: ['idle', 'summonFullParams'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () => scatterStateDict(root, entries, options));
}

async function scatterStateDict(
  root: Instance,
  entries: ReadonlyMap<string, GivenEntry>,
  options: { readonly strict?: boolean },
): Promise<void> {
  const { wrapper } = root;
  const names = new Map(wrapper.namedParameters().map(([name, tensor]) => [tensor, name]));
  const units = unitsUsedBy(root);
  const entryOf = (tensor: Tensor) => entries.get(names.get(tensor) ?? '');
  const expected = new Map<string, ExpectedEntry>(wrapper.namedBuffers());
  for (const { flat, parameters } of units) {
    for (const { tensor } of parameters) {
      const name = names.get(tensor);
      if (name !== undefined) {
        expected.set(name, { dtype: flat.dtype, shape: restShape(tensor) });
      }
    }
  }
  await agreeOnText(root, 'loadStateDict', () => {
    checkEntries('loadStateDict', entries, expected, { isStrict: options.strict ?? true });
    return root.numRanks === 1 ? '' : digestOf(sharedEntries(root, entries));
  });
  await agree(root, 'loadStateDict', async () => {
    for (const unit of units) {
      // Without strict, a parameter without an entry keeps its value.
      const given = unit.parameters.filter(({ tensor }) => entryOf(tensor) !== undefined);
      if (given.length === 0) {
        continue;
      }
      const isWhole = given.length === unit.parameters.length;
      if (isWhole && !unit.isSummoned) {
        await unit.write(await readShard(unit, entryOf));
      } else {
        const whole = isWhole
          ? unit.emptyMaster()
          : await share(root, 'loadStateDict', () => unit.gatherMaster('loadStateDict'));
        await setGiven(unit, whole, entryOf);
        await unit.scatterMaster(whole);
      }
      unit.drop();
    }
    await loadBuffers(wrapper, entries);
  });
}

/** Copies the values of those parameters that have an entry into the unit's whole bytes. */
async function setGiven(
  unit: ShardedUnit,
  whole: Uint8Array,
  entryOf: (tensor: Tensor) => GivenEntry | undefined,
): Promise<void> {
  const { dtype } = unit.flat;
  for (const [index, { tensor }] of unit.parameters.entries()) {
    const entry = entryOf(tensor);
    if (entry !== undefined) {
      whole.set(await bytesOf(entry, dtype), unit.layout.offsets[index]! * byteSize(dtype));
    }
  }
}

/**
 * This rank's shard of a unit whose parameters all have entries. A lazy tensor that can be read in
 * parts is read only as far as the shard needs it.
 */
async function readShard(
  unit: ShardedUnit,
  entryOf: (tensor: Tensor) => GivenEntry | undefined,
): Promise<Uint8Array> {
  const { dtype } = unit.flat;
  const shard = new Uint8Array(unit.byteLength);
  for (const [index, { tensor }] of unit.parameters.entries()) {
    const { start, length, first } = pieceOf(unit.layout, index, unit.group.rank);
    if (length > 0) {
      const part = await bytesOf(entryOf(tensor)!, dtype, { first, count: length });
      shard.set(part, start * byteSize(dtype));
    }
  }
  return shard;
}

/**
 * The entries as all ranks must give them. Those of experts and buffers come without their values,
 * for each rank may have its own.
 */
function sharedEntries(
  root: Instance,
  entries: ReadonlyMap<string, GivenEntry>,
): [string, GivenEntry][] {
  const local = root.instances().filter((instance) => instance.isLocalTo(root));
  const own = new Set(local.flatMap(({ wrapper }) => wrapper.parameters()));
  const shared = new Set(
    root.wrapper.namedParameters().flatMap(([name, tensor]) => (own.has(tensor) ? [] : [name])),
  );
  return [...entries].map(([name, entry]) => {
    return [name, shared.has(name) ? entry : { ...entry, data: new Uint8Array(0) }];
  });
}

/** The flat parameters of an instance and those below it, outer instances first. */
export function unitsOf(root: Instance): ShardedUnit[] {
  return root.instances().flatMap(({ units }) => units);
}

/**
 * The units of an instance and those below it, and the units of other instances that hold a
 * parameter which these use.
 */
function unitsUsedBy(root: Instance): ShardedUnit[] {
  const used = new Set(root.wrapper.parameters());
  const beside = [...ownersBeside(root.instances())].flatMap(({ units }) =>
    units.filter(({ parameters }) => parameters.some(({ tensor }) => used.has(tensor))),
  );
  return [...unitsOf(root), ...beside];
}

/** A buffer's values; a float buffer's are f32, whatever dtype it is computed in. */
export async function bufferEntry(buffer: Tensor): Promise<StateEntry> {
  const dtype = isFloat(buffer.dtype) ? 'f32' : buffer.dtype;
  const data = convertBytes(await buffer.toBytes(), buffer.dtype, dtype);
  return { dtype, shape: buffer.shape, data };
}

/** Sets those buffers that have an entry. */
export async function loadBuffers(
  module: Module,
  entries: ReadonlyMap<string, GivenEntry>,
): Promise<void> {
  for (const [name, buffer] of module.namedBuffers()) {
    const entry = entries.get(name);
    if (entry === undefined || buffer.size === 0) {
      continue;
    }
    const bytes = await bytesOf(entry, buffer.dtype);
    buffer.storage.write(bytes, buffer.offset * byteSize(buffer.dtype));
  }
}

/**
 * A unit's whole master bytes; undefined on ranks that only take part. Where an inner instance has
 * another group, the first rank of that group need not be the tree's first rank, so all its ranks
 * get the bytes.
 */
async function gatherWhole(
  root: Instance,
  unit: ShardedUnit,
  isRank0Only: boolean,
): Promise<Uint8Array | undefined> {
  if (!isRank0Only || unit.group !== root.processGroup) {
    return unit.gatherMaster('stateDict');
  }
  return unit.gatherMasterToFirst('stateDict');
}

function onDevice(module: Module, entry: StateEntry): StateEntry {
  const { dtype, shape, data } = entry;
  const tensor = module.device.tensor(data, shape, { dtype, tag: 'parameter' }).keep();
  return { dtype, shape, data: new Uint8Array(0), tensor };
}
