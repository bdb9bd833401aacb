// What nn's functions of a model's state ask of sharded modules: which parameters rest together,
// how ranks read and write them, and how all of them hear of one that fails.

import { exchangeTexts, PeerFailedError } from '@shardweave/collectives';
import type { Module } from '@shardweave/nn';
import {
  type AtRest,
  bytesOf,
  type ElementsOfRank,
  type GivenParameters,
  type Held,
  type HeldBy,
  type HeldCall,
  type HeldPart,
  type HeldRanks,
  type PartRoom,
  partsOfEntry,
  type ReadParameter,
  restSize,
} from '@shardweave/nn/flat';
import { byteSize, type Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateError } from '../errors.js';
import { callIdentity, exchangeCall } from '../ranks/call-identity.js';
import { agree, agreeOnText, share } from '../tree/agree.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { labelOf, ownerOf, ownersBeside } from '../tree/own-parameters.js';
import { abortOnError } from '../tree/rank-failure.js';
import { type IsInstance, isInstance } from '../tree/tree-instance.js';
import { pieceOf } from '../unit/shard-layout.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { agreedProgress } from './agreed-progress.js';
import { keyedUnits } from './keyed-units.js';

/** How nn asks an instance and those below it. */
export function heldByInstance(instance: Instance): HeldBy {
  return { name: instance.name, group: instance.processGroup, together: heldShards };
}

function heldShards(wrappers: readonly Module[]): Held {
  const roots = wrappers.filter(isInstance).map((wrapper: IsInstance) => instanceOf(wrapper));
  const [first] = roots as [Instance, ...Instance[]];
  const replicas = roots.find(({ replicateGroup }) => replicateGroup !== first.replicateGroup);
  return {
    castsBuffers: true,
    places: first.options.stateDict,
    whileAtRest: async (call, body) => {
      if (replicas !== undefined) {
        throw new FsdpConfigError(
          `${call.operation}: expected instances over one replicateGroup, got ${labelOf(first)} and ${labelOf(replicas)} over two. Call it with each alone.`,
        );
      }
      const { operation } = call;
      const states = statesOf(call);
      return collectiveCall(roots, { operation, states }, async () => {
        if (call.by === 'gradients') {
          roots.forEach(requireRoot);
        }
        return body(await atRest(roots, call));
      });
    },
  };
}

/** Whole tensors may be read and written inside summonFullParams, too. */
function statesOf({ by }: HeldCall) {
  return by === 'tensors' ? (['idle', 'summonFullParams'] as const) : (['idle'] as const);
}

async function atRest(roots: readonly Instance[], call: HeldCall): Promise<AtRest> {
  const { operation, by } = call;
  const checks = roots.map((root) => noteShards(root, operation));
  const parts: HeldPart[] = [];
  for (const root of roots) {
    const instances = root.instances();
    const keyed =
      by === 'pieces'
        ? await keyedUnits(root, { operation })
        : unitsUsedBy(root, instances).map((unit) => ({ unit, suffix: '', isWriting: false }));
    const local = instances.filter((instance) => instance.isLocalTo(root));
    const own = new Set(local.flatMap(({ units }) => units));
    for (const { unit, suffix, isWriting } of keyed) {
      if (by === 'gradients' && isLeftOut(root, unit)) {
        continue;
      }
      const isShared = !own.has(unit);
      parts.push({ ...partOf(root, unit, call), suffix, isWriting, isShared });
    }
  }
  return {
    parts,
    ranks: ranksOf(roots[0]!),
    requireUnchanged: () => {
      for (const check of checks) {
        check();
      }
    },
  };
}

function ranksOf(root: Instance): HeldRanks {
  const { groups, shardTrained } = root.options;
  const { processGroup, isFirstRank, isFirstReplica } = groups;
  return {
    isAlone: groups.numRanks === 1,
    rank: processGroup.rank,
    worldSize: processGroup.worldSize,
    isFirst: isFirstRank,
    isWriting: isFirstReplica,
    agree: (operation, own) => agree(root, operation, own),
    agreeOnText: (operation, make) => agreeOnText(root, operation, make),
    attempt: (operation, own) => abortOnError(processGroup, operation, own),
    sum: (operation, values) => shareValues(root, values, operation),
    // Each rank has whole gradients and computes the norm; devices of one class get the same bits.
    firstNorm:
      shardTrained || root.tree!.numericClasses.length < 2
        ? undefined
        : (operation, norm) => normOfFirst(root, norm, operation),
    exchange: (operation, text) => exchangeTexts(processGroup, text, exchangeCall(operation)),
    isOfAnother: (error) => error instanceof PeerFailedError,
  };
}

