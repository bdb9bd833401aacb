// Norm and scaling of gradients that may rest off the device (FlatHome): they pass over it one flat
// at a time, through the kernels that resident ones use, so the bits are the same.

import type { Tensor } from '@shardweave/tensor-core';
import { type FlatTurn, flatHomeOf, occupyHomes, visitFlats } from '../residence/flat-home.js';
import { addSquaredNorm, multiplyInPlace, requireSome } from './clip-grad-norm.js';
import { flatsOf } from './flat-plan.js';

/** Flats that come while another one is in use. */
const AHEAD = 1;

/**
 * As squaredGradNorm, f32 [1], wherever gradients rest: of sharded parameters this rank's part. It
 * belongs to the scope around the call, or to the caller.
 */
export async function streamedSquaredGradNorm(parameters: Iterable<Tensor>): Promise<Tensor> {
  const list = [...parameters];
  const { device } = requireSome(list);
  const out = device.zeros([1]);
  await eachGradient(list, { isChanging: false, use: (gradient) => addSquaredNorm(out, gradient) });
  return out;
}

/** As scaleGradients, wherever gradients rest. */
export async function streamedScaleGradients(
  parameters: Iterable<Tensor>,
  factor: Tensor,
): Promise<void> {
  const use = (gradient: Tensor) => multiplyInPlace(gradient, factor);
  await eachGradient([...parameters], { isChanging: true, use });
}

/** Calls `use` with every gradient, in the order of the flats: sums depend on it. */
export async function eachGradient(
  parameters: readonly Tensor[],
  { use, isChanging }: { use(gradient: Tensor): void; readonly isChanging: boolean },
): Promise<void> {
  const turns: FlatTurn[] = [];
  const flats = flatsOf(parameters);
  const leave = occupyHomes(flats, 'gradient norm');
  for (const flat of flats) {
    if (flat.size === 0) {
      continue;
    }
    const home = flatHomeOf(flat);
    if (home === undefined) {
      if (flat.grad !== undefined) {
        turns.push(residentTurn(() => use(flat.grad!)));
      }
    } else if (home.hasGradient) {
      turns.push({ start: () => home.startGradient(), use: ({ grad }) => use(grad), isChanging });
    }
  }
  await visitFlats(turns, AHEAD).finally(leave);
}

function residentTurn(use: () => void): FlatTurn {
  const visit = {
    load: async () => {},
    run: use,
    store: async () => {},
    isKept: false,
    drop: () => {},
  };
  return { start: () => visit, use, isChanging: false };
}
