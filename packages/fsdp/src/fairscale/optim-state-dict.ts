// Gets and sets optimizer state: whole and by parameter name on the first rank, or as this rank's
// shards. The whole state has nn's own format, so it loads into an optimizer of the bare module and
// back, and at any world size. Flat parameters are handled one by one: no device needs more memory
// for it, and only the first rank's host holds everything.

import type { Optimizer, OptimizerStateDict, ParameterState } from '@shardweave/nn';
import { StateDictError } from '@shardweave/nn';
import { checkStates, type FlatStateBytes, joinMembers } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { OBJECT, optional, shown } from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { agree, agreeOnText } from '../tree/agree.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { requireEachInOneUnit, requireNoOwnerBeside } from '../tree/own-parameters.js';
import { pieceOf } from '../unit/shard-layout.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { gatherFlatState } from './gather-flat-state.js';
import { flatKey } from './local-state-dict.js';
import { namesFor } from './optimizer-names.js';

const F32_BYTES = 4;

/** The options and state of all parameters. An optimizer of the bare module loads it too. */
export interface FullOptimStateDict<Options> extends OptimizerStateDict<Options> {
  /** The parameters whose state stays on their ranks (experts); localOptimStateDict has it. */
  readonly uncollected?: readonly string[];
  /** Whatever else the caller gave, such as a loss scale. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

/** The options of all parameters, and one rank's part of their state. */
export interface OptimStateShard<Options> {
  /** State by the name of its flat parameter, as in localStateDict; one without state is absent. */
  readonly flats: ReadonlyMap<string, FlatStateBytes>;
  readonly paramGroups: OptimizerStateDict<Options>['paramGroups'];
  readonly extra: Readonly<Record<string, unknown>>;
}

const EXTRA_RULES = { extra: optional(OBJECT) };

/**
 * The optimizer's whole state on the first rank, undefined on the others. Each parameter has one
 * entry; one that was never stepped, or was frozen all along, has none. There may be any number of
 * parameter groups, and parameters may be flattened or not. Collective; the optimizer is not
 * changed.
 * @param options.extra is passed on as it is
 * @throws {FsdpConfigError} where the optimizer has parameters that are not the module's
 * @throws {FsdpStateError} unless the instance is idle
 */
export async function gatherFullOptimStateDict<Options extends object>(
  fsdp: FullyShardedDataParallel,
  optimizer: Optimizer<Options>,
  options: { readonly extra?: Readonly<Record<string, unknown>> } = {},
): Promise<FullOptimStateDict<Options> | undefined> {
  const call = { operation: 'gatherFullOptimStateDict', states: ['idle'] } as const;
  checkOptions(call.operation, options, EXTRA_RULES);
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () => gatherFull(root, optimizer, options, call.operation));
}

async function gatherFull<Options extends object>(
  root: Instance,
  optimizer: Optimizer<Options>,
  options: { readonly extra?: Readonly<Record<string, unknown>> },
  operation: string,
): Promise<FullOptimStateDict<Options> | undefined> {
  const names = namesFor(root, optimizer);
  const found = new Map<string, ParameterState>();
  const uncollected: string[] = [];
  const checkShards = noteShards(root, operation);
  for (const { unit, isLocal } of flatsOf(root)) {
    const members = unit.parameters.filter(({ tensor }) => names.has(tensor));
    if (isLocal) {
      uncollected.push(...members.map(({ tensor }) => names.get(tensor)!));
    } else {
      for (const [tensor, state] of await gatherFlatState(unit, optimizer, operation)) {
        const name = names.get(tensor);
        if (name !== undefined) {
          found.set(name, state);
        }
      }
    }
  }
  checkShards();
  if (!root.options.groups.isFirstRank) {
    return undefined;
  }
  const order = [...names.values()].filter((name) => found.has(name));
  return {
    state: new Map(order.map((name) => [name, found.get(name)!])),
    paramGroups: groupsOf(optimizer, names),
    uncollected,
    extra: { ...options.extra },
  };
}

