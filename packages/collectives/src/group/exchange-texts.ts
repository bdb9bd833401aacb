// Exchanges small texts between all ranks, for agreements outside a step. Texts that should be
// equal are first compared by digests, which have a fixed number of bytes; the texts themselves
// travel only where they differ.

import { fnv1a } from '@shardweave/dtypes';
import type { CallOptions, ProcessGroup } from './process-group.js';

/** The tag and the identity of the exchange's collectives; ranks compare the identity. */
export type ExchangeCall = Required<Pick<CallOptions, 'tag' | 'identity'>>;

/** A digest has two words: the number of the text's bytes, and a hash of them. */
const DIGEST_WORDS = 2;

/** Each rank's words, in rank order; every rank gives as many. Collective. */
export async function exchangeWords(
  group: ProcessGroup,
  own: Uint32Array,
  call: ExchangeCall,
): Promise<Uint32Array> {
  const all = new Uint32Array(own.length * group.worldSize);
  const input = new Uint8Array(own.buffer, own.byteOffset, own.byteLength);
  await group.allGather(input, new Uint8Array(all.buffer), { ...call, dtype: 'u32' });
  return all;
}

/** Each rank's text, in rank order. It takes two small collectives, and none on a single rank. */
export async function exchangeTexts(
  group: ProcessGroup,
  text: string,
  call: ExchangeCall,
): Promise<string[]> {
  if (group.worldSize === 1) {
    return [text];
  }
  const own = new TextEncoder().encode(text);
  const counts = await exchangeWords(group, Uint32Array.of(own.byteLength), call);
  return gatherBytes(group, own, { ...call, counts: [...counts] });
}

/**
 * For each of several texts, all ranks' texts in rank order, or undefined where they are equal.
 * Every rank gives as many texts. It takes one small collective, one more for each text that
 * differs, and none on a single rank.
 */
export async function compareTexts(
  group: ProcessGroup,
  texts: readonly string[],
  call: ExchangeCall,
): Promise<(string[] | undefined)[]> {
  if (group.worldSize === 1) {
    return texts.map(() => undefined);
  }
  const encoded = texts.map((text) => new TextEncoder().encode(text));
  const own = Uint32Array.from(texts.flatMap((text, i) => [encoded[i]!.byteLength, fnv1a(text)]));
  const all = await exchangeWords(group, own, call);
  const found: (string[] | undefined)[] = [];
  for (const [i, bytes] of encoded.entries()) {
    const digests = Array.from({ length: group.worldSize }, (_, rank) => {
      const at = rank * own.length + i * DIGEST_WORDS;
      return [all[at]!, all[at + 1]!] as const;
    });
    const [[firstCount, firstHash]] = digests as [readonly [number, number]];
    const isSame = digests.every(([count, hash]) => count === firstCount && hash === firstHash);
    const counts = digests.map(([count]) => count);
    found.push(isSame ? undefined : await gatherBytes(group, bytes, { ...call, counts }));
  }
  return found;
}

async function gatherBytes(
  group: ProcessGroup,
  own: Uint8Array,
  options: ExchangeCall & { readonly counts: readonly number[] },
): Promise<string[]> {
  const { counts } = options;
  const all = new Uint8Array(counts.reduce((sum, count) => sum + count, 0));
  await group.allGather(own, all, options);
  let end = 0;
  return counts.map((count) => {
    end += count;
    return new TextDecoder().decode(all.subarray(end - count, end));
  });
}