function partOf(
  root: Instance,
  unit: ShardedUnit,
  { operation }: HeldCall,
): Omit<HeldPart, 'suffix' | 'isWriting' | 'isShared'> {
  const states = ['idle', 'summonFullParams'] as const;
  return {
    parameters: unit.parameters.map(({ tensor }) => tensor),
    readLater:
      unit.layout.worldSize > 1
        ? undefined
        : (parameter, part) =>
            collectiveCall(root, { operation, states }, () => readAlone(unit, parameter, part)),
    readWhole: async ({ toFirst }) => {
      const whole = await gatherWhole(root, unit, { operation, toFirst });
      return whole && (async (parameter) => whole.slice(...bytesIn(unit, parameter)));
    },
    write: (given, room) => setGiven(root, unit, given, { operation, room }),
    elementsOf: isNormExchanged(root, unit)
      ? (index) => elementsOf(root, unit, { index, operation })
      : undefined,
    dropCopies: () => unit.full.drop(),
    agreeOnProgress: (own) => share(root, operation, () => agreedProgress(unit, own, operation)),
  };
}

/** Whether a unit is sharded only because it is frozen, so that no norm has a part of it. */
function isLeftOut(root: Instance, { isWhole, layout }: ShardedUnit): boolean {
  return !root.options.shardTrained && !isWhole && layout.worldSize > 1;
}

/** Whether ranks exchange what each computes of a unit's norm. */
function isNormExchanged(root: Instance, { group, isWhole }: ShardedUnit): boolean {
  if (isWhole && group === root.processGroup) {
    return false;
  }
  const isReplicated = root.replicateGroup !== undefined && root.tree!.numericClasses.length > 1;
  return group.worldSize > 1 || group !== root.processGroup || isReplicated;
}

/** @throws {FsdpConfigError} for an expert's parameter */
function elementsOf(
  root: Instance,
  { group, layout, parameters }: ShardedUnit,
  { index, operation }: { readonly index: number; readonly operation: string },
): ElementsOfRank[] {
  if (group !== root.processGroup) {
    const other = ownerOf(parameters[index]!.tensor)!;
    throw new FsdpConfigError(
      `${operation}: expected all instances in one process group, got ${labelOf(root)} and ${labelOf(other)} in two. Parameters that differ by rank (experts) have no common norm here: clip them apart.`,
    );
  }
  return Array.from({ length: layout.worldSize }, (_, rank) => {
    const { first, length } = pieceOf(layout, index, rank);
    return { rank, first, length };
  });
}

/**
 * Adds up numbers of all ranks. Replicas hold the same gradients, so nothing is added over them;
 * but those of different numeric classes may round differently, and would scale by different
 * factors, so all of them use the first replica's numbers.
 */
async function shareValues(
  { processGroup, replicateGroup, tree }: Instance,
  values: Float32Array,
  operation: string,
): Promise<void> {
  const wire = new Uint8Array(values.buffer);
  const options = { tag: 'gradNorm', identity: callIdentity(operation) };
  if (processGroup.worldSize > 1) {
    await processGroup.allReduce(wire, wire, { dtype: 'f32', op: 'sum', ...options });
  }
  if (replicateGroup !== undefined && tree!.numericClasses.length > 1) {
    await replicateGroup.broadcast(wire, { root: 0, ...options });
  }
}

async function normOfFirst(
  { processGroup }: Instance,
  norm: number,
  operation: string,
): Promise<number> {
  const words = Float64Array.of(norm);
  const bytes = new Uint8Array(words.buffer);
  await processGroup.broadcast(bytes, { root: 0, ...exchangeCall(operation) });
  return words[0]!;
}

/** @throws {FsdpStateError} on an inner instance */
function requireRoot(root: Instance): void {
  if (!root.isRoot) {
    throw new FsdpStateError(
      `gradNorm: expected the root instance, got inner instance '${root.name}'. A norm is that of the whole model.`,
    );
  }
}

/** Reads from a unit that this rank has alone, or from what was summoned of it. */
async function readAlone(
  unit: ShardedUnit,
  ...[parameter, part]: Parameters<ReadParameter>
): Promise<Uint8Array> {
  if (!unit.isSummoned) {
    return unit.values.readLeaf(parameter, part);
  }
  const size = byteSize(unit.flat.dtype);
  const [start, end] = bytesIn(unit, parameter);
  const whole = (await unit.gatherMaster('lazyStateDict')).slice(start, end);
  return part === undefined
    ? whole
    : whole.subarray(part.first * size, (part.first + part.count) * size);
}

