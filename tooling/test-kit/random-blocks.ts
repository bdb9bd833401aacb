// Random blocks and random numbers to encode, from a seed.
import { BLOCK_SIZES, type BlockType } from '@shardweave/dtypes/blocks';

/** Where the scales and minima in f16 are in a block. */
const HALVES: Readonly<Record<BlockType, readonly number[]>> = {
  q8_0: [0],
  q4_0: [0],
  q4_1: [0, 2],
  q5_0: [0],
  q5_1: [0, 2],
  q4_K: [0, 2],
  q5_K: [0, 2],
  q6_K: [208],
};

/** The largest f16, its negative, the smallest subnormals, the largest one and a negative zero. */
const EDGES = [0x7bff, 0xfbff, 0x0001, 0x8001, 0x03ff, 0x8000];

/**
 * Returns blocks of random bytes whose scales are finite. One in 32 scales is subnormal, and the
 * first blocks have the edges of f16 in every combination.
 */
export function randomBlocks(type: BlockType, count: number, seed: number): Uint8Array {
  const { bytes: size } = BLOCK_SIZES[type];
  const next = randomBits(seed);
  const words = Uint32Array.from({ length: Math.ceil((count * size) / 4) }, next);
  const bytes = new Uint8Array(words.buffer, 0, count * size);
  for (let block = 0; block < count; block++) {
    for (const [i, place] of HALVES[type].entries()) {
      const at = block * size + place;
      const edge = EDGES[Math.floor(block / EDGES.length ** i) % EDGES.length]!;
      const isEdge = block < EDGES.length ** 2;
      const half = isEdge ? edge : bytes[at]! | (bytes[at + 1]! << 8);
      const finite = (half & 0x7c00) === 0x7c00 ? half ^ 0x4000 : half;
      bytes[at] = finite;
      bytes[at + 1] = finite >> 8;
    }
  }
  return bytes;
}

/** Numbers of a normal distribution, and of one with heavy tails: Student's with 3 degrees. */
export const DISTRIBUTIONS = {
  normal: (next) => 0.02 * normal(next),
  'heavy-tailed': (next) =>
    (0.02 * normal(next)) / Math.hypot(normal(next), normal(next), normal(next)),
  'one-sided': (next) => Math.abs(normal(next)),
} as const satisfies Readonly<Record<string, (next: () => number) => number>>;

export function randomNumbers(
  distribution: keyof typeof DISTRIBUTIONS,
  options: { readonly count: number; readonly seed: number },
): Float32Array {
  const next = randomBits(options.seed);
  return Float32Array.from({ length: options.count }, () => DISTRIBUTIONS[distribution](next));
}

/** Returns a function of random unsigned numbers of 32 bits (xorshift, Marsaglia 2003). */
function randomBits(seed: number): () => number {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

function normal(next: () => number): number {
  const radius = Math.sqrt(-2 * Math.log((next() + 0.5) / 2 ** 32));
  return radius * Math.cos((2 * Math.PI * next()) / 2 ** 32);
}
