// The norm of all gradients of a model and the factor that clips it, whatever wraps the model. Sums
// are taken in one order (Note [order of a norm]), so the bits are those of one process with the
// same gradients, on however many ranks. Clipping moves no gradient: the optimizer's kernel takes
// the factor as its gradScale.

import { pow64 } from '@shardweave/dtypes/float64';
import { type Device, isTensor, type Tensor } from '@shardweave/tensor-core';
import { atLeast, checkOptions, type OptionRules, optional, shown } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { nameOf, placesByFlat } from '../flat/layout/flat-plan.js';
import { isSharded } from '../flat/placement.js';
import { requireNoBackward } from '../flat/stores/flat-home.js';
import { isModule, type Module, moduleHint } from '../module.js';
import {
  areGradientsHere,
  clipCoefficient,
  clipOnDevice,
  multiplyInPlace,
  requireBound,
} from '../optim/clip-factor.js';
import { eachGradient } from '../optim/each-gradient.js';
import { gradNodes, normParameters } from '../optim/grad-nodes.js';
import {
  blockRange,
  joinNormValues,
  type NormNode,
  type NormValue,
  normCover,
  normOfRoots,
} from '../optim/norm-tree.js';
import { ALONE, type ElementsOfRank, type HeldPart, type HeldRanks } from './held.js';
import { whileAtRest } from './model-at-rest.js';

/**
 * What has gradients: a module, wrapped or not, several that count as one, or parameters that no
 * other rank has parts of.
 */
export type GradientTarget = Module | Iterable<Module> | Iterable<Tensor>;

/** Options of gradNorm. */
export interface GradNormOptions {
  /** 2, Infinity for the largest magnitude, or another power above 0. Default 2. */
  readonly normType?: number;
  /**
   * Called with the norm of each parameter's own gradient, in the order of module.parameters().
   * The norm of all is made of them, so they cost nothing more.
   */
  readonly onParameter?: (parameter: Tensor, norm: number) => void;
}

/** Options of clipGradNorm. */
export interface ClipGradNormOptions extends Pick<GradNormOptions, 'normType'> {
  /**
   * The factor that undoes a loss scale, 1 / factor of a GradScaler. Both norm and scale contain
   * it. Default 1.
   */
  readonly unscale?: number;
}

/**
 * Norm and factor as tensors that are read only on demand. The scope around the call owns them or,
 * without one, the caller.
 */
export interface GradNorm {
  /** The norm of all gradients before clipping, without the loss scale; f32 [1]. */
  readonly norm: Tensor;
  /** The factor for the gradients, f32 [1]. Pass it to the optimizer as gradScale. */
  readonly scale: Tensor;
}

const NORM_TYPE = {
  normType: optional({
    expected: 'a number above 0, or Infinity',
    holds: (value: unknown) => typeof value === 'number' && value > 0,
  }),
};
const NORM_RULES: OptionRules<GradNormOptions> = {
  ...NORM_TYPE,
  onParameter: optional({
    expected: 'a function',
    holds: (value) => typeof value === 'function',
  }),
};
const CLIP_RULES: OptionRules<ClipGradNormOptions> = {
  ...NORM_TYPE,
  unscale: optional(atLeast(0)),
};

/**
 * The norm of all gradients, each parameter counted once, wherever its gradient rests, with equal
 * bits on all ranks. 0 without gradients; not finite where an element is not. It waits for the
 * device. All ranks that hold the model call it.
 * @throws {NnConfigError} for what has no gradients, for parameters that ranks share without their
 * wrapper, and for a normType that is not above 0
 * @throws what the wrapper does during a call that has not ended
 */
export async function gradNorm(
  target: GradientTarget,
  options: GradNormOptions = {},
): Promise<number> {
  const operation = 'gradNorm';
  checkOptions(operation, options, NORM_RULES);
  return withGradients(resolveTarget(target, operation), operation, (held) =>
    normOf(held, options, operation),
  );
}

/**
 * Computes the norm of all gradients, with equal bits on all ranks, and the factor min(1, maxNorm /
 * (norm + 1e-6)) that clips it. Gradients stay as they are: `optimizer.step({ gradScale: scale })`
 * applies the factor, and scaleGradients multiplies them where nothing steps. A tied parameter
 * counts once, and the norm is 0 where there are no gradients. The promise waits where ranks must
 * exchange parts of the norm, where gradients rest off the device, and for a normType other than 2;
 * elsewhere it only encodes kernels. All ranks that hold the model call it.
 * @param maxNorm the largest norm that is left alone; 0 or Infinity turns clipping off
 * @throws {NnConfigError} for no parameters, for a negative maxNorm, and as gradNorm does
 */
