// nn's norms of all gradients and clipping by them, over the shards of all ranks, in nn's order:
// the bits are those of one process with the same gradients. Computed in f32 whatever gradients
// are; over replicas of shards nothing is added, for they hold the same. Replicas of several
// numeric classes may round their numbers differently, and would be scaled by two factors: there
// the first one's are taken.

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
import { callIdentity } from '../tree/call-identity.js';
import { collectiveCall } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { orTell } from '../tree/rank-failure.js';
import { pieceOf, type ShardLayout } from '../unit/shard-layout.js';

/** The kind of norm that is taken over gradients. */
export interface GradNormOptions {
  /** 2, Infinity for the largest magnitude, or another power above 0. Default 2. */
  readonly normType?: number;
}

/**
 * The norm of all gradients, each parameter once, wherever they rest. Collective; waits for the
 * device. 0 without gradients, not finite where one is not.
 * @throws {FsdpStateError} on an inner instance, or unless idle
 * @throws {FsdpConfigError} for instances of another process group, and a normType not above 0
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
  const nodes = await orTell(root.processGroup, operation, () => gradNodes(parameters, normType));
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
 * Scales all gradients so that their norm is at most maxNorm, and returns the norm before. As
 * gradNorm otherwise.
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

/** Flat shards of an instance and those below it, whose gradients are this rank's. */
function shards(root: Instance): Tensor[] {
  return root.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
}

/** A node that a rank gives to a parameter's tree, and its place among all that ranks exchange. */
interface Place extends NormNode {
  readonly rank: number;
  readonly slot: number;
}

/**
 * By parameter, ascending, what each rank gives: one number where it has all of it, else the
 * largest nodes that make up its blocks. Every rank knows all layouts, so nothing is said but the
 * numbers.
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

/** This rank's numbers at their places, zeros at those of others. */
function ownValues(
  places: readonly (readonly Place[])[],
  nodes: readonly (readonly NormValue[])[],
  { rank, isMax }: { readonly rank: number; readonly isMax: boolean },
): Float32Array {
  const values = new Float32Array(places.reduce((sum, { length }) => sum + length, 0));
  places.forEach((ofParameter, i) => {
    for (const { level, index, slot } of ofParameter.filter((place) => place.rank === rank)) {
      // The device gives nodes up to a level of its own, which are below those of the place.
      const inside = nodes[i]!.filter(
        (node) =>
          node.level <= level && Math.floor(node.index / 2 ** (level - node.level)) === index,
      );
      values[slot] = joinNormValues(inside, isMax);
    }
  });
  return values;
}

/** Puts every rank's numbers in their places: a sum with zeros is exact, and keeps NaN. */
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
