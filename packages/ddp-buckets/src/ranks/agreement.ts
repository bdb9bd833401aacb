// Compares texts over ranks: parameters and options have to be equal on all of them.

import { compareTexts, type ExchangeCall, type ProcessGroup } from '@shardweave/collectives';
import { DdpStructureError } from '../errors.js';

export interface AgreementOptions {
  /**
   * What the lines describe, for errors and for ranks to compare, such as 'trainable parameters'.
   */
  readonly what: string;
  /** Tells the user what to do about a difference. */
  readonly advice: string;
  /** A text that is exchanged along with the lines and may differ. Default none. */
  readonly beside?: string;
}

/** The tag and identity of an exchange of this package, which ranks compare. */
export function exchangeCall(what: string): ExchangeCall {
  return { tag: 'ddp agreement', identity: `ddp ${what}` };
}

/**
 * Checks that all ranks give the same `lines` (a line for each parameter or option). Collective.
 * @returns the texts that the ranks gave as `beside`, each once, sorted
 * @throws {DdpStructureError} on every rank, naming the first line that differs
 */
export async function requireAgreement(
  group: ProcessGroup,
  lines: readonly string[],
  { what, advice, beside = '' }: AgreementOptions,
): Promise<string[]> {
  const own = [lines.join('\n'), beside];
  const [texts, besides] = await compareTexts(group, own, exchangeCall(what));
  if (texts === undefined) {
    return [...new Set(besides ?? [beside])].sort();
  }
  const all = texts.map((text) => (text === '' ? [] : text.split('\n')));
  const [first, ...others] = all;
  const rank = 1 + others.findIndex((other) => other.join('\n') !== texts[0]);
  const differing = all[rank]!;
  const at = first!.findIndex((line, i) => line !== differing[i]);
  const place = at < 0 ? first!.length : at;
  throw new DdpStructureError(
    `rank ${group.rank}/${group.worldSize} ddp: expected the ${what} of rank 0 (${first!.length} of them) on every rank, got ${differing.length} on rank ${rank}. Number ${place} is ${quoted(first![place])} on rank 0 and ${quoted(differing[place])} on rank ${rank}. ${advice}`,
  );
}

function quoted(line: string | undefined): string {
  return line === undefined || line === '' ? 'missing' : `'${line}'`;
}
