// What a person should know where ranks of one host compute on one card: it works, and is neither
// faster nor larger than one rank there.

import { askedAdapter } from '../device-choice.js';
import type { RankReady } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';

const REMEDY =
  'Use fewer ranks, or name one for each as doctor lists them (--device webgpu:0,webgpu:1). Of cards with equal names Dawn opens the first alone: docs/several-gpus.md.';

/**
 * A sentence for each adapter that several ranks of a host share. Drivers that compute on the CPU
 * count where --device names one: without a GPU all ranks share such a driver, and no other choice
 * would be better.
 */
export function sharedAdapters(
  { device: asked }: Pick<RunConfig, 'device'>,
  ready: readonly RankReady[],
): string[] {
  const users = new Map<string, RankReady[]>();
  for (const one of ready) {
    const { rank, device, isSoftware, host, description, shown = '' } = one;
    const isNamed = askedAdapter(asked[rank]!) !== undefined;
    if (device === 'webgpu' && (isNamed || !isSoftware)) {
      const card = JSON.stringify([host, description, shown]);
      users.set(card, [...(users.get(card) ?? []), one]);
    }
  }
  return [...users.values()]
    .filter((ranks) => ranks.length > 1)
    .map((ranks) => {
      const numbers = ranks.map(({ rank }) => rank).join(', ');
      return `Ranks ${numbers} share one adapter, ${ranks[0]!.description}: each has a part of its memory and of its time. ${REMEDY}`;
    });
}
