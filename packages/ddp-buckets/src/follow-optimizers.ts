// After ranks took unequal numbers of steps, makes the state of optimizers and loss scalers equal
// to one rank's, as the weights were made. Otherwise the next step would part the ranks, because
// their moments and step counts would be those of different steps.

import type { ProcessGroup } from '@shardweave/collectives';
import type { GradScaler, GradScalerState, Optimizer } from '@shardweave/nn';
import type { StateRun } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { DdpConfigError } from './errors.js';
import { broadcastTensors } from './ranks/broadcast-tensors.js';

export interface Followed {
  /** The optimizers that step the wrapped parameters. */
  readonly optimizers: readonly Optimizer<object>[];
  readonly scalers: readonly GradScaler[];
}

/** What one rank sends beside the tensors. */
interface FollowedText {
  readonly optimizers: readonly {
    /** The options of each parameter group. */
    readonly options: readonly object[];
    /** One entry for each flat that was ever stepped. */
    readonly states: readonly StateText[];
  }[];
  readonly scalers: readonly GradScalerState[];
}

interface StateText {
  /** The flat's index among all flats. */
  readonly index: number;
  readonly runs: readonly StateRun[];
  /** The names of the state tensors. */
  readonly names: readonly string[];
}

/**
 * Checks that every trained parameter is in an optimizer, unless there are no optimizers.
 * @param operation the call to which they were given
 * @param parameters the trained parameters of the wrapped module, with their paths
 * @throws {DdpConfigError} naming a parameter that is in none
 */
export function requireStepped(
  operation: string,
  optimizers: readonly Optimizer<object>[],
  parameters: readonly { readonly path: string; readonly tensor: Tensor }[],
): void {
  if (!Array.isArray(optimizers)) {
    throw new DdpConfigError(
      `${operation}: expected the option optimizers, got none. Give it all optimizers that step the module, so that their state follows the weights. Where it is stepped by other means, set optimizers: [].`,
    );
  }
  const stepped = new Set(optimizers.flatMap((optimizer) => optimizer.parameters()));
  const missing = parameters.filter(({ tensor }) => !stepped.has(tensor));
  if (optimizers.length === 0 || missing.length === 0) {
    return;
  }
  throw new DdpConfigError(
    `${operation}: expected optimizers for all trained parameters, got none for ${missing.map(({ path }) => path).join(', ')}. Their state would stay that of each rank's own last step; give every optimizer, or freeze what none steps.`,
  );
}

/**
 * Makes the group options, step counts and state tensors of `flats` (plain parameters, and what
 * others are packed into) equal to those of rank `root`. Collective.
 */
export async function followOptimizers(
  group: ProcessGroup,
  { optimizers, scalers }: Followed,
  { root, flats }: { readonly root: number; readonly flats: readonly Tensor[] },
): Promise<void> {
  const isRoot = group.rank === root;
  const own = JSON.stringify(describe({ optimizers, scalers }, flats));
  const counts = `${optimizers.length} optimizers, ${scalers.length} scalers`;
  const told = await broadcastText(group, isRoot ? own : '', { root, counts });
  const text: FollowedText = JSON.parse(told);
  // A rank that has followed already keeps its state: what comes below has the same values. So
  // nothing is lost where the root dies meanwhile.
  const isBehind = told !== own;
  const tensors: Tensor[] = [];
  for (const [at, optimizer] of optimizers.entries()) {
    const { options, states } = text.optimizers[at]!;
    if (isBehind) {
      for (const [i, values] of options.entries()) {
        Object.assign(optimizer.groups[i]!, values);
      }
      await resize(optimizer, states, flats);
    }
    for (const { index, names } of states) {
      const state = optimizer.stateOf(flats[index]!)!;
      tensors.push(...names.map((name) => state.tensors.get(name)!));
    }
  }
  await broadcastTensors(group, tensors, { root, tag: 'ddp join optimizers' });
  if (isBehind) {
    scalers.forEach((scaler, i) => void scaler.loadStateDict(text.scalers[i]!));
  }
}

function describe({ optimizers, scalers }: Followed, flats: readonly Tensor[]): FollowedText {
  return {
    optimizers: optimizers.map((optimizer) => ({
      options: optimizer.groups.map(({ params: _, ...options }) => options),
      states: flats.flatMap((flat, index) => {
        const state = optimizer.stateOf(flat);
        if (state === undefined) {
          return [];
        }
        return [{ index, runs: state.runs, names: [...state.tensors.keys()] }];
      }),
    })),
    scalers: scalers.map((scaler) => scaler.stateDict()),
  };
}

/**
 * Takes over the step counts of `states`, with tensors of zeros; a flat that the other rank never
 * stepped becomes as if new.
 */
async function resize(
  optimizer: Optimizer<object>,
  states: readonly StateText[],
  flats: readonly Tensor[],
): Promise<void> {
  const told = new Map(states.map((state) => [state.index, state]));
  for (const [index, flat] of flats.entries()) {
    const state = told.get(index);
    if (state === undefined && optimizer.stateOf(flat) === undefined) {
      continue;
    }
    const zeros = new Uint8Array(flat.size * 4);
    const tensors = new Map((state?.names ?? []).map((name) => [name, zeros]));
    await optimizer.writeFlatState(flat, { runs: state?.runs ?? [], tensors });
  }
}

/** Resolves with the text of `root` on every rank. */
async function broadcastText(
  group: ProcessGroup,
  own: string,
  { root, counts }: { readonly root: number; readonly counts: string },
): Promise<string> {
  const tag = 'ddp join optimizers';
  const encoded = new TextEncoder().encode(own);
  const length = Uint32Array.of(encoded.byteLength);
  await group.broadcast(new Uint8Array(length.buffer), {
    root,
    dtype: 'u32',
    tag,
    identity: `${tag}: ${counts}`,
  });
  const bytes = group.rank === root ? encoded : new Uint8Array(length[0]!);
  await group.broadcast(bytes, { root, tag, identity: `${tag}: text` });
  return new TextDecoder().decode(bytes);
}
