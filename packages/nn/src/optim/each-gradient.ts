// A pass over gradients wherever they rest: one flat at a time comes to the device, so what is
// computed there is computed by the kernels that resident ones use.

import type { Tensor } from '@shardweave/tensor-core';
import { type FlatTurn, flatHomeOf, occupyHomes, visitFlats } from '../flat/homes/flat-home.js';
import { flatsOf } from './flat-plan.js';

/** Flats that come while another one is in use. */
const AHEAD = 1;

/** Calls `use` with the gradient of every flat that has one. */
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