/**
 * Cuts this rank's part out of a whole state, for the present world size and wrapping, whatever the
 * state was gathered from. No communication; `full` is not changed and shares no memory with the
 * result.
 * @throws {StateDictError} for unknown names, for other shapes, and without a state
 */
export function getShardFromOptimStateDict<Options extends object>(
  fsdp: FullyShardedDataParallel,
  full: FullOptimStateDict<Options>,
): OptimStateShard<Options> {
  if (Object(full).state === undefined) {
    throw new StateDictError(
      `optimizer state: expected the whole state on every rank, got ${shown(full)}. gatherFullOptimStateDict gives it to the first rank: send it to the others, or use localOptimStateDict, which gives each rank its own.`,
      { unexpected: [], mismatched: [] },
    );
  }
  const root = instanceOf(fsdp);
  requireEachInOneUnit(root);
  requireNoOwnerBeside(root, 'optimizer state');
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  checkStates('optimizer state', full.state, names);
  const flats = new Map<string, FlatStateBytes>();
  flatsOf(root).forEach(({ unit, isLocal }, index) => {
    const shard = isLocal ? undefined : shardOf(unit, full, names);
    if (shard !== undefined) {
      flats.set(flatKey(index), shard);
    }
  });
  return { flats, paramGroups: full.paramGroups, extra: { ...full.extra } };
}

/**
 * This rank's part of the state, that of experts included, to resume on the same world size. No
 * communication.
 */
export async function localOptimStateDict<Options extends object>(
  fsdp: FullyShardedDataParallel,
  optimizer: Optimizer<Options>,
  options: { readonly extra?: Readonly<Record<string, unknown>> } = {},
): Promise<OptimStateShard<Options>> {
  checkOptions('localOptimStateDict', options, EXTRA_RULES);
  const root = instanceOf(fsdp);
  await root.initialize();
  const names = namesFor(root, optimizer);
  const flats = new Map<string, FlatStateBytes>();
  for (const [index, { unit }] of flatsOf(root).entries()) {
    const state = await optimizer.readFlatState(unit.flat);
    if (state !== undefined) {
      flats.set(flatKey(index), state);
    }
  }
  return { flats, paramGroups: groupsOf(optimizer, names), extra: { ...options.extra } };
}

/**
 * Sets one rank's state and the groups' options. A parameter without an entry starts afresh; an
 * expert without one keeps its state. Options go by the names of parameters, whatever the order of
 * groups is. Collective: every rank loads its own.
 * @returns `extra`, as it was given
 * @throws {StateDictError} where groups, names or lengths do not fit, naming a parameter that was
 * in another group, and where ranks give other options. The other ranks throw
 * {PeerFailedError}, and nothing is loaded on any rank
 */
export async function loadOptimStateShard<Options extends object>(
  fsdp: FullyShardedDataParallel,
  optimizer: Optimizer<Options>,
  shard: OptimStateShard<Options>,
): Promise<Readonly<Record<string, unknown>>> {
  const call = { operation: 'loadOptimStateShard', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () =>
    loadShard(root, optimizer, { operation: call.operation, make: () => shard }),
  );
}

