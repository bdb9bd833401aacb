// A pass over gradients wherever they rest. They come to the device one flat at a time, so that the
// same kernels handle them as handle gradients that live there.

import type { Tensor } from '@shardweave/tensor-core';
import { flatsOf } from '../flat/layout/flat-plan.js';
import { type FlatTurn, flatHomeOf, occupyHomes, visitFlats } from '../flat/stores/flat-home.js';

/** How many flats may be on their way to the device while another one is in use. */
const AHEAD = 1;

/**
 * Calls `use` with the gradient of each flat that has one. `isChanging` says that `use` changes the
 * gradient, which is then written back to where it rests.
 */
export async function eachGradient(
  parameters: readonly Tensor[],
  { use, isChanging }: { use(gradient: Tensor, flat: Tensor): void; readonly isChanging: boolean },
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
        turns.push(residentTurn(() => use(flat.grad!, flat)));
      }
    } else if (home.hasGradient) {
      turns.push({
        start: () => home.startGradient(),
        use: ({ grad }) => use(grad, flat),
        isChanging,
      });
    }
  }
  await visitFlats(turns, AHEAD).finally(leave);
}

function residentTurn(use: () => void): FlatTurn {
  const visit = {
    load: async () => {},
    run: async () => use(),
    store: async () => {},
    isKept: false,
    drop: () => {},
  };
  return { start: () => visit, use, isChanging: false };
}