export async function clipGradNorm(
  target: GradientTarget,
  maxNorm: number,
  options: ClipGradNormOptions = {},
): Promise<GradNorm> {
  const operation = 'clipGradNorm';
  checkOptions(operation, options, CLIP_RULES);
  requireBound(maxNorm);
  const { normType = 2 } = options;
  const unscale = Math.fround(options.unscale ?? 1); // as kernels take it
  const resolved = resolveTarget(target, operation);
  const { device } = resolved;
  if (device === undefined) {
    throw new NnConfigError('clipGradNorm: expected at least one parameter, got none.');
  }
  // They are made before any wait, so that the scope around the call owns them.
  const result = device.scope(() => ({ norm: device.empty([1]), scale: device.empty([1]) }));
  try {
    await withGradients(resolved, operation, async (held) => {
      const { parameters, ranks } = held;
      const isExchanged = areSharded(held) || ranks.firstNorm !== undefined;
      if (normType === 2 && !isExchanged && areGradientsHere(parameters)) {
        clipOnDevice(parameters, { ...result, maxNorm, unscale });
        return;
      }
      const norm = (await normOf(held, { normType }, operation)) * unscale;
      setNumber(result.norm, norm);
      setNumber(result.scale, clipCoefficient(norm, maxNorm) * unscale);
    });
  } catch (error) {
    result.norm.dispose();
    result.scale.dispose();
    throw error;
  }
  return result;
}

function setNumber({ storage, offset }: Tensor, value: number): void {
  storage.write(new Uint8Array(Float32Array.of(value).buffer), offset * 4);
}

/**
 * Multiplies all gradients by `factor`, f32 [1], equal on all ranks, wherever they rest; that of a
 * tied parameter only once. Other parameters that share a flat with them keep their gradients. It
 * waits for those off the device.
 */
export async function scaleGradients(target: GradientTarget, factor: Tensor): Promise<void> {
  const operation = 'scaleGradients';
  await withGradients(resolveTarget(target, operation), operation, ({ parameters }) =>
    multiplyGradients(parameters, factor),
  );
}

/** The same for the parameters whose elements are here, without asking anybody. */
export async function multiplyGradients(
  parameters: readonly Tensor[],
  factor: Tensor,
): Promise<void> {
  const places = placesByFlat(parameters);
  const use = (gradient: Tensor, flat: Tensor) =>
    multiplyInPlace(gradient, factor, places.get(flat) ?? []);
  await eachGradient(parameters, { isChanging: true, use });
}

/** What is held of gradients during a call. */
interface GradientsAtRest {
  readonly parameters: readonly Tensor[];
  readonly parts: readonly HeldPart[];
  readonly ranks: HeldRanks;
}

/** A target as modules, or as parameters alone. */
interface ResolvedTarget {
  readonly models?: Module | readonly Module[];
  readonly parameters: readonly Tensor[];
  /** Undefined where there are no parameters. */
  readonly device: Device | undefined;
}

/** @throws {NnConfigError} for what has no gradients */
export function resolveTarget(target: GradientTarget, operation: string): ResolvedTarget {
  const isIterable = typeof Object(target)[Symbol.iterator] === 'function';
  const list: readonly unknown[] = isIterable && !isModule(target) ? [...target] : [target];
  if (list.length > 0 && list.every(isModule)) {
    const parameters = list.flatMap((module) => module.parameters());
    const models = isModule(target) ? target : list;
    return { models, parameters, device: parameters[0]?.device };
  }
  if (!isIterable || !list.every(isTensor)) {
    throw new NnConfigError(
      `${operation}: expected a module, several, or parameters, such as module.parameters(), got ${shown(isIterable ? list : target)}.${moduleHint(target)}`,
    );
  }
  requireWhole(list, operation);
  return { parameters: list, device: list[0]?.device };
}

/** Runs `body` with the gradients of a target at rest. */
export async function withGradients<T>(
  { models, parameters }: ResolvedTarget,
  operation: string,
  body: (held: GradientsAtRest) => Promise<T>,
): Promise<T> {
  if (models === undefined) {
    requireNoBackward(parameters, operation);
    return body({ parameters, parts: [], ranks: ALONE });
  }
  const call = { operation, by: 'gradients', isLoad: false } as const;
  return whileAtRest(models, call, async ({ names, parts, ranks }) => {
    for (const part of parts) {
      requireWhole(part.elementsOf === undefined ? part.parameters : [], operation);
    }
    return body({ parameters: [...names.keys()], parts, ranks });
  });
}

