// The norm of all gradients, and clipping by it, over the shards of all ranks. Sums are taken in
// nn's order, so the bits are those of one process with the same gradients. They are f32 whatever
// dtype the gradients have. Replicas of a shard hold the same gradient, so nothing is added over
// them; but replicas of different numeric classes may round differently and would scale by
// different factors, so all of them use the first replica's numbers.

import { clipCoefficient, streamedScaleGradients } from '@shardweave/nn';
import {
  blockRange,
  gradNodes,
  joinNormValues,
  type NormNode,
  type NormValue,
  normCover,
  normOfRoots,
  normParameters,
} from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { callIdentity } from '../ranks/call-identity.js';
import { collectiveCall } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { abortOnError } from '../tree/rank-failure.js';
import { pieceOf, type ShardLayout } from '../unit/shard-layout.js';

/** The kind of norm that is taken over gradients. */
export interface GradNormOptions {
  /** 2, Infinity for the largest magnitude, or another power above 0. Default 2. */
  readonly normType?: number;
}

/**
 * The norm of all gradients, each parameter counted once, wherever its gradient rests. 0 without
 * gradients; not finite where an element is not. Collective; waits for the device.
 * @throws {FsdpStateError} on an inner instance, or unless it is idle
 * @throws {FsdpConfigError} where instances have another process group than the root, and for a
 * normType that is not above 0
 */
export async function gradNorm(
  fsdp: FullyShardedDataParallel,
  options: GradNormOptions = {},
): Promise<number> {
  const call = { operation: 'gradNorm', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () => normOf(root, options, 'gradNorm'));
}

async function normOf(
  root: Instance,
  { normType = 2 }: GradNormOptions,
  operation: string,
): Promise<number> {
  checkNorm(root, normType);
  const parameters = normParameters(root.wrapper.parameters());
  const nodes = await abortOnError(root.processGroup, operation, () =>
    gradNodes(parameters, normType),
  );
  const places = placesOf(root, parameters);
  const isMax = normType === Infinity;
  const { rank } = root.processGroup;
  const values = ownValues(places, nodes, { rank, isMax });
  await shareValues(root, values, operation);
  const roots = places.map((ofParameter) =>
    joinNormValues(
      ofParameter.map(({ level, slot }) => ({ level, value: values[slot]! })),
      isMax,
    ),
  );
  return normOfRoots(roots, normType);
}

/**
 * Scales all gradients so that their norm is at most `maxNorm`, and returns the norm that they had
 * before. It is collective and throws as gradNorm does.
 * @param maxNorm 0 or Infinity: no clipping
 */
export async function clipGradNorm(
  fsdp: FullyShardedDataParallel,
  maxNorm: number,
  options: GradNormOptions = {},
): Promise<number> {
  const call = { operation: 'clipGradNorm', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, async () => {
    const norm = await normOf(root, options, 'clipGradNorm');
    const factor = clipCoefficient(norm, maxNorm);
    const { device } = fsdp;
    if (factor < 1) {
      await device.scope(() => streamedScaleGradients(shards(root), device.full([1], factor)));
    }
    return norm;
  });
}

/** The flat shards of an instance and those below it, whose gradients this rank holds. */
function shards(root: Instance): Tensor[] {
  return root.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
}

/**
 * A node of a parameter's summation tree that `rank` computes, and its slot among all the numbers
 * that ranks exchange.
 */
interface Place extends NormNode {
  readonly rank: number;
  readonly slot: number;
}

/**
 * For each parameter, in ascending order, the nodes that each rank computes: one node where the
 * rank has the whole parameter, else the largest nodes that make up the rank's blocks. Every rank
 * knows all layouts, so only the numbers themselves are exchanged.
 */
function placesOf(root: Instance, parameters: readonly Tensor[]): Place[][] {
  const owners = new Map<Tensor, { readonly layout: ShardLayout; readonly index: number }>();
  for (const { units } of root.instances()) {
    for (const unit of units) {
      unit.parameters.forEach(({ tensor }, index) => {
        owners.set(tensor, { layout: unit.layout, index });
      });
    }
  }
  let slot = 0;
  return parameters.map((parameter) => {
    const { layout, index } = owners.get(parameter)!;
    const ranks = Array.from({ length: layout.worldSize }, (_, rank) => rank);
    return ranks.flatMap((rank) => {
      const { length, first } = pieceOf(layout, index, rank);
      const cover = normCover(blockRange(parameter.size, first, length));
      return cover.map((node) => ({ ...node, rank, slot: slot++ }));
    });
  });
}

/** This rank's numbers at their slots, and zeros at the slots of the other ranks. */
function ownValues(
  places: readonly (readonly Place[])[],
  nodes: readonly (readonly NormValue[])[],
  { rank, isMax }: { readonly rank: number; readonly isMax: boolean },
): Float32Array {
  const values = new Float32Array(places.reduce((sum, { length }) => sum + length, 0));
  places.forEach((ofParameter, i) => {
    for (const { level, index, slot } of ofParameter.filter((place) => place.rank === rank)) {
      // The device returns nodes of a level of its own; this keeps those that lie below the place.
      const inside = nodes[i]!.filter(
        (node) =>
          node.level <= level && Math.floor(node.index / 2 ** (level - node.level)) === index,
      );
      values[slot] = joinNormValues(inside, isMax);
    }
  });
  return values;
}

/**
 * Fills in the numbers of all ranks: each slot is a number of one rank plus zeros of the others, a
 * sum that is exact and keeps NaN.
 */
async function shareValues(
  { processGroup, replicateGroup, tree }: Instance,
  values: Float32Array,
  operation: string,
): Promise<void> {
  if (values.length === 0) {
    return;
  }
  const wire = new Uint8Array(values.buffer);
  const options = { tag: 'gradNorm', identity: callIdentity(operation) };
  if (processGroup.worldSize > 1) {
    await processGroup.allReduce(wire, wire, { dtype: 'f32', op: 'sum', ...options });
  }
  if (replicateGroup !== undefined && tree!.numericClasses.length > 1) {
    await replicateGroup.broadcast(wire, { root: 0, ...options });
  }
}

function checkNorm(root: Instance, normType: number): void {
  const { processGroup } = root;
  if (!root.isRoot) {
    throw new FsdpStateError(
      `gradNorm: expected the root instance, got inner instance '${root.name}'. A norm is that of the whole model.`,
    );
  }
  if (!(normType > 0)) {
    throw new FsdpConfigError(`gradNorm: expected normType above 0, got ${normType}.`);
  }
  const foreign = root.instances().find((instance) => instance.processGroup !== processGroup);
  if (foreign !== undefined) {
    throw new FsdpConfigError(
      `gradNorm: expected all instances in one process group, got '${foreign.name}' in another. Parameters that differ by rank (experts) have no common norm here: clip them apart.`,
    );
  }
}