/** Where a parameter's bytes begin and end in those of the whole unit. */
function bytesIn({ parameters, layout, flat }: ShardedUnit, parameter: Tensor): [number, number] {
  const index = parameters.findIndex(({ tensor }) => tensor === parameter);
  const size = byteSize(flat.dtype);
  const start = layout.offsets[index]! * size;
  return [start, start + restSize(parameter) * size];
}

/**
 * A unit's whole master bytes; undefined on ranks that only take part. Where an inner instance has
 * another group, the first rank of that group need not be the tree's first rank, so all its ranks
 * get the bytes.
 */
function gatherWhole(
  root: Instance,
  unit: ShardedUnit,
  { operation, toFirst }: { readonly operation: string; readonly toFirst: boolean },
): Promise<Uint8Array | undefined> {
  if (unit.isWhole && toFirst && unit.group.rank > 0) {
    return Promise.resolve(undefined);
  }
  return toFirst && !unit.isWhole && unit.group === root.processGroup
    ? unit.gatherMasterToFirst(operation)
    : unit.gatherMaster(operation);
}

/**
 * Sets those parameters of a unit that have entries. Where all have, this rank reads what its shard
 * needs of them; else the others keep their values, which takes the whole unit.
 */
async function setGiven(
  root: Instance,
  unit: ShardedUnit,
  given: GivenParameters,
  { operation, room }: { readonly operation: string; readonly room: PartRoom },
): Promise<void> {
  const isWhole = given.size === unit.parameters.length;
  if (isWhole && !unit.isSummoned && unit.values.home === undefined) {
    await writeParts(unit, given, room);
  } else if (isWhole && !unit.isSummoned) {
    await unit.values.write(await readShard(unit, given));
  } else {
    const whole = isWhole
      ? new Uint8Array(unit.flat.storage.byteLength * unit.layout.worldSize)
      : await share(root, operation, () => unit.gatherMaster(operation));
    for (const [parameter, entry] of given) {
      whole.set(await bytesOf(...entry, unit.flat.dtype), bytesIn(unit, parameter)[0]);
    }
    await unit.scatterMaster(whole);
  }
  unit.full.drop();
}

/**
 * Writes this rank's shard of a unit whose parameters all have entries, and which rests on the
 * device: a large one is never on the host as a whole.
 */
async function writeParts(
  unit: ShardedUnit,
  given: GivenParameters,
  room: PartRoom,
): Promise<void> {
  const { dtype } = unit.flat;
  const size = byteSize(dtype);
  for (const [index, { tensor }] of unit.parameters.entries()) {
    const { start, length, first } = pieceOf(unit.layout, index, unit.shardIndex);
    if (length === 0) {
      continue;
    }
    const range = { first, count: length };
    for await (const part of partsOfEntry(...given.get(tensor)!, { dtype, range, room })) {
      const { bytes } = part;
      let words = bytes;
      if (bytes.byteLength % 4 !== 0) {
        // Half a word at a parameter's end is followed by padding.
        words = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
        words.set(bytes);
      }
      await unit.values.write(words, (start + part.first - first) * size);
    }
  }
}

/**
 * This rank's shard of a unit whose parameters all have entries. A lazy tensor that can be read in
 * parts is read only as far as the shard needs it.
 */
async function readShard(unit: ShardedUnit, given: GivenParameters): Promise<Uint8Array> {
  const { dtype } = unit.flat;
  const shard = new Uint8Array(unit.flat.storage.byteLength);
  for (const [index, { tensor }] of unit.parameters.entries()) {
    const { start, length, first } = pieceOf(unit.layout, index, unit.shardIndex);
    if (length > 0) {
      const part = await bytesOf(...given.get(tensor)!, dtype, { first, count: length });
      shard.set(part, start * byteSize(dtype));
    }
  }
  return shard;
}

/**
 * The units of an instance and those below it, and the units of other instances that hold a
 * parameter which these use.
 */
function unitsUsedBy(root: Instance, instances: readonly Instance[]): ShardedUnit[] {
  const used = new Set(root.wrapper.parameters());
  const beside = [...ownersBeside(instances)].flatMap(({ units }) =>
    units.filter(({ parameters }) => parameters.some(({ tensor }) => used.has(tensor))),
  );
  return [...instances.flatMap(({ units }) => units), ...beside];
}