/** Loads what `make` gives, once all ranks have found that theirs fits and have the same groups. */
async function loadShard<Options extends object>(
  root: Instance,
  optimizer: Optimizer<Options>,
  { operation, make }: { readonly operation: string; make(): OptimStateShard<Options> },
): Promise<Readonly<Record<string, unknown>>> {
  const flats = flatsOf(root);
  let shard: OptimStateShard<Options> | undefined;
  let groups: Optimizer<Options>['groups'] = [];
  await agreeOnText(root, operation, () => {
    const names = namesFor(root, optimizer);
    shard = make();
    groups = optimizer.groupsFrom(shard.paramGroups, names, { operation });
    checkShard(flats, shard);
    return JSON.stringify(groups.map(({ params: _, ...options }) => options));
  });
  const { flats: states, extra } = shard!;
  await agree(root, operation, async () => {
    optimizer.takeOptions(groups);
    for (const [index, { unit, isLocal }] of flats.entries()) {
      const state = states.get(flatKey(index));
      if (state !== undefined) {
        await optimizer.writeFlatState(unit.flat, state);
      } else if (!isLocal && (await optimizer.flatStateRuns(unit.flat)).length > 0) {
        await optimizer.writeFlatState(unit.flat, { runs: [], tensors: new Map() });
      }
    }
  });
  return extra;
}

/**
 * Loads a whole state that was gathered at this world size or another, or that comes from an
 * optimizer of the bare module. Every rank passes the whole state. Returns and throws what
 * loadOptimStateShard and getShardFromOptimStateDict do.
 */
export async function loadFullOptimStateDict<Options extends object>(
  fsdp: FullyShardedDataParallel,
  optimizer: Optimizer<Options>,
  full: FullOptimStateDict<Options>,
): Promise<Readonly<Record<string, unknown>>> {
  const call = { operation: 'loadFullOptimStateDict', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () =>
    loadShard(root, optimizer, {
      operation: call.operation,
      make: () => getShardFromOptimStateDict(fsdp, full),
    }),
  );
}

// ---- flats and names ---------------------------------------------------------------------------

interface OwnedFlat {
  readonly unit: ShardedUnit;
  /** Whether the ranks hold different parameters in it (experts). */
  readonly isLocal: boolean;
}

function flatsOf(root: Instance): OwnedFlat[] {
  return root.instances().flatMap((instance) => {
    const isLocal = instance.isLocalTo(root);
    return instance.units.map((unit) => ({ unit, isLocal }));
  });
}

/** The groups' options, with names in place of parameters. */
function groupsOf<Options extends object>(
  optimizer: Optimizer<Options>,
  names: ReadonlyMap<Tensor, string>,
): OptimizerStateDict<Options>['paramGroups'] {
  return optimizer.groups.map(({ params, ...options }) => ({
    ...(options as unknown as Options),
    params: params.map((param) => names.get(param)!),
  }));
}

// ---- cutting -----------------------------------------------------------------------------------

function shardOf(
  unit: ShardedUnit,
  { state }: OptimizerStateDict<unknown>,
  names: ReadonlyMap<Tensor, string>,
): FlatStateBytes | undefined {
  const { layout, shardIndex } = unit;
  const members = unit.parameters.map(({ tensor }, index) => {
    return { ...pieceOf(layout, index, shardIndex), entry: state.get(names.get(tensor)!) };
  });
  const shard = joinMembers(members, layout.shardLength);
  // A rank whose part is all padding, or was never stepped, has no state.
  return shard.runs.length > 0 ? shard : undefined;
}

function checkShard(flats: readonly OwnedFlat[], { flats: given }: OptimStateShard<unknown>): void {
  const lengths = new Map(flats.map(({ unit }, i) => [flatKey(i), unit.layout.shardLength]));
  const unexpected = [...given.keys()].filter((key) => !lengths.has(key));
  const mismatched = [...given].flatMap(([key, { tensors }]) => {
    const byteLength = (lengths.get(key) ?? 0) * F32_BYTES;
    const isFitting = [...tensors.values()].every((bytes) => bytes.byteLength === byteLength);
    return isFitting || unexpected.includes(key) ? [] : [key];
  });
  if (unexpected.length + mismatched.length === 0) {
    return;
  }
  throw new StateDictError(
    `optimizer state: expected shards of this rank's flat parameters. Unexpected: ${unexpected.join(', ') || 'none'}. Of another length: ${mismatched.join(', ') || 'none'}. Load a whole state to change the world size.`,
    { unexpected, mismatched },
  );
}
