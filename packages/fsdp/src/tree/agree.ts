// Runs a part of a collective call that may fail on one rank alone: all ranks learn of it, so that
// none waits for one that has given up.

import {
  agree as agreeOver,
  type Exchange,
  exchangeTexts,
  type ProcessGroup,
  requireSameText,
} from '@shardweave/collectives';
import { differingState } from '@shardweave/nn/flat';
import { exchangeCall } from '../ranks/call-identity.js';
import type { TreeInstance } from './tree-instance.js';

function exchangeOver(group: ProcessGroup, operation: string): Exchange {
  return (text) => exchangeTexts(group, text, exchangeCall(operation));
}

/** Runs `body` on every rank, as agree of collectives; collectives inside go through `share`. */
export function agree<T>(
  { processGroup }: TreeInstance,
  operation: string,
  body: () => Promise<T>,
): Promise<T> {
  return agreeOver(operation, exchangeOver(processGroup, operation), body);
}

/**
 * Makes a collective within the body of `agree`, unless some rank has failed.
 * @throws {PeerFailedError} naming that rank
 */
export async function share<T>(
  fsdp: TreeInstance,
  operation: string,
  collective: () => Promise<T>,
): Promise<T> {
  await agree(fsdp, operation, async () => {});
  return collective();
}

/**
 * Checks that every rank and replica makes the call with the same text.
 * @throws {StateDictError} naming the ranks whose text differs, else as requireSameText does
 */
export function agreeOnText(
  { processGroup, replicateGroup }: TreeInstance,
  operation: string,
  make: () => string | Promise<string>,
): Promise<void> {
  const exchanges = [processGroup, replicateGroup].flatMap((group) =>
    group === undefined ? [] : [exchangeOver(group, operation)],
  );
  const advice = "read one file on every rank, or send rank 0's to all";
  return requireSameText(operation, exchanges, {
    make,
    differing: differingState(operation, advice),
  });
}
