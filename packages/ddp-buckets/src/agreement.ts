// Whether all ranks hold the same parameters: a fixed number of bytes first, texts only where those
// differ, so that ranks with unequal lists still exchange equal lengths.

import type { ProcessGroup } from '@shardweave/collectives';
import { fnv1a } from '@shardweave/dtypes';
import { DdpStructureError } from './errors.js';

export interface AgreementOptions {
  /** What the lines are, for errors and for ranks to compare: 'trainable parameters'. */
  readonly what: string;
  /** What to do about a difference. */
  readonly advice: string;
}

/** How many lines, and a hash of them. */
const DIGEST_WORDS = 2;

/**
 * Holds the ranks' descriptions (a line a parameter or option) equal; collective.
 * @throws {DdpStructureError} on every rank, naming the first line that differs
 */
export async function requireAgreement(
  group: ProcessGroup,
  lines: readonly string[],
  { what, advice }: AgreementOptions,
): Promise<void> {
  const own = Uint32Array.of(lines.length, fnv1a(lines.join('\n')));
  const all = await gatherWords(group, own, what);
  const isEqual = all.every((word, i) => word === own[i % DIGEST_WORDS]);
  if (isEqual) {
    return;
  }
  const texts = await gatherTexts(group, lines.join('\n'), what);
  const [first, ...others] = texts.map((text) => text.split('\n'));
  const rank = 1 + others.findIndex((other) => other.join('\n') !== first!.join('\n'));
  const differing = texts[rank]!.split('\n');
  const at = first!.findIndex((line, i) => line !== differing[i]);
  const place = at < 0 ? first!.length : at;
  throw new DdpStructureError(
    `rank ${group.rank}/${group.worldSize} ddp: expected the ${what} of rank 0 (${all[0]} of them) on every rank, got ${all[rank * DIGEST_WORDS]} on rank ${rank}. Number ${place} is ${quoted(first![place])} on rank 0 and ${quoted(differing[place])} on rank ${rank}. ${advice}`,
  );
}

/** Each rank's words, in rank order. `what` is what ranks compare. */
export async function gatherWords(
  group: ProcessGroup,
  own: Uint32Array,
  what: string,
): Promise<Uint32Array> {
  const all = new Uint32Array(own.length * group.worldSize);
  const input = new Uint8Array(own.buffer, own.byteOffset, own.byteLength);
  const options = { dtype: 'u32', tag: 'ddp agreement', identity: `ddp ${what}` } as const;
  await group.allGather(input, new Uint8Array(all.buffer), options);
  return all;
}

/** Each rank's text: the lengths first. */
async function gatherTexts(group: ProcessGroup, text: string, what: string): Promise<string[]> {
  const own = new TextEncoder().encode(text);
  const counts = [
    ...(await gatherWords(group, Uint32Array.of(own.byteLength), `${what}: lengths`)),
  ];
  const all = new Uint8Array(counts.reduce((sum, count) => sum + count, 0));
  await group.allGather(own, all, {
    dtype: 'u8',
    counts,
    tag: 'ddp agreement',
    identity: `ddp ${what}: texts`,
  });
  let at = 0;
  return counts.map((count) => {
    at += count;
    return new TextDecoder().decode(all.subarray(at - count, at));
  });
}

function quoted(line: string | undefined): string {
  return line === undefined || line === '' ? 'missing' : `'${line}'`;
}
