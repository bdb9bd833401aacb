// Which adapter of its host a rank computes on: the one that --device names, or with several cards
// one that the ranks beside it don't have.

import type { NodeAdapter } from '@shardweave/tensor-core/webgpu-node';
import { UsageError } from '../errors.js';

/** Variables that tell a process's Vulkan which drivers and cards it has. */
const SHOWING = ['DRI_PRIME', 'MESA_VK_DEVICE_SELECT', 'VK_DRIVER_FILES', 'VK_ICD_FILENAMES'];

/** Those that are set, by which ranks on cards of one name are known to have different ones. */
export function shownCards(env: NodeJS.ProcessEnv): string | undefined {
  const set = SHOWING.filter((name) => env[name]).map((name) => `${name}=${env[name]}`);
  return set.length === 0 ? undefined : set.join(' ');
}

export interface AdapterWish {
  /** An index, or a part of a name in any case; undefined where the rank takes any card. */
  readonly asked: string | undefined;
  /** The rank's number among those of its host. */
  readonly localRank: number;
}

/**
 * The adapter of a rank. Ranks take turns among the cards that fit what is asked, and drivers that
 * compute on the CPU count as cards only where they are named.
 * @param adapters those of listNodeAdapters, in its order
 * @returns undefined where nothing is asked and there is not more than one card
 * @throws {UsageError} where no adapter is so named, or Dawn opens another by that name
 */
export function chooseAdapter(
  adapters: readonly NodeAdapter[],
  { asked, localRank }: AdapterWish,
): NodeAdapter | undefined {
  if (asked === undefined) {
    const cards = adapters.filter(({ isSoftware, isReachable }) => !isSoftware && isReachable);
    return cards.length > 1 ? cards[localRank % cards.length] : undefined;
  }
  const indexed = /^\d+$/.test(asked) ? adapters[Number(asked)] : undefined;
  const fitting =
    indexed === undefined
      ? adapters.filter(({ name }) => isName(asked) && plain(name).includes(plain(asked)))
      : [indexed];
  const open = fitting.filter(({ isReachable }) => isReachable);
  if (open.length > 0) {
    return open[localRank % open.length];
  }
  const listed = adapters.map(({ name }, i) => `${i}: ${name}`).join('; ');
  if (fitting.length === 0) {
    throw new UsageError(
      `--device webgpu:${asked}: expected an index or a part of a name of an adapter of this machine, which has ${listed || 'none'}. "npm run doctor" lists them.`,
    );
  }
  throw new UsageError(
    `--device webgpu:${asked}: expected an adapter that Dawn opens by its name, got ${fitting[0]!.name}, whose name an adapter before it has, too (${listed}). Start the rank where it sees that card alone: docs/several-gpus.md.`,
  );
}

/** Whether a text may be a part of a name, which -1 and ( as they are shown would be of many. */
function isName(text: string): boolean {
  return /[\p{L}\p{N}]/u.test(text) && !/^[-+]\d+$/.test(text);
}

/** A name as Dawn shows it in descriptions, and so in a run's header: `rtx-4090` for `RTX 4090`. */
function plain(name: string): string {
  return name.toLowerCase().replace(/[ -/:-@[-`{-~]+/g, '-');
}