/** @throws {NnConfigError} where other ranks have parts of a parameter */
function requireWhole(parameters: readonly Tensor[], operation: string): void {
  const part = parameters.find(isSharded);
  if (part === undefined) {
    return;
  }
  throw new NnConfigError(
    `${operation}: expected parameters that this rank has whole, got ${nameOf(part)} of a flat parameter over ${part.piece?.numShards ?? 'several'} ranks. Each would get the norm of its own part and scale by another factor. Call it with the wrapper that shards them, or with a module around that one.`,
  );
}

/** Whether ranks have parts of some gradients. */
export function areSharded({ parts }: GradientsAtRest): boolean {
  return parts.some(({ elementsOf }) => elementsOf !== undefined);
}

async function normOf(
  held: GradientsAtRest,
  { normType = 2, onParameter }: GradNormOptions,
  operation: string,
): Promise<number> {
  const { ranks } = held;
  const parameters = normParameters(held.parameters);
  const isMax = normType === Infinity;
  const nodes = await ranks.attempt(operation, () => gradNodes(parameters, normType));
  const roots = areSharded(held)
    ? await sharedRoots(parameters, nodes, { held, isMax, operation })
    : nodes.map((values) => joinNormValues(values, isMax));
  if (onParameter !== undefined) {
    for (const [i, root] of roots.entries()) {
      onParameter(parameters[i]!, normOfRoots([root], normType));
    }
  }
  const norm = normOfRoots(roots, normType);
  const isOwn = areSharded(held) || ranks.firstNorm === undefined;
  return isOwn ? norm : ranks.firstNorm!(operation, norm);
}

/** The root of each parameter's tree, of whose nodes other ranks have some. */
async function sharedRoots(
  parameters: readonly Tensor[],
  nodes: readonly (readonly NormValue[])[],
  options: {
    readonly held: GradientsAtRest;
    readonly isMax: boolean;
    readonly operation: string;
  },
): Promise<number[]> {
  const { held, isMax, operation } = options;
  const { ranks } = held;
  const shares = nodesOfRanks(parameters, held);
  const values = ownValues(shares, nodes, { rank: ranks.rank, isMax });
  if (values.length > 0) {
    await ranks.sum(operation, values);
  }
  return shares.map((ofParameter) =>
    joinNormValues(
      ofParameter.flatMap(({ nodes, slot }) =>
        nodes.map(({ level }, i) => ({ level, value: values[slot + i]! })),
      ),
      isMax,
    ),
  );
}

/**
 * The nodes of a parameter's summation tree that `rank` computes, in ascending order, and the slot
 * of the first among all the numbers that ranks exchange; the others follow it.
 */
interface NodesOfRank {
  readonly rank: number;
  readonly nodes: readonly NormNode[];
  readonly slot: number;
}

/**
 * For each parameter, in ascending order, the nodes that each rank computes: one node where the
 * rank has the whole parameter, else the largest nodes that make up the rank's blocks. What every
 * rank has whole is the first one's. Every rank knows all layouts, so only the numbers themselves
 * are exchanged.
 */
function nodesOfRanks(parameters: readonly Tensor[], { parts }: GradientsAtRest): NodesOfRank[][] {
  const sharded = new Map<Tensor, readonly ElementsOfRank[]>();
  for (const { parameters: ofPart, elementsOf } of parts) {
    ofPart.forEach((parameter, i) => {
      if (elementsOf !== undefined) {
        sharded.set(parameter, elementsOf(i));
      }
    });
  }
  let end = 0;
  return parameters.map((parameter) => {
    const elements = sharded.get(parameter) ?? [{ rank: 0, first: 0, length: parameter.size }];
    return elements.map(({ rank, first, length }) => {
      const nodes = normCover(blockRange(parameter.size, first, length));
      const slot = end;
      end += nodes.length;
      return { rank, nodes, slot };
    });
  });
}

/** This rank's numbers at their slots, and zeros at the slots of the other ranks. */
function ownValues(
  shares: readonly (readonly NodesOfRank[])[],
  computed: readonly (readonly NormValue[])[],
  { rank, isMax }: { readonly rank: number; readonly isMax: boolean },
): Float32Array {
  const last = shares.at(-1)?.at(-1);
  const values = new Float32Array(last === undefined ? 0 : last.slot + last.nodes.length);
  shares.forEach((ofParameter, i) => {
    // The device returns nodes of levels of its own, each of which lies below one of these.
    const below = computed[i]!;
    let next = 0;
    for (const { nodes, slot } of ofParameter.filter((share) => share.rank === rank)) {
      nodes.forEach(({ level, index }, at) => {
        const start = next;
        const end = (index + 1) * pow64(2, level);
        while (next < below.length && below[next]!.index * pow64(2, below[next]!.level) < end) {
          next += 1;
        }
        values[slot + at] = joinNormValues(below.slice(start, next), isMax);
      });
    }
  });
  return values;
}
